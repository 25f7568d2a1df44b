#!/usr/bin/env python3
"""Measures scaling of `feedline up --autoscale 1..8` with real processes while demand quadruples and falls back.

Each worker waits 4 ms for a row and computes one row at a time. A worker therefore computes 250 rows/s regardless of the
cores. There are two scenarios:

- The steps of one job take 72 ms per 20 rows, then 18 ms, then 72 ms again.
- A job with steps of 72 ms runs all the time. A second job with three times the demand runs for two minutes.

Prints a Markdown table with three results for each scenario:

- the time from the increase in demand until the fed fraction of each job stays at 95 % or above
- the time from the decrease in demand until the number of workers is as low as before
- how often the number of workers changes direction after the decrease

Writes observations of every half second to target/bench/demand.json. Exits with status 1 if jobs are fed later than 15 s
after the increase, if workers are released later than 60 s after the decrease, if the number of workers changes direction
afterwards, or if an audit fails. `make demand` builds Feedline in release mode and runs this script.

    CALM_S=60 benches/demand.py
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import usage
from limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
RESULTS = ROOT / "target/bench"
# Seconds before, during and after the higher demand.
BEFORE_S, MUCH_S, CALM_S, SHORT_CALM_S = 60, 120, int(os.environ.get("CALM_S", "330")), 60
LOOK_S = 0.5
BATCH = 20
STEPS_MS = {"steady": "72", "surge": "24"}
FED = 0.95
# Targets for the time until jobs are fed, and until workers are released.
FED_AFTER_S, RELEASED_AFTER_S = 15, 60
PIPELINE = """
name: {name}
source: {{ url: "{data}/*", format: jsonl }}
operators:
  - wait: {{ ms: 4, parallelism: 1 }}
  - batch: {{ size: {batch} }}
