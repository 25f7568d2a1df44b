#!/usr/bin/env python3
"""Compares the rate of Feedline with the rate of its image decoder alone, on two cores.

The job reads photographs as TFRecord, with random_resized_crop 224, a flip and batches of 128. Prints a Markdown table with the
following values:

- the rate of the raw kernel on one thread times the number of cores, and its rate on all cores. The kernel decodes the crop
  of an image and resizes it
- the rate of Feedline in one process, as separate processes, and in later epochs with caches
- the time to the first batch with an index

Rounds are interleaved, and the table contains medians with their ranges. `make speed` builds Feedline in release mode and
runs this script.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import usage

ROOT = pathlib.Path(__file__).resolve().parent.parent
PHOTOS = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data")) / "images"
FEEDLINE = ROOT / "target/release/feedline"
CORES = 2
ROUNDS = int(os.environ.get("ROUNDS", "5"))
EPOCHS = "20"

PIPELINE = """
name: speed
source: {{ url: "{data}/*.tfrecord", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:{before}
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 128 }}
"""


# The operators before the crop for each measurement of a cache.
CACHES = {
    "indexed": "\n  - recode_jpeg: { column: image }\n  - cache: { tier: memory }",
    "disk": "\n  - recode_jpeg: { column: image }\n  - cache: { tier: disk }",
    "decoded": "\n  - decode_image: { column: image }\n  - cache: { tier: memory }",
}


def uncached(arguments):
    """Returns the flags that disable automatic caches. On a cluster, the flag is set on the coordinator."""
    return () if "--coordinator" in arguments else ("--auto-cache", "off")


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def kernel(subject):
    """Returns the images per second of the raw kernel, on one thread or on all cores together."""
    command = ("bench", "kernel", PHOTOS, "--only", subject, "--cores", CORES, "--turns", "1", "--report", "json")
    return json.loads(output(FEEDLINE, *command).splitlines()[-1])["subjects"][0]["images_per_s"]


def report(*arguments):
    return json.loads(output(FEEDLINE, "run", *arguments, *uncached(arguments), "--report", "json", "--no-digest").splitlines()[-1])


def role(*arguments):
    process = subprocess.Popen([str(FEEDLINE), *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[-1]


def main():
    usage.check(__doc__)
    if not PHOTOS.is_dir():
        sys.exit(f"skipped: no photographs in {PHOTOS} (set FEEDLINE_SHARED_DATA)")
    names = ["kernel", "together", "embedded", "processes", *CACHES, "first"]
    figures = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        data = f"{scratch}/data"
        output(FEEDLINE, "make-data", "images", data, "--format", "tfrecord", "--from", PHOTOS, "--shards", "4")

        def file(name, before=""):
            path = pathlib.Path(scratch, f"{name}.yaml")
            path.write_text(PIPELINE.format(data=data, before=before))
            return path

        pipeline = file("speed")
        cached = {name: file(name, before) for name, before in CACHES.items()}
        index = ("--index-dir", f"{scratch}/index")
        report(pipeline, *index)
        # A disk cache remains after the run that fills it.
        report(cached["disk"], *index, "--cache-dir", f"{scratch}/rows")
        coordinator, address = role("coordinator", "--auto-cache", "off", "--listen", "127.0.0.1:0", "--data-dir", f"{scratch}/coordinator")
        url = f"http://{address}"
        worker, _ = role("worker", "--coordinator", url, "--listen", "127.0.0.1:0", "--cores", CORES)
        try:
            for _ in range(ROUNDS):
                figures["kernel"].append(CORES * kernel("one"))
                figures["together"].append(kernel("together"))
                embedded = report(pipeline, *index, "--cores", CORES, "--epochs", EPOCHS)
                figures["embedded"].append(embedded["rows_per_s"])
                figures["first"].append(embedded["first_batch_seconds"])
                for name, path in cached.items():
                    # The first epoch fills a memory cache, so the rate of later epochs is the difference of two runs.
                    arguments = (path, *index, "--cache-dir", f"{scratch}/rows", "--cores", CORES, "--epochs")
                    one, all_epochs = report(*arguments, 1), report(*arguments, EPOCHS)
                    seconds = all_epochs["seconds"] - one["seconds"]
                    figures[name].append((all_epochs["rows"] - one["rows"]) / seconds)
                processes = report(pipeline, "--coordinator", url, "--epochs", EPOCHS)
                figures["processes"].append(processes["rows_per_s"])
        finally:
            worker.terminate()
            coordinator.terminate()
    median = {name: statistics.median(values) for name, values in figures.items() if values}

    def line(title, name, unit, digits=0):
        low, high = min(figures[name]), max(figures[name])
        share = "" if name == "first" else f"{100 * median[name] / median['kernel']:.1f} %"
        print(f"| {title} | {median[name]:.{digits}f} {unit} | {low:.{digits}f} to {high:.{digits}f} | {share} |")

    print(f"| photographs, TFRecord, crop 224, flip, batch 128, {CORES} cores | median | range of {ROUNDS} | relative to kernel |")
    print("|---|---|---|---|")
    line(f"raw kernel, one thread × {CORES}", "kernel", "images/s")
    line(f"raw kernel, {CORES} threads", "together", "images/s")
    line("embedded", "embedded", "images/s")
    line("separate processes for coordinator, worker and client", "processes", "images/s")
    line("embedded, later epochs, indexed JPEGs in memory", "indexed", "images/s")
    line("embedded, later epochs, indexed JPEGs on disk", "disk", "images/s")
    line("embedded, later epochs, decoded images in memory", "decoded", "images/s")
    line("from `feedline run` to the first batch, indexed", "first", "s", 3)


if __name__ == "__main__":
    main()
