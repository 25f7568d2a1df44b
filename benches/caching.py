#!/usr/bin/env python3
"""Measures the caches that the planner chooses for an image job, and the rate of each epoch.

Reads photographs as TFRecord on two cores, with a crop of 224 and batches of 128. Runs with and without caches alternate. There
are four pipelines:

- `decode_image` and a crop, with memory for all pixels, and with memory for JPEGs only
- a crop only, with memory for all pixels, and with memory for JPEGs only

The first Markdown table contains the rows per second of each epoch, as medians over ROUNDS (3), and the chosen caches.
ROUNDS=0 skips this table.

The second table compares first epochs in PAIRS (5) of runs. It contains the rate with caches divided by the rate without
caches, and the same ratio for rows per CPU second. Values are medians of the pairs with their ranges.

Exits with status 1 if a first epoch is more than 5 % slower with caches, or if the second epoch with memory for all pixels
is less than four times as fast as the first epoch. `make caching` builds Feedline in release mode and runs this script. The
photographs of FEEDLINE_SHARED_DATA are repeated to ROWS (12,000) rows.
"""

import contextlib
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import usage
from delivered import Delivered, Ended, free_port
from limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
PHOTOS = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data")) / "images"
FEEDLINE = ROOT / "target/release/feedline"
CORES = 2
ROUNDS = int(os.environ.get("ROUNDS", "3"))
PAIRS = int(os.environ.get("PAIRS", "5"))
ROWS = int(os.environ.get("ROWS", "12000"))
LOOK_SECONDS = 0.02
# Targets: the rate of a first epoch relative to a first epoch without caches, and the rate of a second epoch with pixels in memory
# relative to the first epoch.
FIRST, SECOND = 0.95, 4.0

