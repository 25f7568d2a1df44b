"""Compares the digests of an epoch of several pipelines with the same rows, on several fleets and on one that loses a worker."""

import json
import subprocess
import sys
import time

FLEETS = (1, 2, 4)
SHAPE = ("--virtual-consumers", 4, "--audit", "--report", "json")
# The run is slow, so that its worker is killed in the middle.
STEP_MS, ROWS_BEFORE_KILL = 50, 1000
PAUSE_SECONDS = 0.1


def find_differences(feedline, folder, pipelines):
    """Runs each pipeline on each fleet. Returns the names of the runs that lose or repeat rows, whose rows differ from those of the first
    run, or whose order differs from that of the first run of the pipeline."""
    differing, content = [], None
    for name, pipeline in pipelines.items():
        order = None
        for fleet, report in reports(feedline, folder / name, pipeline):
            content, order = content or report["content_digest"], order or report["digest"]
            audit = report["audit"]
            is_complete = audit["missing"] == 0 and audit["repeated"] == 0
            if not is_complete or report["content_digest"] != content or report["digest"] != order:
                differing.append(f"{name}, {fleet}")
    return differing


def reports(feedline, folder, pipeline):
    """Yields the name and the report of the run on each fleet."""
    for workers in FLEETS:
        flags = ("--index-dir", folder / "index", "--auto-cache", "off", "--workers", workers)
        run = start(feedline, "run", pipeline, *flags, *SHAPE)
        yield f"{workers} workers", report_of(run)
    yield "a worker killed", run_with_killed_worker(feedline, folder, pipeline)


def run_with_killed_worker(feedline, folder, pipeline):
    roles = []

    def start_role(role, *arguments):
        roles.append(start(feedline, role, "--listen", "127.0.0.1:0", *arguments, stderr=subprocess.DEVNULL))
        return roles[-1], roles[-1].stdout.readline().split()[-1]

    try:
        _, address = start_role("coordinator", "--data-dir", folder / "coordinator", "--auto-cache", "off")
        url = f"http://{address}"
        flags = ("--coordinator", url, "--cores", 1, "--memory", "256MiB", "--cache-dir", folder / "cache")
        killed, _ = start_role("worker", *flags)
        start_role("worker", *flags)
        run = start(feedline, "run", pipeline, "--coordinator", url, "--step-ms", STEP_MS, *SHAPE)
        while delivered_rows(feedline, url) < ROWS_BEFORE_KILL and run.poll() is None:
            time.sleep(PAUSE_SECONDS)
        if run.poll() is not None:
            sys.exit(f"the run ended before its worker was killed: {run.communicate()[1]}")
        killed.kill()
        return report_of(run)
    finally:
        for role in roles:
            role.kill()
            role.wait()


def start(*command, stderr=subprocess.PIPE):
    return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=stderr, text=True)


def report_of(run):
    output, errors = run.communicate()
    if not output:
        sys.exit(f"the run failed: {errors}")
    return json.loads(output.splitlines()[-1])


def delivered_rows(feedline, url):
    listed, _ = start(feedline, "job", "list", "--coordinator", url, "--json").communicate()
    return sum(job["delivered"]["rows"] for job in json.loads(listed or "[]"))
