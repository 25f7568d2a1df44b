#!/usr/bin/env python3
"""Measures the overhead of tracing. Jobs on photographs and on text run with and without tracing in alternating rounds.

Prints a Markdown table of medians. Exits with status 1 if the overhead exceeds its limit of 2 % for photographs or 5 % for
text. `make trace-cost` builds Feedline in release mode and runs this script. FEEDLINE is the path of another binary, ROUNDS
is the number of rounds, and SCALE is a factor for the number of epochs of each run.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import usage
from limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE", ROOT / "target/release/feedline"))
CORES = 2
ROUNDS = int(os.environ.get("ROUNDS", "7"))
SCALE = float(os.environ.get("SCALE", "1"))
# Maximum overhead in percent of the rate.
ALLOWED = {"photographs": 2.0, "text": 5.0}

PHOTOGRAPHS = """
name: photographs
source: {{ url: "{data}/*.tfrecord", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 128 }}
"""

TEXT = """
name: text
source: {{ url: "{data}/*.txt", format: text }}
seed: 7
shuffle: {{ window: 16384 }}
operators:
  - filter: {{ where: "length(text) > 20" }}
  - batch: {{ size: 1024 }}
"""


def uncached(arguments):
    """Returns the flags that disable automatic caches. On a cluster, the flag is set on the coordinator."""
    return () if "--coordinator" in arguments else ("--auto-cache", "off")


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def rate(file, index, epochs, switch):
    arguments = (file, "--index-dir", index, "--cores", CORES, "--epochs", epochs, "--trace", switch)
    lines = output(FEEDLINE, "run", *arguments, *uncached(arguments), "--report", "json", "--no-digest").splitlines()
    return json.loads(lines[-1])["rows_per_s"]


def main():
    usage.check(__doc__)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make trace-cost`")
    photos = SHARED / "images"
    with tempfile.TemporaryDirectory() as scratch:
        index = f"{scratch}/index"
        source = ("--from", photos) if photos.is_dir() else ("--rows", "600")
        images, text = f"{scratch}/images", f"{scratch}/text"
        output(FEEDLINE, "make-data", "images", images, "--format", "tfrecord", "--shards", "4", *source)
        output(FEEDLINE, "make-data", "text", text, "--format", "text", "--rows", "200000")
        jobs = []
        for name, pipeline, data, epochs in (
            ("photographs", PHOTOGRAPHS, images, 20),
            ("text", TEXT, text, 60),
        ):
            file = pathlib.Path(scratch, f"{name}.yaml")
            file.write_text(pipeline.format(data=data))
            rate(file, index, 1, "on")
            jobs.append((name, file, max(1, round(epochs * SCALE))))
        rates = {(name, switch): [] for name, _, _ in jobs for switch in ("on", "off")}
        for turn in range(ROUNDS):
            for name, file, epochs in jobs:
                # Alternate both variants, so that changes in the speed of the machine affect both.
                for switch in ("on", "off") if turn % 2 else ("off", "on"):
                    rates[name, switch].append(rate(file, index, epochs, switch))
    print(f"| {CORES} cores, medians of {ROUNDS} | tracing off | tracing on | overhead | limit |")
    print("|---|---|---|---|---|")
    limits = Limits()
    for name, _, _ in jobs:
        off, on = (statistics.median(rates[name, switch]) for switch in ("off", "on"))
        cost = 100 * (1 - on / off)
        mark = limits.mark(cost <= ALLOWED[name], f"{name}: the overhead is {cost:.1f} %, more than {ALLOWED[name]:.0f} %")
        print(f"| {name} | {off:.0f} rows/s | {on:.0f} rows/s | {cost:.1f} %{mark} | {ALLOWED[name]:.0f} % |")
    limits.end()


if __name__ == "__main__":
    main()