PIPELINE = """
name: {name}
source: {{ url: "{data}/*.tfrecord", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:{before}
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 128 }}
"""
DECODE = "\n  - decode_image: { column: image }"
# Operators before the crop, memory budget (a third is for caches), and number of epochs. Workers index or decode images for a cache
# only if the remaining epochs save more time than this work takes.
SHAPES = {
    "decode_image, memory for pixels": (DECODE, "22GiB", 4),
    "decode_image, memory for JPEGs": (DECODE, "6GiB", 4),
    "crop only, memory for pixels": ("", "22GiB", 12),
    "crop only, memory for JPEGs": ("", "6GiB", 12),
}
# Pipelines with memory for decoded pixels.
DECODED = {"decode_image, memory for pixels", "crop only, memory for pixels"}


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def make_data(folder):
    """Writes the photographs as shards and returns the number of rows."""
    each = len(list(PHOTOS.iterdir()))
    for number in range(-(-ROWS // each)):
        part = folder / f"part-{number}"
        output(FEEDLINE, "make-data", "images", part, "--format", "tfrecord", "--shards", "1", "--from", PHOTOS)
        for shard in part.glob("*.tfrecord"):
            shard.rename(folder / f"{number:03}-{shard.name}")
    return each * -(-ROWS // each)


def command_of(file, scratch, shape, switch):
    _, memory, count = shape
    where = ("--index-dir", scratch / "index", "--cores", CORES, "--memory", memory, "--auto-cache", switch)
    return (FEEDLINE, "run", file, *where, "--epochs", count, "--no-digest", "--report", "json")


def epochs(file, scratch, shape, switch, rows):
    """Returns the rows per second of each epoch, and the output that was cached."""
    port, count = free_port(), shape[2]
    command = (*command_of(file, scratch, shape, switch), "--http", f"127.0.0.1:{port}")
    log = scratch / "log"
    with open(log, "w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=stderr, text=True, env=os.environ | {"FEEDLINE_LOG": "info"}
        )
        # The end of each epoch. The first epoch begins with its first batch.
        ends, seen, delivered = [], 0, Delivered(process, port)
        while process.poll() is None:
            with contextlib.suppress(Ended):
                seen = delivered.look() or seen
            now = time.monotonic()
            while seen > len(ends) * rows and len(ends) <= count:
                ends.append(now)
            time.sleep(LOOK_SECONDS)
        ends.append(time.monotonic())
    kept = re.findall(r"caches (nothing|the output of [^\n]*?)(?: job=|$)", log.read_text(encoding="utf-8"), re.MULTILINE)
    rates = [rows / (end - start) for start, end in zip(ends, ends[1:])]
    return rates[:count], kept[-1] if kept else "nothing"


def first_epoch(file, scratch, shape, switch, rows):
    """Returns the seconds and the CPU seconds of the process for the first epoch."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(output(*command_of(file, scratch, shape, switch), "--limit", rows).splitlines()[-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return report["seconds"], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_epochs(files, scratch, rows, limits):
    found = {}
    for turn in range(ROUNDS):
        for name, shape in SHAPES.items():
            for switch in ("on", "off") if turn % 2 else ("off", "on"):
                rates, kept = epochs(files[name], scratch, shape, switch, rows)
                found.setdefault((name, switch), []).append((rates, kept))
                print(f"{name}, {switch}: {[round(rate) for rate in rates]}, {kept}", file=sys.stderr)
    heads = ["images/s, 2 cores", "cached", "epoch 1", "epoch 2", "epoch 3", "last epoch", "last / first"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in SHAPES:
        medians = {}
        for switch in ("off", "on"):
            turns = found[(name, switch)]
            medians[switch] = [statistics.median(rates) for rates in zip(*(rates for rates, _ in turns))]
        kept = " / ".join(sorted({kept for _, kept in found[(name, "on")]}))
        first, second, last = medians["on"][0], medians["on"][1], medians["on"][-1]
        of_first = second / first
        is_fast = name not in DECODED or of_first >= SECOND
        marks = ["", limits.mark(is_fast, f"{name}: epoch 2 is {of_first:.2f} times as fast as epoch 1, below the goal of {SECOND:.0f}"), "", ""]
        rates = " | ".join(f"{rate:.0f}{mark}" for rate, mark in zip((*medians["on"][:3], last), marks))
        print(f"| {name} | {kept} | {rates} | {last / first:.2f} |")
        rates = " | ".join(f"{rate:.0f}" for rate in (*medians["off"][:3], medians["off"][-1]))
        print(f"| {name}, without caches | - | {rates} | {medians['off'][-1] / medians['off'][0]:.2f} |")


def print_first_epochs(files, scratch, rows, limits):
    print("| first epoch, with caches / without | rate | rows per CPU second |\n|---|---|---|")
    for name, shape in SHAPES.items():
        pairs = []
        for pair in range(PAIRS):
            order = ("on", "off") if pair % 2 else ("off", "on")
            took = {switch: first_epoch(files[name], scratch, shape, switch, rows) for switch in order}
            pairs.append([without / with_caches for with_caches, without in zip(took["on"], took["off"])])
            print(f"{name}: {took}", file=sys.stderr)
        ratios = [sorted(ratio) for ratio in zip(*pairs)]
        rate = statistics.median(ratios[0])
        mark = limits.mark(rate >= FIRST, f"{name}: the rate of epoch 1 is {rate:.3f} of the rate without caches, below the goal of {FIRST}")
        texts = [f"{statistics.median(ratio):.3f} ({ratio[0]:.3f} to {ratio[-1]:.3f})" for ratio in ratios]
        print(f"| {name} | {texts[0]}{mark} | {texts[1]} |")


def main():
    usage.check(__doc__)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make caching`")
    if not PHOTOS.is_dir():
        sys.exit(f"skipped: no photographs in {PHOTOS} (set FEEDLINE_SHARED_DATA)")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        (scratch / "data").mkdir()
        rows = make_data(scratch / "data")
        files = {}
        for name, (before, _, _) in SHAPES.items():
            files[name] = scratch / f"{len(files)}.yaml"
            files[name].write_text(PIPELINE.format(name=f"shape-{len(files)}", data=scratch / "data", before=before), encoding="utf-8")
            output(FEEDLINE, "index", files[name], "--index-dir", scratch / "index")
        limits = Limits()
        if ROUNDS > 0:
            print_epochs(files, scratch, rows, limits)
        if PAIRS > 0:
            print_first_epochs(files, scratch, rows, limits)
    limits.end()


if __name__ == "__main__":
    main()
