#!/usr/bin/env python3
"""Compares the CPU time per row of this tree with an earlier commit, for photographs, sentence pairs, Parquet and JSON lines.

Builds the earlier commit in target/against with the release profile of this tree, and runs both binaries in interleaved
pairs on one core. Prints the median ratio of their CPU seconds per row with a 95 % confidence interval. A ratio above 1
means that this tree needs less CPU time. `make against BASE=COMMIT PAIRS=21` builds Feedline in release mode and runs this
script.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
FEEDLINE = ROOT / "target/release/feedline"
PROFILE = {"LTO": "false", "CODEGEN_UNITS": "16", "DEBUG": "false", "STRIP": "symbols"}

PHOTOGRAPHS = """
name: photographs
source: {{ url: "{data}/*", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 128 }}
"""

TABLE = """
name: table
source: {{ url: "{data}/*", format: {format} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - batch: {{ size: 256 }}
"""

TEXT = """
name: text
source: {{ url: "{data}", format: text }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - batch: {{ size: 64 }}
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="ef04d0d", help="base commit of the comparison [default: %(default)s]")
    parser.add_argument("--pairs", type=int, default=21, help="interleaved pairs of runs for each workload [default: %(default)s]")
    parser.add_argument("--base-binary", type=pathlib.Path, help="binary of the base commit; skips its build")
    return parser.parse_args()


def build(base):
    """Builds the base commit with the release profile of this tree, and returns the path of its binary."""
    folder = ROOT / "target/against" / base
    if not folder.exists():
        subprocess.run(["git", "worktree", "add", "--force", "--detach", folder, base], cwd=ROOT, check=True)
    profile = {f"CARGO_PROFILE_RELEASE_{name}": value for name, value in PROFILE.items()}
    command = ["cargo", "build", "--quiet", "--release", "--workspace", "--bin", "feedline"]
    subprocess.run(command, cwd=folder, env={**os.environ, **profile}, check=True)
    return folder / "target/release/feedline"


def cpu_per_row(binary, file, index, epochs):
    """Returns the CPU seconds of a whole process per delivered row. It starts in 25 ms, so a run takes about two seconds."""
    command = [binary, "run", file, "--index-dir", index, "--cores", "1", "--auto-cache", "off"]
    command += ["--epochs", str(epochs), "--report", "json", "--no-digest"]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    lines = process.stdout.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{binary} failed on {file}: wait status {status}")
    return (usage.ru_utime + usage.ru_stime) / json.loads(lines[-1])["rows"]


def interval(ratios):
    """Returns the distribution-free 95 % confidence interval of the median, computed from order statistics with the binomial distribution."""
    ordered, count = sorted(ratios), len(ratios)
    skip = max(0, int((count - 1.96 * count**0.5) / 2))
    return ordered[skip], ordered[count - 1 - skip]


def compare(name, binaries, file, scratch, epochs, pairs):
    def measure(side):
        return cpu_per_row(binaries[side], file, scratch / f"index-{side}", epochs)

    for side in binaries:
        measure(side)
    base, tree = [], []
    for pair in range(pairs):
        for side in ("base", "tree") if pair % 2 else ("tree", "base"):
            (base if side == "base" else tree).append(measure(side))
    ratios = [old / new for old, new in zip(base, tree)]
    low, high = interval(ratios)
    micros = [1e6 * statistics.median(values) for values in (base, tree)]
    print(f"| {name} | {micros[0]:.2f} | {micros[1]:.2f} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} |", flush=True)


def make_data(*arguments):
    command = [FEEDLINE, "make-data", *arguments, "--shards", 4, "--seed", 1]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


def main():
    options = arguments()
    if not DATA.is_dir():
        sys.exit(f"skipped: no data in {DATA} (set FEEDLINE_SHARED_DATA)")
    binaries = {"base": options.base_binary or build(options.base), "tree": FEEDLINE}
    print(f"| 1 core, {options.pairs} pairs | {options.base}, CPU µs per row | this tree, CPU µs per row | speed relative to {options.base} | 95 % interval |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        photographs = scratch / "photographs"
        make_data("images", photographs, "--format", "tfrecord", "--from", DATA / "images")
        workloads = [("photographs", PHOTOGRAPHS.format(data=photographs), 3)]
        workloads.append(("sentence pairs", TEXT.format(data=DATA / "text/multi30k.train.en"), 40))
        for name, form in (("Parquet", "parquet"), ("JSON lines", "jsonl")):
            table = scratch / form
            make_data("table", table, "--format", form, "--rows", 200_000)
            workloads.append((name, TABLE.format(data=table, format=form), 60))
        for name, text, epochs in workloads:
            file = scratch / f"{name.replace(' ', '-')}.yaml"
            file.write_text(text)
            compare(name, binaries, file, scratch, epochs, options.pairs)


if __name__ == "__main__":
    main()
