#!/usr/bin/env python3
"""Scaling on demand with real processes: `feedline up --autoscale 1..8` while demand goes from 1x to 4x and back.

Rows wait 4 ms, one at a time on each worker, so a worker gives 250 rows/s however many run on this machine. One job's
consumer takes 20 rows in 72 ms all the time; a second one takes three times as much between the steps. Prints a Markdown
table: how long after the step up both jobs are fed to 95 % from then on, as the coordinator sees it over the last seconds, when the workers are as few as
before after the step down, and how often their number changes its direction in the minutes after. Leaves what was seen
each half second in target/bench/demand.json. `make demand` builds in release mode and calls this.

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

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
RESULTS = ROOT / "target/bench"
# Seconds with one job, with both, and after the second.
BEFORE_S, BOTH_S, CALM_S = 60, 120, int(os.environ.get("CALM_S", "330"))
LOOK_S = 0.5
BATCH = 20
STEPS_MS = {"steady": 72, "surge": 24}
FED = 0.95
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
    """`feedline up`, its jobs, and what was seen of them."""

    def __init__(self, folder):
        self.folder = folder
        output(FEEDLINE, "make-data", "table", folder / "table", "--rows", 20_000, "--format", "jsonl", "--shards", 8)
        arguments = ("--listen", "127.0.0.1:0", "--autoscale", "1..8", "--cores", 8, "--memory", "4GiB", "--auto-cache", "off")
        command = [str(part) for part in (FEEDLINE, "up", *arguments, "--index-dir", folder / "index")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = "http://" + self.process.stdout.readline().split()[-1]
        self.jobs, self.seen, self.start = {}, [], time.monotonic()

    def open(self, name):
        file = self.folder / f"{name}.yaml"
        file.write_text(PIPELINE.format(name=name, data=self.folder / "table", batch=BATCH))
        arguments = ("--coordinator", self.url, "--step-ms", STEPS_MS[name], "--epochs", 1000, "--audit", "--report", "json")
        command = [str(part) for part in (FEEDLINE, "run", file, *arguments)]
        self.jobs[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def close(self, name):
        """Interrupts a job; its report."""
        job = self.jobs.pop(name)
        job.send_signal(signal.SIGINT)
        return json.loads(job.communicate(timeout=60)[0].splitlines()[-1])

    def watch(self, seconds):
        """Looks at the service for so long; when that began."""
        begun = self.now()
        while self.now() < begun + seconds:
            view = json.loads(output(FEEDLINE, "top", "--coordinator", self.url, "--format", "json"))
            of_jobs = lambda field: {job["name"].split("-")[0]: job[field] for job in view["jobs"]}
            look = {"at": self.now(), "workers": len(view["workers"])}
            self.seen.append(look | {"rows": of_jobs("rows"), "fed": of_jobs("fed_fraction")})
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
    """How well the least fed job was fed then, by what its consumer reports of its steps and stalls; 0 before that is known."""
    return min((known or 0.0 for known in look["fed"].values()), default=0.0)


def since(seen, begun, end, good):
    """Seconds from `begun` to the first look from which on all are good until `end`; None where there is none."""
    looks = [place for place, look in enumerate(seen) if begun <= look["at"] < end]
    last = next((place for place in reversed(looks) if not good(place)), None)
    if last is None:
        return 0.0
    return seen[last + 1]["at"] - begun if last < looks[-1] else None


def turns(counts):
    """How often a number changes its direction."""
    changes = [after > before for before, after in zip(counts, counts[1:]) if after != before]
    return sum(one != other for one, other in zip(changes, changes[1:]))


def main():
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} is missing: `make demand` builds it")
    with tempfile.TemporaryDirectory() as folder:
        service = Service(pathlib.Path(folder))
        try:
            service.open("steady")
            service.watch(BEFORE_S)
            few = service.seen[-1]["workers"]
            service.open("surge")
            up = service.watch(BOTH_S)
            many = service.seen[-1]["workers"]
            down = service.now()
            reports = {"surge": service.close("surge")}
            service.watch(CALM_S)
            reports["steady"] = service.close("steady")
        finally:
            service.end()
    seen, end = service.seen, service.seen[-1]["at"]
    fed_after = since(seen, up, down, lambda place: fed(seen[place]) >= FED)
    released_after = since(seen, down, end, lambda place: seen[place]["workers"] <= few)
    calm = [look["workers"] for look in seen if look["at"] >= down]
    clean = all(each["audit"]["missing"] == each["audit"]["repeated"] == 0 for each in reports.values())
    show = lambda seconds: "never" if seconds is None else f"{seconds:.1f} s"
    print("| workers before, with both, after | fed after | released after | turns in the calm | stall of steady, surge | audit |")
    print("|---|---|---|---|---|---|")
    stalls = " and ".join(f"{100 * reports[name]['stall_seconds'] / reports[name]['seconds']:.1f} %" for name in STEPS_MS)
    print(f"| {few}, {many}, {calm[-1]} | {show(fed_after)} | {show(released_after)} | {turns(calm)} | {stalls} | {'clean' if clean else 'NOT CLEAN'} |")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "demand.json").write_text(json.dumps({"up": up, "down": down, "seen": seen, "reports": reports}))


if __name__ == "__main__":
    main()
