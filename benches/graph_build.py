#!/usr/bin/env python3
"""Measures `feedline graph build`: seconds, peak memory, and the ratio to copying the same bytes with `dd`.

`feedline make-data graph` generates 300 million edges between 10 million nodes as Parquet, of 64 communities, in
`target/graph-build-bench`. The build runs with `--memory 1GiB` on two cores. The baseline reads the input with `dd`, and writes twice
the output with `dd`. The input is evicted from the page cache before each run of either, and written pages are flushed.

With ORDER=vip, each node has 64 features as float16, and the nodes are stored in the order `vip:train:15,10,5`. This order needs the
edges in memory, so the default of MEMORY is 3GiB.

Prints a Markdown table of medians with their ranges. Fails if the peak memory of the order `none` exceeds 1.3 times `--memory`, or its
time exceeds 1.5 times the baseline.

`make graph-build-bench` builds Feedline in release mode and runs this script. The results are in
`target/graph-build-bench/results.json`. FEEDLINE_BINARY is the path of another binary.

    NODES=1e6 EDGES=3e7 ORDER=vip ROUNDS=3 CPUS=0,1 MEMORY=1GiB make graph-build-bench
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "target/graph-build-bench"
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BINARY", ROOT / "target/release/feedline"))
FEATURES = 64
DD_BYTES = 4 << 20
SIZES = {"MiB": 1 << 20, "GiB": 1 << 30}
MOST_MEMORY, MOST_TIME = 1.3, 1.5


def main():
    given = arguments()
    os.sched_setaffinity(0, given.cpus)
    inputs = prepared(given)
    rounds = []
    for number in range(given.rounds):
        seconds, peak = build(given, inputs)
        output_bytes = sum(file.stat().st_size for file in (TARGET / "graph").rglob("*") if file.is_file())
        rounds.append({"seconds": seconds, "peak_bytes": peak, "output_bytes": output_bytes, "dd_seconds": copy(inputs, output_bytes)})
        print(f"round {number + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
    input_bytes = sum(file.stat().st_size for file in inputs)
    content = {**vars(given), "cpus": sorted(given.cpus), "input_bytes": input_bytes, "rounds": rounds}
    (TARGET / "results.json").write_text(json.dumps(content, indent=1))
    print(table(given, input_bytes, rounds))
    return failures(given, rounds)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=count, default=10_000_000)
    parser.add_argument("--edges", type=count, default=300_000_000)
    parser.add_argument("--order", choices=("none", "degree", "vip"), default="none")
    parser.add_argument("--memory", help="such as 1GiB [default: 1GiB, or 3GiB for the order vip]")
    parser.add_argument("--cpus", type=cpus, default={0, 1}, help="cores, such as 0,1 [default: 0,1]")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    given.memory = given.memory or ("3GiB" if given.order == "vip" else "1GiB")
    if given.memory[-3:] not in SIZES or not given.memory[:-3].isdigit():
        parser.error(f"invalid size {given.memory}: expected a number and a unit, such as 1GiB")
    return given


def count(text):
    return int(float(text))


def cpus(text):
    return {int(cpu) for cpu in text.split(",")}


def prepared(given):
    """Generates the input, unless an earlier run generated it. Returns the files that the build reads."""
    features = given.order == "vip"
    folder = TARGET / f"input-{given.nodes}-{given.edges}{'-features' if features else ''}"
    if not folder.exists():
        print(f"generating {folder}", file=sys.stderr, flush=True)
        staging = folder.with_suffix(".partial")
        shutil.rmtree(staging, ignore_errors=True)
        flags = ["--nodes", given.nodes, "--edges", given.edges, "--format", "parquet", "--seed", 1]
        flags += ["--features", FEATURES] if features else []
        run(FEEDLINE, "make-data", "graph", staging, *flags)
        staging.rename(folder)
    names = ("edges.parquet", "x.npy", "train.npy") if features else ("edges.parquet",)
    return [folder / name for name in names]


def build(given, inputs):
    """Builds the graph. Returns the seconds and the peak resident memory of the process."""
    evict(inputs)
    edges, *others = inputs
    flags = ["--nodes", given.nodes, "--memory", given.memory, "--cores", len(given.cpus)]
    flags += ["--order", "degree"] if given.order == "degree" else []
    if others:
        features, seeds = others
        flags += ["--feature", f"x={features}", "--seeds", f"train={seeds}", "--order", "vip:train:15,10,5"]
    command = [FEEDLINE, "graph", "build", TARGET / "graph", "--edges", edges, *flags]
    started = time.monotonic()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"the build failed with status {process.returncode}")
    return seconds, usage.ru_maxrss << 10


def copy(inputs, output_bytes):
    """Reads the input and writes twice the output. Returns the seconds."""
    shutil.rmtree(TARGET / "graph")
    evict(inputs)
    copied = TARGET / "copied"
    blocks = 2 * output_bytes // DD_BYTES + 1
    started = time.monotonic()
    for file in inputs:
        run("dd", f"if={file}", "of=/dev/null", f"bs={DD_BYTES}")
    run("dd", "if=/dev/zero", f"of={copied}", f"bs={DD_BYTES}", f"count={blocks}")
    seconds = time.monotonic() - started
    copied.unlink()
    return seconds


def evict(files):
    """Flushes written pages, and removes files from the page cache."""
    shutil.rmtree(TARGET / "graph", ignore_errors=True)
    os.sync()
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed with status {done.returncode}:\n{done.stderr[-4000:]}")


def ratios(rounds):
    return [one["seconds"] / one["dd_seconds"] for one in rounds]


def table(given, input_bytes, rounds):
    def shown(values, digits):
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

    columns = {
        "nodes": f"{given.nodes:,}",
        "edges": f"{given.edges:,}",
        "order": given.order,
        "memory": given.memory,
        "cores": str(len(given.cpus)),
        "input GB": f"{input_bytes / 1e9:.2f}",
        "output GB": f"{rounds[0]['output_bytes'] / 1e9:.2f}",
        "seconds": shown([one["seconds"] for one in rounds], 1),
        "dd seconds": shown([one["dd_seconds"] for one in rounds], 1),
        "ratio": shown(ratios(rounds), 2),
        "peak GiB": shown([one["peak_bytes"] / (1 << 30) for one in rounds], 2),
    }
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["--"] * len(columns), columns.values()))


def failures(given, rounds):
    """Returns a message if a target of the order `none` is missed."""
    if given.order != "none":
        return None
    memory = int(given.memory[:-3]) * SIZES[given.memory[-3:]]
    peak, ratio = max(one["peak_bytes"] for one in rounds) / memory, statistics.median(ratios(rounds))
    missed = []
    if peak > MOST_MEMORY:
        missed.append(f"the peak memory is {peak:.2f} times --memory, the limit is {MOST_MEMORY}")
    if ratio > MOST_TIME:
        missed.append(f"the time is {ratio:.2f} times that of dd, the limit is {MOST_TIME}")
    return "; ".join(missed) or None


if __name__ == "__main__":
    sys.exit(main())