"""


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


class Service:
    """A running `feedline up`, its jobs, and the recorded observations."""

    def __init__(self, folder):
        self.folder = folder
        output(FEEDLINE, "make-data", "table", folder / "table", "--rows", 20_000, "--format", "jsonl", "--shards", 8)
        arguments = ("--listen", "127.0.0.1:0", "--autoscale", "1..8", "--cores", 8, "--memory", "4GiB", "--auto-cache", "off")
        command = [str(part) for part in (FEEDLINE, "up", *arguments, "--index-dir", folder / "index")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = "http://" + self.process.stdout.readline().split()[-1]
        self.jobs, self.seen, self.start = {}, [], time.monotonic()

    def open(self, name, step_ms):
        file = self.folder / f"{name}.yaml"
        file.write_text(PIPELINE.format(name=name, data=self.folder / "table", batch=BATCH))
        arguments = ("--coordinator", self.url, "--step-ms", step_ms, "--epochs", 1000, "--audit", "--report", "json")
        command = [str(part) for part in (FEEDLINE, "run", file, *arguments)]
        self.jobs[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def close(self, name):
        """Interrupts a job and returns its report."""
        job = self.jobs.pop(name)
        job.send_signal(signal.SIGINT)
        return json.loads(job.communicate(timeout=60)[0].splitlines()[-1])

    def look(self):
        view = json.loads(output(FEEDLINE, "top", "--coordinator", self.url, "--format", "json"))
        of_jobs = lambda field: {job["name"].split("-")[0]: job[field] for job in view["jobs"]}
        return {"at": self.now(), "workers": len(view["workers"]), "rows": of_jobs("rows"), "fed": of_jobs("fed_fraction")}

    def watch(self, seconds):
        """Observes the service for a number of seconds, and returns the start time."""
        begun = self.now()
        while self.now() < begun + seconds:
            self.seen.append(self.look())
            time.sleep(LOOK_S)
        return begun

    def now(self):
        return time.monotonic() - self.start

    def end(self):
        for job in self.jobs.values():
            job.kill()
        self.process.terminate()
        self.process.wait(timeout=60)


def fed(look):
    """Returns the smallest fed fraction of all jobs in an observation, or 0 if a fed fraction is unknown."""
    return min((known or 0.0 for known in look["fed"].values()), default=0.0)


def since(seen, begun, end, good):
    """Returns the seconds from `begun` to the time from which all observations up to `end` are good, or None."""
    looks = [place for place, look in enumerate(seen) if begun <= look["at"] < end]
    last = next((place for place in reversed(looks) if not good(place)), None)
    if last is None:
        return 0.0 if looks else None
    return seen[last + 1]["at"] - begun if last < looks[-1] else None


def turns(counts):
    """Returns how often a sequence of numbers changes direction."""
    changes = [after > before for before, after in zip(counts, counts[1:]) if after != before]
    return sum(one != other for one, other in zip(changes, changes[1:]))


def of_one_job(service):
    """Runs a job with steps that become shorter and then longer again. Returns the times of both changes and the report."""
    service.open("steps", f"72,{BEFORE_S}:18,{BEFORE_S + MUCH_S}:72")
    opened = service.now()
    service.watch(BEFORE_S + MUCH_S + CALM_S)
    report = service.close("steps")
    # Steps start with the first batch.
    begun = opened + report["first_batch_seconds"]
    return begun + BEFORE_S, begun + BEFORE_S + MUCH_S, [report]


def of_two_jobs(service):
    """Runs one job during the whole scenario, and a second job during a part of it. Returns the times of the start and end of the second job and both reports."""
    service.open("steady", STEPS_MS["steady"])
    service.watch(BEFORE_S)
    service.open("surge", STEPS_MS["surge"])
    up = service.watch(MUCH_S)
    down = service.now()
    surge = service.close("surge")
    service.watch(min(CALM_S, SHORT_CALM_S))
    return up, down, [service.close("steady"), surge]


def timed(limits, title, seconds, allowed_s):
    """Formats a time for the table, marked if it exceeds its limit."""
    shown = "never" if seconds is None else f"{seconds:.1f} s"
    return shown + limits.mark(seconds is not None and seconds <= allowed_s, f"{title} is {shown}, more than {allowed_s} s")


def measure(limits, name, scenario):
    """Runs one scenario, prints its table row, and returns all observations."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(pathlib.Path(folder))
        try:
            up, down, reports = scenario(service)
        finally:
            service.end()
    seen, end = service.seen, service.seen[-1]["at"]
    count = lambda until: [look["workers"] for look in seen if look["at"] < until][-1]
    few, many, calm = count(up), count(down), [look["workers"] for look in seen if look["at"] >= down]
    fed_after = since(seen, up, down, lambda place: fed(seen[place]) >= FED)
    released_after = since(seen, down, end, lambda place: seen[place]["workers"] <= few)
    clean = all(each["audit"][name] == 0 for each in reports for name in ("missing", "repeated", "unexpected"))
    fed_cell = timed(limits, f"{name}: `fed after`", fed_after, FED_AFTER_S)
    released_cell = timed(limits, f"{name}: `released after`", released_after, RELEASED_AFTER_S)
    turned = turns(calm)
    turns_cell = str(turned) + limits.mark(turned == 0, f"{name}: `changes of direction at constant demand` is {turned} instead of 0")
    audit_cell = ("clean" if clean else "NOT CLEAN") + limits.mark(clean, f"{name}: the audit failed")
    stalls = " and ".join(f"{100 * each['stall_seconds'] / each['seconds']:.1f} %" for each in reports)
    cells = (name, f"{few}, {many}, {calm[-1]}", fed_cell, released_cell, turns_cell, stalls, audit_cell)
    print("| " + " | ".join(cells) + " |", flush=True)
    return {"up": up, "down": down, "seen": seen, "reports": reports}


def main():
    usage.check(__doc__)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make demand`")
    print("| demand | workers before, during, after | fed after | released after | changes of direction at constant demand | stall | audit |")
    print("|---|---|---|---|---|---|---|")
    limits = Limits()
    steps = measure(limits, "one job, four times the demand", of_one_job)
    jobs = measure(limits, "a second job with three times the demand", of_two_jobs)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "demand.json").write_text(json.dumps({"steps": steps, "jobs": jobs}))
    limits.end()


if __name__ == "__main__":
    main()
