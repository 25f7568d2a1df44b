#!/usr/bin/env python3
"""Caching: what the model keeps of an image job, and what each epoch then gives.

Runs photographs as TFRecord through a crop of 224 and a batch of 128 on two cores, epoch by epoch, with caches left to the
model and with none, in turns:

- `decode_image` before the crop, with room for all pixels: decoded pixels are kept in memory;
- the crop alone, with room for all pixels, and with room for JPEGs only.

Prints a Markdown table of rows per second for each epoch, medians over ROUNDS (3), and what was kept; and one of first epochs alone,
PAIRS (5) of them with caches and without, in turns: the rate with caches over that without, and the same of rows per CPU second, medians and
ranges of the pairs. Exits with status 1 where a first epoch is more than 5 % slower than without caches, or, with room for all pixels,
the second is not four times as fast as the first. `make caching` builds in release mode and calls this. Photographs are taken from
FEEDLINE_SHARED_DATA, again and again until there are ROWS (12,000). ROUNDS=0 measures first epochs only.
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
# The least that a first epoch may give of that without caches, and a second of the first from decoded pixels in memory.
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
# What stands before the crop; the memory, of which a third is for caches; and epochs: forms other than the row itself are made when
# the epochs to come repay it.
SHAPES = {
    "decode_image, room for pixels": (DECODE, "22GiB", 4),
    "decode_image, room for JPEGs": (DECODE, "6GiB", 4),
    "crop alone, room for pixels": ("", "22GiB", 12),
    "crop alone, room for JPEGs": ("", "6GiB", 12),
}
# Those with room for decoded pixels in memory.
DECODED = {"decode_image, room for pixels", "crop alone, room for pixels"}


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def make_data(folder):
    """The photographs, in as many shards as it takes."""
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
    """Rows per second of each epoch, and what was kept."""
    port, count = free_port(), shape[2]
    command = (*command_of(file, scratch, shape, switch), "--http", f"127.0.0.1:{port}")
    log = scratch / "log"
    with open(log, "w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=stderr, text=True, env=os.environ | {"FEEDLINE_LOG": "info"}
        )
        # The end of each epoch; the first begins with the first batch.
        ends, seen, delivered = [], 0, Delivered(process, port)
        while process.poll() is None:
            with contextlib.suppress(Ended):
                seen = delivered.look() or seen
            now = time.monotonic()
            while seen > len(ends) * rows and len(ends) <= count:
                ends.append(now)
            time.sleep(LOOK_SECONDS)
        ends.append(time.monotonic())
    kept = re.findall(r"keeps (nothing|the output of [^\n]*?)(?: job=|$)", log.read_text(encoding="utf-8"), re.MULTILINE)
    rates = [rows / (end - start) for start, end in zip(ends, ends[1:])]
    return rates[:count], kept[-1] if kept else "nothing"


def first_epoch(file, scratch, shape, switch, rows):
    """Seconds, and CPU seconds of the process, of the first epoch of as many as the shape has."""
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
    heads = ["images/s, 2 cores", "kept", "epoch 1", "epoch 2", "epoch 3", "last epoch", "last / first"]
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
        marks = ["", limits.mark(is_fast, f"{name}: epoch 2 gives {of_first:.2f} times epoch 1, {SECOND:.0f} times are asked for"), "", ""]
        rates = " | ".join(f"{rate:.0f}{mark}" for rate, mark in zip((*medians["on"][:3], last), marks))
        print(f"| {name} | {kept} | {rates} | {last / first:.2f} |")
        rates = " | ".join(f"{rate:.0f}" for rate in (*medians["off"][:3], medians["off"][-1]))
        print(f"| {name}, without caches | - | {rates} | {medians['off'][-1] / medians['off'][0]:.2f} |")


def print_first_epochs(files, scratch, rows, limits):
    print("| first epoch, with caches over without | rate | rows per CPU second |\n|---|---|---|")
    for name, shape in SHAPES.items():
        pairs = []
        for pair in range(PAIRS):
            order = ("on", "off") if pair % 2 else ("off", "on")
            took = {switch: first_epoch(files[name], scratch, shape, switch, rows) for switch in order}
            pairs.append([without / with_caches for with_caches, without in zip(took["on"], took["off"])])
            print(f"{name}: {took}", file=sys.stderr)
        ratios = [sorted(ratio) for ratio in zip(*pairs)]
        rate = statistics.median(ratios[0])
        mark = limits.mark(rate >= FIRST, f"{name}: epoch 1 gives {rate:.3f} of that without caches, {FIRST} is asked for")
        texts = [f"{statistics.median(ratio):.3f} ({ratio[0]:.3f} to {ratio[-1]:.3f})" for ratio in ratios]
        print(f"| {name} | {texts[0]}{mark} | {texts[1]} |")


def main():
    usage.check(__doc__)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} is missing: `make caching` builds it")
    if not PHOTOS.is_dir():
        sys.exit(f"skipped: there are no photographs in {PHOTOS}; set FEEDLINE_SHARED_DATA")
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
