#!/usr/bin/env python3
"""Measures how `feedline up --autoscale 1..4` bounds the lag of a topic whose producer becomes six times as fast.

Each worker waits 4 ms for a row and computes one row at a time. A worker therefore computes 250 rows/s regardless of the cores. The
producer writes half as many records per second for the first 30 s, and then three times as many as one worker computes. One real broker
runs on the same machine, and one consumer that never waits receives the batches.

Prints a Markdown table with these results:

- the time from the increase until the lag falls: the largest lag is over
- the time from the increase until the lag stays below what the producer writes in 5 s
- percentiles of the age of a record when it is delivered, over the last minute, after the lag is caught up

Writes observations of every half second to target/bench/topic-lag.json. Exits with status 1 if a target is missed, or if records are lost
or repeated. `make topic-lag` builds Feedline in release mode and runs this script.

    benches/topic_lag.py
"""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import usage
from limits import Limits

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/kafka"))
os.environ.setdefault("FEEDLINE_BINARY", str(ROOT / "target/release/feedline"))
# The consumer receives so few rows that a debug build is fast enough.
LIBRARY = Path(os.environ.get("FEEDLINE_LIBRARY", ROOT / "target/debug/libfeedline_native.so"))

from brokers import Brokers, missing_programs  # noqa: E402
from jobs import BINARY, Jobs  # noqa: E402
from topics import Topics, send  # noqa: E402

RESULTS = ROOT / "target/bench"
FOLLOWER = ROOT / "tests/kafka/follower.py"
PARTITIONS = 4
BATCH = 20
WAIT_MS = 4
WORKER_RATE = 1000 // WAIT_MS
# Records per second before and after the increase, and the seconds of both parts.
SLOW, FAST = WORKER_RATE // 2, 3 * WORKER_RATE
SLOW_S, FAST_S = 30, 150
LOOK_S = 0.5
# Ages of records are measured over these last seconds.
STEADY_S = 60
# Targets: seconds from the increase until the lag falls, and until it stays below the records of `BACKLOG_S`; age of a record.
FALLS_S, CAUGHT_UP_S, BACKLOG_S, P99_AGE_S = 15, 60, 5, 2


class Production(threading.Thread):
    """Writes records at one rate and then at another. `count` is the number of records that the broker has stored."""

    def __init__(self, topics, name):
        super().__init__(daemon=True)
        self.producer, self.name = topics.producer(linger_ms=5), name
        self.sent, self.count, self.rate = 0, 0, SLOW
        self.is_ending = threading.Event()

    def run(self):
        owed, last = 0.0, time.monotonic()
        while not self.is_ending.wait(0.01):
            now = time.monotonic()
            owed, last = owed + (now - last) * self.rate, now
            while owed >= 1:
                send(self.producer, self.name, json.dumps({"n": self.sent}), self.sent % PARTITIONS, on_delivery=self.on_delivery)
                self.sent, owed = self.sent + 1, owed - 1
            self.producer.poll(0)
        self.producer.flush(60)

    def on_delivery(self, error, _):
        assert error is None, error
        self.count += 1


class Followed:
    """The batches that the consumer has received, read from the file that it appends to."""

    def __init__(self, path):
        self.path, self.place, self.rows, self.ages, self.offsets = path, 0, 0, [], []

    def read(self):
        if self.path.is_file():
            with self.path.open() as lines:
                lines.seek(self.place)
                for line in iter(lines.readline, ""):
                    if not line.endswith("\n"):
                        break
                    self.place += len(line)
                    batch = json.loads(line)
                    self.rows += len(batch["rows"])
                    self.offsets += map(tuple, batch["rows"])
                    self.ages.append((time.monotonic(), batch["age_ms"] / 1000))
        return self.rows


def package(folder):
    """Returns the folder of the Python package."""
    shutil.copytree(ROOT / "client/python/feedline", folder / "feedline")
    shutil.copy(LIBRARY, folder / "feedline/_native.abi3.so")
    return folder


