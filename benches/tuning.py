#!/usr/bin/env python3
"""Measures the five pipelines of Plumber's evaluation with naive, tuned and best settings, and with tf.data.

Measures the following rates of each pipeline on two cores, in alternating rounds:

- naive: the rate on one core, with `parallelism: 1` for every operator in the file
- tuned: the rate without fixed settings, measured for --seconds, beginning --after seconds into the run
- best: the rate with the best settings that a user can fix: the parallelism of operators, cores and workers. A search runs
  all settings of a grid, and the two fastest settings are measured again in the rounds
- bound: the bound of `feedline explain` for the tuned job
- tf.data: the rate of tf.data with AUTOTUNE on the same rows, in a window of the same length

Exits with status 1 if a tuned rate is below 95 % of the best rate. Repeats a round if other programs used more than 8 % of
the cores. Prints a Markdown table of medians, and the output of `feedline explain` for the naive file.

Rows, indexes and results of the search are in target/tuning, and TensorFlow is in target/peers. benches/tuning/shapes.py
lists the differences from Plumber's pipelines. `make tuning` builds Feedline in release mode and runs this script.

    benches/tuning.py --shapes resnet,gnmt --rounds 5
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "tuning"), str(HERE / "peers")]

import environments
import saved_rounds
import paths
import quiet
import rows
import search
from limits import Limits
from paths import Failed, output
from running import CORES, NAIVE, TUNED, Feedline, Setting
from shapes import SHAPES

# Importing TensorFlow takes several seconds.
PEER_START_SECONDS = 60
# Minimum time in seconds for AUTOTUNE before the measured window.
PEER_AFTER_SECONDS = 10
# Target for the tuned rate relative to the best rate.
OF_BEST = 0.95
HEADS = ["shape, rows/s", "naive", "tuned", "best", "tuned / best", "bound", "tuned / bound", "tf.data AUTOTUNE", "tuned / tf.data"]


class Measured:
    """The rounds of one pipeline."""

    def __init__(self, shape, given):
        self.shape, self.given = shape, given
        self.feedline = Feedline(given.binary)
        self.fastest, self.binds = [], []
        self.rates = {}

    def prepare(self):
        rows.ready(self.shape.rows, self.given.binary)
        self.feedline.prepare(self.shape)
        saved_rounds.begin(self.shape, self.options(), self.given.go_on)
        self.fastest = search.finalists(self.shape, self.feedline, say)

    def options(self):
        """Returns the options that affect a result, in addition to the machine."""
        binary = self.given.binary.stat()
        windows = (self.given.after, self.given.seconds, self.given.explain_seconds)
        return {"binary": (binary.st_size, binary.st_mtime_ns), "windows": windows}

    def round(self, number):
        """Runs one round of each setting, in a different order each time."""
        turns = {"naive": lambda: self.rate(NAIVE), "tuned": lambda: self.rate(TUNED), "bound": self.bound}
        turns |= {setting: lambda setting=setting: self.rate(setting) for setting in self.fastest}
        if not self.given.skip_peers:
            turns["peer"] = self.peer
        names = list(turns)
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            title = name.title() if isinstance(name, Setting) else name
            rate = saved_rounds.SavedRounds(self.shape, f"round{number + 1}").get(title, turns[name])
            self.rates.setdefault(name, []).append(rate)
            say(f"  {self.shape.title}, {title}: {rate:.0f}")

    def rate(self, setting):
        return self.feedline.rate(self.shape, setting, self.given.after, self.given.seconds)

    def bound(self):
        def turn():
            watch = quiet.Watch()
            found = self.feedline.explain(self.shape, TUNED, self.given.explain_seconds)
            return found["bound_rows_per_s"], watch.others()

        return quiet.undisturbed(turn, f"{self.shape.title}, bound")

    def peer(self):
        runner = (environments.python("tensorflow"), HERE / "tuning/tfdata_shapes.py", "--folder", rows.FOLDER)
        after = max(self.given.after, PEER_AFTER_SECONDS)
        window = ("--after", after, "--seconds", self.given.seconds)
        command = (*runner, "--shape", self.shape.key, "--cores", CORES, *window)
        seconds = after + self.given.seconds + PEER_START_SECONDS

        def turn():
            found = json.loads(output(*command, seconds=seconds).splitlines()[-1])
            return found["rate"], found["others"]

        return quiet.undisturbed(turn, f"{self.shape.title}, tf.data")

    def explain_naive(self):
        """Adds the bottleneck of the naive file on the available cores. If no limit in the file is the bottleneck, repeats the run on twice as many cores."""
        for cores in (CORES, 2 * CORES):
            setting = dataclasses.replace(NAIVE, cores=cores)
            found = self.feedline.explain(self.shape, setting, self.given.explain_seconds)["bottleneck"]
            self.binds.append(f"on {cores} cores {found['kind']} of {found['operator']}: {found['why']}")
            if found["kind"] in ("sequential", "latency"):
                return

    def best(self):
        return max(self.fastest, key=lambda setting: statistics.median(self.rates[setting]))

    def row(self, limits):
        """Returns the cells of the table. A ratio is the median over pairs of consecutive rounds."""
        best = self.best()
        cells = [f"{self.shape.title}, batch {self.shape.batch}", *map(self.spread, ("naive", "tuned", best))]
        of_best = self.ratio(best)
        mark = limits.mark(of_best >= OF_BEST, f"{self.shape.title}: the tuned rate is {of_best:.2f} of the best rate, below the goal of {OF_BEST}")
        cells += [f"{of_best:.2f}{mark}", self.spread("bound"), f"{self.ratio('bound'):.2f}"]
        return [*cells, *((self.spread("peer"), f"{self.ratio('peer'):.2f}") if "peer" in self.rates else ("–", "–"))]

    def spread(self, name):
        rates = self.rates[name]
        digits = 0 if min(rates) >= 100 else 1
        low, median, high = (f"{each:.{digits}f}" for each in (min(rates), statistics.median(rates), max(rates)))
        return f"{median} ({low} to {high})"

    def ratio(self, name):
        return statistics.median(ours / other for ours, other in zip(self.rates["tuned"], self.rates[name]))


def say(text):
    print(text, file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        description="Compares tuned pipelines with naive ones, the best settings and tf.data.",
        epilog="The exit status is 1 if a tuned rate is below 95 % of the best rate.",
    )
    parser.add_argument("--binary", type=pathlib.Path, default=paths.FEEDLINE, help="release binary of Feedline [default: %(default)s]")
    parser.add_argument("--shapes", default=",".join(SHAPES), metavar="NAME,...", help="pipelines to measure [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each setting; 0 only runs the search [default: %(default)s]")
    parser.add_argument("--after", type=float, default=5, help="seconds from the start to the measured window, at most 20 [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=5, help="seconds of a measured window [default: %(default)s]")
    parser.add_argument("--explain-seconds", type=int, default=5, help="seconds of a trace [default: %(default)s]")
    parser.add_argument("--go-on", action="store_true", help="reuse the rounds of an earlier run with the same binary and options, and run only the missing rounds")
    parser.add_argument("--skip-peers", action="store_true", help="do not measure tf.data")
    given = parser.parse_args()
    unknown = set(given.shapes.split(",")) - SHAPES.keys()
    if unknown:
        parser.error(f"unknown pipeline {', '.join(sorted(unknown))}; choose from: {' '.join(SHAPES)}")
    if not 0 < given.after <= 20:
        parser.error("--after must be above 0 and at most 20")
    return given


def main():
    given = arguments()
    if not given.binary.exists():
        sys.exit(f"{given.binary} does not exist: build it with `make tuning`, or set --binary")
    if not given.skip_peers:
        try:
            environments.ensure("tensorflow")
        except Failed as failure:
            say(f"skipped tf.data: {failure}")
            given.skip_peers = True
    # Exit normally on SIGTERM, so that child processes are cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # All child processes inherit these cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    done = []
    for key in given.shapes.split(","):
        measured = Measured(SHAPES[key], given)
        try:
            measured.prepare()
            for number in range(given.rounds):
                measured.round(number)
            if given.rounds:
                measured.explain_naive()
                done.append(measured)
        except Failed as failure:
            say(f"skipped: {SHAPES[key].title}: {failure}")
    if done:
        print_all(done)


def print_all(done):
    limits = Limits()
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for measured in done:
        print(f"| {' | '.join(measured.row(limits))} |")
    print("\nBest settings:\n")
    for measured in done:
        print(f"- {measured.shape.title}: {measured.best().title()}")
    print("\nBottlenecks according to `feedline explain` with `parallelism: 1` for every operator:\n")
    for measured in done:
        print(f"- {measured.shape.title}: {'; '.join(measured.binds)}")
    limits.end()


if __name__ == "__main__":
    main()
