#!/usr/bin/env python3
"""Measures what a row that kills its workers costs the job of another tenant.

Starts a coordinator and WORKERS (5) workers. The job of the first tenant has a Python function that kills its worker at one row. The
job of the second tenant reads the same table; its consumer spends 40 ms on each batch. The Markdown table contains the number of
lost workers, the seconds until the first job failed, and the rate of the second job alone and beside the first one, in ROUNDS (3)
rounds.

Exits with status 1 if the first job does not fail, if more than four workers are lost, or if the second job has less than 0.9 of its
rate. Needs target/venv, which `make test` prepares. `make crashing-row` builds Feedline in release mode and runs this script.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import usage
from limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE", ROOT / "target/release/feedline"))
PYTHON = pathlib.Path(os.environ.get("PYTHON", ROOT / "target/venv/bin/python"))
WORKERS = int(os.environ.get("WORKERS", "5"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
ROWS, EPOCHS, STEP_MS = 400, 40, 40
MAX_LOST, MIN_RATE = 4, 0.9

FUNCTIONS = """
import os, signal, time

def crashes(batch):
    if 77 in batch["id"]:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    return {"length": batch["id"]}

def works(batch):
    return {"length": batch["id"]}
"""
PIPELINE = """
name: {function}
source: {{ url: "{table}/*", format: jsonl }}
seed: 5
operators:
  - map: {{ function: "rows:{function}", path: ["{scratch}"], outputs: {{ length: {{ dtype: int64 }} }} }}
  - batch: {{ size: 16 }}
"""


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


class Cluster:
    """A coordinator, and workers that call Python functions."""

    def __init__(self, scratch):
        self.scratch, self.table = scratch, scratch / "table"
        output(FEEDLINE, "make-data", "table", self.table, "--format", "jsonl", "--rows", ROWS, "--shards", 4)
        output(FEEDLINE, "keys", "new", scratch / "keys")
        (scratch / "rows.py").write_text(FUNCTIONS, encoding="utf-8")
        secret = scratch / "keys/secret"
        for tenant in ("first", "second"):
            token = output(FEEDLINE, "keys", "token", "--secret-file", secret, "--scope", "submit,consume", "--tenant", tenant)
            file = scratch / f"{tenant}.token"
            file.touch(mode=0o600)
            file.write_text(token, encoding="utf-8")
        allowed = ("--allow-url", self.table)
        self.coordinator, address = self.start("coordinator", "--data-dir", scratch / "log", "--secret-file", secret, *allowed)
        self.url = f"http://{address}"
        functions = ("--functions", "on", "--python", PYTHON, "--cores", 1, "--memory", "256MiB")
        token = ("--token-file", scratch / "keys/worker.token")
        started = [self.start("worker", "--coordinator", self.url, *functions, *token, *allowed) for _ in range(WORKERS)]
        self.workers = [worker for worker, _ in started]

    @staticmethod
    def start(role, *arguments):
        command = [str(part) for part in (FEEDLINE, role, "--listen", "127.0.0.1:0", *arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return process, process.stdout.readline().split()[-1]

    def run(self, tenant, function, *arguments):
        file = self.scratch / f"{function}.yaml"
        file.write_text(PIPELINE.format(function=function, table=self.table, scratch=self.scratch), encoding="utf-8")
        access = ("--coordinator", self.url, "--token-file", self.scratch / f"{tenant}.token")
        command = (FEEDLINE, "run", file, *access, "--virtual-consumers", 2, "--report", "json", *arguments)
        return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def lost_workers(self):
        return sum(worker.poll() is not None for worker in self.workers)

    def end(self):
        for process in (*self.workers, self.coordinator):
            process.kill()
            process.wait()


def rate(run):
    report = json.loads(run.communicate()[0].splitlines()[-1])
    return report["rows"] / report["seconds"]


def measure(scratch):
    """Returns the lost workers, the seconds until the job failed, its message, and the two rates of the other job."""
    cluster = Cluster(scratch)
    try:
        flags = ("--epochs", EPOCHS, "--step-ms", STEP_MS)
        alone = rate(cluster.run("second", "works", *flags))
        beside = cluster.run("second", "works", *flags)
        begun = time.monotonic()
        crashing = cluster.run("first", "crashes")
        message = crashing.communicate()[1].strip().splitlines()[-1]
        seconds = time.monotonic() - begun
        if crashing.returncode == 0 or beside.poll() is not None:
            sys.exit("the first job did not fail while the second one was running")
        return cluster.lost_workers(), seconds, message, alone, rate(beside)
    finally:
        cluster.end()


def main():
    usage.check(__doc__)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make crashing-row`")
    if not PYTHON.exists():
        sys.exit(f"skipped: {PYTHON} does not exist (`make test` prepares it)")
    limits, found = Limits(), []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(pathlib.Path(folder)))
            print(found[-1], file=sys.stderr)
    lost, seconds = max(turn[0] for turn in found), statistics.median(turn[1] for turn in found)
    ratio = statistics.median(turn[4] / turn[3] for turn in found)
    marks = limits.mark(lost <= MAX_LOST, f"{lost} workers were lost"), limits.mark(ratio >= MIN_RATE, f"{ratio:.2f} of the rate")
    alone, beside = (statistics.median(turn[place] for turn in found) for place in (3, 4))
    print("| lost workers, maximum | job failed after | other job alone | beside it | ratio |\n|---|---|---|---|---|")
    print(f"| {lost}{marks[0]} | {seconds:.1f} s | {alone:.0f} rows/s | {beside:.0f} rows/s | {ratio:.2f}{marks[1]} |")
    limits.end()


if __name__ == "__main__":
    main()
