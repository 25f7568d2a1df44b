#!/usr/bin/env python3
"""Compares the Python client with the Rust client: rate and CPU time of large batches, time per batch, small batches, stalls.

Large batches contain 128 photographs of 224x224x3. A worker caches them as pixels in memory, so that only the transport to the
loop is measured. The worker runs in a separate process or in the client's process. Small batches contain 64 sentences or 64
rows of generated numbers, with all roles in the client's process.

Rounds are interleaved. Prints medians with their ranges. `make python-client` builds Feedline and its Python package in
release mode and runs this script. ROUNDS is the number of rounds (5). FEEDLINE_SHARED_DATA is the directory of the
photographs and sentences.
"""

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

import usage

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
FEEDLINE = ROOT / "target/release/feedline"
PYTHON = ROOT / "target/venv/bin/python"
PACKAGE = ROOT / "target/client-python"
LOOP = pathlib.Path(__file__).with_name("python_loop.py")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
CORES = 2
ROWS = 2560

PHOTOGRAPHS = """
name: {name}
source: {{ url: "{data}/*.tfrecord", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:{operators}
  - batch: {{ size: 128, remainder: drop }}
"""
KEPT = """
  - decode_image: { column: image }
  - resize: { column: image, size: [224, 224] }
  - cache: { tier: memory }"""
CROPPED = """
  - random_resized_crop: { column: image, size: [224, 224] }
  - random_horizontal_flip: { column: image }"""

SENTENCES = """
name: sentences
source: {{ url: "{data}/text/multi30k.train.en", format: text }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - batch: {{ size: 64 }}
"""
NUMBERS = """
name: numbers
source: {{ url: "{data}/*.parquet", format: parquet, features: {{ id: id, value: value }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - batch: {{ size: 64 }}
"""