def watch(folder, brokers, jobs):
    """Runs the producer and the job. Returns the observations, the time of the increase, and what the consumer received."""
    topics = Topics(brokers.servers())
    topics.create("lag", partitions=PARTITIONS)
    log = folder / "service.log"
    up = jobs.start(str(BINARY), "up", "--listen", "127.0.0.1:0", "--autoscale", "1..4", "--cores", "4", "--memory", "2GiB", "--auto-cache", "off", log=log)
    url = "http://" + up.stdout.readline().split()[-1]
    out = folder / "batches"
    settings = {"coordinator": url, "url": brokers.url(), "topics": "lag", "out": str(out), "batch": BATCH, "wait_ms": WAIT_MS}
    production, followed = Production(topics, "lag"), Followed(out)
    production.start()
    environment = {**os.environ, "PYTHONPATH": str(package(folder / "package"))}
    jobs.start(sys.executable, "-B", str(FOLLOWER), json.dumps(settings), env=environment, log=log)
    seen, start, increase = [], time.monotonic(), None
    while (now := time.monotonic() - start) < SLOW_S + FAST_S:
        if increase is None and now >= SLOW_S:
            production.rate, increase = FAST, time.monotonic() - start
        view = Jobs.finish(jobs.start(str(BINARY), "top", "--coordinator", url, "--format", "json")).report
        stored = production.count
        seen.append({"at": time.monotonic() - start, "workers": len(view["workers"]), "lag": stored - followed.read()})
        time.sleep(LOOK_S)
    end = time.monotonic()
    production.is_ending.set()
    production.join()
    ages = sorted(age for at, age in followed.ages if at > end - STEADY_S)
    return seen, increase, production.count, followed, ages


def last_from(seen, increase, is_good):
    """Returns the seconds from the increase until all later observations are good, or None."""
    bad = [look["at"] for look in seen if look["at"] > increase and not is_good(look)]
    if not bad:
        return 0.0
    later = [look["at"] for look in seen if look["at"] > bad[-1]]
    return later[0] - increase if later else None


def main():
    usage.check(__doc__)
    if missing := missing_programs():
        sys.exit(f"the benchmark needs {missing}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        brokers, jobs = Brokers(folder / "kafka"), Jobs(folder)
        try:
            brokers.start()
            seen, increase, stored, followed, ages = watch(folder, brokers, jobs)
            wait_until_delivered(followed, stored)
        finally:
            jobs.stop()
            brokers.stop()
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "topic-lag.json").write_text(json.dumps({"increase": increase, "seen": seen, "ages": ages}))
    report(seen, increase, stored, followed, ages)


def wait_until_delivered(followed, stored):
    """Waits until all records are delivered, except those that do not fill a batch."""
    end = time.monotonic() + 30
    while followed.read() <= stored - BATCH and time.monotonic() < end:
        time.sleep(0.1)


def report(seen, increase, stored, followed, ages):
    limits = Limits()
    peak = max((look for look in seen if look["at"] > increase), key=lambda look: look["lag"])
    falls = peak["at"] - increase
    caught_up = last_from(seen, increase, lambda look: look["lag"] < BACKLOG_S * FAST)
    p50, p99 = (ages[int(share * (len(ages) - 1))] for share in (0.5, 0.99))
    distinct = set(followed.offsets)
    # The records before the last delivered one of each partition, and the records after it that would fill a batch.
    ends = {partition: offset + 1 for partition, offset in sorted(distinct)}
    lost = sum(ends.values()) - len(distinct) + max(stored - sum(ends.values()) - BATCH + 1, 0)
    repeated = len(followed.offsets) - len(distinct)
    before = [look["workers"] for look in seen if look["at"] < increase][-1]

    def row(what, value, unit, target):
        shown = "never" if value is None else f"{value:.2f} {unit}"
        mark = limits.mark(value is not None and value <= target, f"{what} is {shown}, more than {target} {unit}")
        print(f"| {what} | {target} {unit} | {shown}{mark} |")

    print(f"{SLOW} records/s, then {FAST}; {before} to {max(look['workers'] for look in seen)} workers of {WORKER_RATE} rows/s")
    print("\n| what | target | result |\n|---|---|---|")
    row("increase to the largest lag", falls, "s", FALLS_S)
    row(f"increase to a lag below {BACKLOG_S} s of data", caught_up, "s", CAUGHT_UP_S)
    print(f"| largest lag | | {peak['lag']} records, {peak['lag'] / FAST:.1f} s of data |")
    print(f"| age of the newest record of a batch, p50 | | {p50:.2f} s |")
    row("age of the newest record of a batch, p99", p99, "s", P99_AGE_S)
    row("lost records", lost, "", 0)
    row("repeated records", repeated, "", 0)
    limits.end()


if __name__ == "__main__":
    main()
