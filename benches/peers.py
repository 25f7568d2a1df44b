#!/usr/bin/env python3
"""Compares Feedline with other tools on the same job, rows and cores. Each tool is configured as its documentation recommends.

There are two jobs:

- ImageNet photographs with random_resized_crop 224, a flip and batches of 128 as uint8
- sentence pairs with a tokenizer, 64 tokens per row and batches of 512

Installs the tools into virtual environments and prepares the data under target/peers. Runs one tool at a time and measures
its first epoch. Prints a Markdown table for each job, and writes the chart and the results to target/bench. `make bench`
builds Feedline in release mode and runs this script.

The rate is measured from the first batch to the last batch. The time to the first batch is a separate column. Directly
before each run of another tool, Feedline runs the same job in one process. The ratio to Feedline compares these two runs,
so that changes in the speed of a shared machine affect both. benches/peers/contenders.py lists the tools.

    TURNS=1 benches/peers.py --only tfdata,feedline
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import environments
import ours
import prepare
from contenders import CONTENDERS, chosen
from paths import FEEDLINE, HERE, ROOT, Failed, output

CORES = 2
TURNS = int(os.environ.get("TURNS", "3"))
TURN_SECONDS = 900
RESULTS = ROOT / "target/bench"


@dataclasses.dataclass(frozen=True)
class Job:
    title: str
    unit: str
    # Keys of the contenders that all other contenders are compared with.
    feedline: str
    tfdata: str


JOBS = {
    "images": Job("photographs: crop 224, flip, batch 128", "images/s", "feedline", "tfdata"),
    "text": Job("sentence pairs: tokenise, 64 tokens, batch 512", "pairs/s", "feedline-text", "tfdata-text"),
}


class Result:
    """The results of a contender's rounds."""

    def __init__(self, contender):
        self.contender = contender
        self.reference = CONTENDERS[JOBS[contender.job].feedline]
        self.rates, self.of_feedline, self.first_batches = [], [], []
        self.version = self.failed = ""

    def attempt(self, action):
        """Runs a step for a contender, and excludes the contender if the step fails."""
        if self.failed:
            return
        try:
            action()
        except Failed as failure:
            self.failed = str(failure)
            say(f"  {self.contender.title}: failed: {failure}")

    def prepare(self):
        prepare.ready(self.reference)
        prepare.ready(self.contender)

    def turn(self):
        """Runs one round of a contender, directly after a run of Feedline for comparison."""
        is_reference = self.contender == self.reference
        before = None if is_reference else ours.run(self.reference, CORES)["rate"]
        measured = ours.run(self.contender, CORES) if self.contender.is_ours else run_peer(self.contender)
        self.version = measured["version"]
        self.rates.append(measured["rate"])
        self.of_feedline.append(1 if is_reference else measured["rate"] / before)
        if measured["first_batch_seconds"] is not None:
            self.first_batches.append(measured["first_batch_seconds"])
        say(f"  {self.contender.title}: {self.rates[-1]:.0f} rows/s, {self.of_feedline[-1]:.2f} relative to Feedline")

    def row(self):
        """Returns the values for the table and the chart."""
        row = {"title": self.contender.title, "reads": self.contender.reads, "kind": self.contender.kind}
        row |= {"key": self.contender.key, "version": self.version, "failed": self.failed}
        return row | {
            "median": median(self.rates),
            "low": min(self.rates, default=None),
            "high": max(self.rates, default=None),
            "of_feedline": median(self.of_feedline),
            "first_batch_seconds": median(self.first_batches),
        }


def median(numbers):
    return statistics.median(numbers) if numbers else None


def say(text):
    print(text, file=sys.stderr, flush=True)


def run_peer(contender):
    command = [*prepare.command(contender), "--cores", CORES]
    return json.loads(output(*command, seconds=TURN_SECONDS).splitlines()[-1])


def print_table(job, rows):
    """Prints the contenders in the order of their rate. Failed contenders come last with their error."""
    tfdata = next((row["median"] for row in rows if row["key"] == job.tfdata), None)
    print(f"\n| {job.title}, {CORES} cores | reads | {job.unit} | range of {TURNS} | relative to tf.data | relative to Feedline | first batch |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        name = f"**{row['title']}**" if row["kind"] == "ours" else row["title"]
        if row["median"] is None:
            print(f"| {name} | {row['reads']} | failed: {row['failed']} | | | | |")
            continue
        of_tfdata = f"{row['median'] / tfdata:.2f}" if tfdata else "–"
        if row["failed"]:
            name += f" (a later round failed: {row['failed']})"
        first = f"{row['first_batch_seconds']:.2f} s" if row["first_batch_seconds"] is not None else "–"
        print(
            f"| {name} | {row['reads']} | {row['median']:.0f} | {row['low']:.0f} to {row['high']:.0f}"
            f" | {of_tfdata} | {row['of_feedline']:.2f} | {first} |"
        )


def draw():
    try:
        environments.ensure("chart")
        output(environments.python("chart"), HERE / "chart.py", RESULTS / "peers.json", RESULTS / "peers")
        say(f"chart: {RESULTS / 'peers.png'}")
    except Failed as failure:
        say(f"cannot draw the chart: {failure}")


def main():
    parser = argparse.ArgumentParser(description="Compares Feedline with other tools. The environment variable TURNS sets the number of rounds [default: 3].")
    parser.add_argument("--only", default="", metavar="NAME,...", help="keys of the contenders, such as tfdata,feedline [default: all]")
    contenders = chosen(parser.parse_args().only)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make bench`, or set FEEDLINE_BIN")
    results = [Result(contender) for contender in contenders]
    for result in results:
        result.attempt(result.prepare)
    # All child processes inherit these cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    for number in range(TURNS):
        say(f"round {number + 1} of {TURNS}")
        for result in results:
            result.attempt(result.turn)
    tables = []
    for name, job in JOBS.items():
        rows = [result.row() for result in results if result.contender.job == name]
        rows.sort(key=lambda row: -(row["median"] or 0))
        if rows:
            print_table(job, rows)
            tables.append({"title": job.title, "unit": job.unit, "rows": rows})
    versions = dict.fromkeys(part for result in results if result.version for part in result.version.split(", "))
    print(f"\nVersions: {', '.join(versions)}.")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "peers.json").write_text(json.dumps({"cores": CORES, "turns": TURNS, "jobs": tables}, indent=1))
    draw()


if __name__ == "__main__":
    main()