def run(*command, env=None):
    """Returns the last line of standard output as JSON, and the CPU seconds of the process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed: {done.stderr.strip()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(done.stdout.splitlines()[-1]), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rust(pipeline, epochs, *flags):
    uncached = () if "--coordinator" in flags else ("--auto-cache", "off", "--cores", CORES)
    return run(FEEDLINE, "run", pipeline, "--epochs", epochs, *flags, *uncached, "--no-digest", "--report", "json")


def python(loop, pipeline, epochs, coordinator="-", **options):
    if coordinator == "-":
        options |= {"auto_cache": "off", "cores": CORES}
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    return run(PYTHON, LOOP, loop, pipeline, epochs, coordinator, json.dumps(options), env=env)


def steady(measure, few, many):
    """Returns the rows per second and the used cores of a running client, from the difference between a long and a short run."""
    (short, short_cpu), (long, long_cpu) = measure(few), measure(many)
    seconds = long["seconds"] - short["seconds"]
    batches = long["batches"] - short["batches"]
    return {"rows": (long["rows"] - short["rows"]) / seconds, "batches": batches / seconds, "cores": (long_cpu - short_cpu) / seconds}


def role(*arguments):
    process = subprocess.Popen([str(FEEDLINE), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process, process.stdout.readline().split()[-1]


def show(figures):
    return f"{statistics.median(figures):,.0f} | {min(figures):,.0f} to {max(figures):,.0f}"


def compare(title, unit, few, many, by_rust, by_python):
    """Runs both clients in alternating rounds, and prints their rates, their ratio and their cores as a row of the table."""
    turns = []
    for turn in range(ROUNDS):
        both = {}
        for name, measure in (("rust", by_rust), ("python", by_python))[:: 1 if turn % 2 else -1]:
            both[name] = steady(measure, few, many)
        turns.append(both)
    ratios = [turn["python"][unit] / turn["rust"][unit] for turn in turns]
    print(
        f"| {title} | {show([turn['rust'][unit] for turn in turns])} | {show([turn['python'][unit] for turn in turns])} "
        f"| {100 * statistics.median(ratios):.1f} % ({100 * min(ratios):.1f} to {100 * max(ratios):.1f}) "
        f"| {statistics.median(turn['rust']['cores'] for turn in turns):.2f} | {statistics.median(turn['python']['cores'] for turn in turns):.2f} |",
        flush=True,
    )
    return turns


def beyond(turns):
    """Returns for each round the additional CPU time of Python over the Rust client at the same rate, in percent of a core."""
    return [
        100 * (turn["python"]["cores"] * turn["rust"]["batches"] / turn["python"]["batches"] - turn["rust"]["cores"]) for turn in turns
    ]


def main():
    usage.check(__doc__)
    if not SHARED.is_dir():
        sys.exit(f"skipped: no photographs and sentences in {SHARED} (set FEEDLINE_SHARED_DATA)")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)

        def make(kind, rows, shape, *more):
            command = (FEEDLINE, "make-data", kind, scratch / kind, "--rows", rows, "--format", shape, *more)
            subprocess.run([str(part) for part in command], check=True, capture_output=True)

        def file(name, text):
            path = scratch / f"{name}.yaml"
            path.write_text(text)
            return path

        make("images", ROWS, "tfrecord", "--from", SHARED / "images")
        make("table", 200_000, "parquet", "--seed", 1)
        kept = file("kept", PHOTOGRAPHS.format(name="kept", data=scratch / "images", operators=KEPT))
        cropped = file("cropped", PHOTOGRAPHS.format(name="cropped", data=scratch / "images", operators=CROPPED))
        sentences = file("sentences", SENTENCES.format(data=SHARED))
        numbers = file("numbers", NUMBERS.format(data=scratch / "table"))
        index = scratch / "index"
        flags, options = ("--index-dir", index), {"index_dir": str(index)}

        print(f"| {CORES} cores, {ROUNDS} rounds | Rust | range | Python | range | ratio (range) | cores, Rust | cores, Python |")
        print("|---|---|---|---|---|---|---|---|")
        coordinator, address = role("coordinator", "--auto-cache", "off", "--listen", "127.0.0.1:0", "--data-dir", scratch / "coordinator")
        url = f"http://{address}"
        worker, _ = role("worker", "--coordinator", url, "--listen", "127.0.0.1:0", "--cores", CORES)
        try:
            rust(kept, 1, "--coordinator", url)
            turns = compare(
                "batches of 128x224x224x3 from a worker process, images/s", "rows", 1, 31,
                lambda epochs: rust(kept, epochs, "--coordinator", url),
                lambda epochs: python("rate", kept, epochs, url),
            )  # fmt: skip
        finally:
            worker.terminate()
            coordinator.terminate()
            worker.wait()
            coordinator.wait()
        cores = beyond(turns)
        for title, pipeline, unit, few, many in (
            ("the same, all in one process, images/s", kept, "rows", 1, 31),
            ("64 sentences, all in one process, batches/s", sentences, "batches", 2, 202),
            ("64 rows of two numbers, all in one process, batches/s", numbers, "batches", 1, 61),
        ):
            compare(
                title, unit, few, many,
                lambda epochs, pipeline=pipeline: rust(pipeline, epochs, *flags),
                lambda epochs, pipeline=pipeline: python("rate", pipeline, epochs, **options),
            )  # fmt: skip
        taken = {pipeline.stem: python("overhead", pipeline, 1_000_000, **options)[0] for pipeline in (numbers, sentences, kept)}
        loop = python("fed", cropped, 12, **options)[0]
    print(f"\nadditional CPU time of Python at the rate of the Rust client: {statistics.median(cores):.1f} % of a core ({min(cores):.1f} to {max(cores):.1f})")
    for name, figures in taken.items():
        print(f"receiving an available batch of {name}: median {1e6 * figures['median']:.1f} us, 95th percentile {1e6 * figures['most']:.1f} us")
    print(f"{loop['batches']} steps of {1e3 * loop['step']:.0f} ms on random crops: waited {100 * loop['stall']:.2f} % of the time")


if __name__ == "__main__":
    main()
