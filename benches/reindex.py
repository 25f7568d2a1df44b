"""Measures how much of a dataset is read, and how much CPU is used, to index it again after some shards changed.

    python3 benches/reindex.py --binary target/release/feedline [--shards 10000] [--shard-kib 1024] [--changed 10]

The dataset consists of JSON lines. ``--quick`` uses shards of 64 KiB. CPU times are of the whole process, minus those of a
process that only lists the same directory (its pattern matches no object). Bytes are all bytes that the process read, including
the stored index.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROW_BYTES = 1024
MAX_BYTES_SHARE = 0.002
MAX_CPU_SHARE = 0.02


@dataclass
class Usage:
    """The resources that one process used."""

    cpu_s: float
    read_bytes: int
    output: str


def write_shard(path: Path, shard: int, size: int, version: str) -> None:
    """Writes JSON lines of exactly ``size`` bytes. All versions of a shard have the same size and number of rows."""
    rows = []
    for row in range(size // ROW_BYTES):
        start = f'{{"id": "{version}-{shard:06}-{row:06}", "text": "'
        rows.append(start + "x" * (ROW_BYTES - len(start) - 3) + '"}\n')
    path.write_text("".join(rows))


def measure(command: list[str], directory: Path, expected_status: int = 0) -> Usage:
    """Runs a process and returns the resources that it used."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
        # The counters of the process exist until it is reaped.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        counters = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
        status = process.wait()
        output.seek(0)
        text = output.read().decode()
    if status != expected_status:
        sys.exit(f"{' '.join(command)} returned {status}: {text}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(cpu, int(counters["rchar"]), text.strip())


def pipeline(directory: Path, name: str, pattern: str) -> str:
    path = directory / f"{name}.yaml"
    source = json.dumps({"url": str(directory / "data" / pattern), "format": "jsonl"})
    path.write_text(f"name: {name}\nsource: {source}\noperators: [ batch: {{ size: 32 }} ]\n")
    return str(path)


def run(arguments: argparse.Namespace, directory: Path) -> bool:
    shard_bytes = arguments.shard_kib << 10
    total = arguments.shards * shard_bytes
    data = directory / "data"
    data.mkdir()
    for shard in range(arguments.shards):
        write_shard(data / f"{shard:06}.jsonl", shard, shard_bytes, "a")
    command = [str(Path(arguments.binary).resolve()), "index"]
    flags = ["--index-dir", str(directory / "index"), "--cores", str(arguments.cores)]
    job, nothing = pipeline(directory, "job", "*.jsonl"), pipeline(directory, "nothing", "*.none")
    listing = min((measure([*command, nothing, *flags], directory, 1) for _ in range(arguments.turns)), key=lambda usage: usage.cpu_s)
    full = measure([*command, job, *flags], directory)
    unchanged = measure([*command, job, *flags], directory)
    again = []
    step = arguments.shards // arguments.changed
    for turn in range(arguments.turns):
        for shard in range(0, step * arguments.changed, step):
            write_shard(data / f"{shard:06}.jsonl", shard, shard_bytes, chr(ord("b") + turn))
        again.append(measure([*command, job, *flags], directory))
    best = min(again, key=lambda usage: usage.cpu_s)
    shares = best.read_bytes / total, (best.cpu_s - listing.cpu_s) / (full.cpu_s - listing.cpu_s)
    print(f"{arguments.shards} shards of {arguments.shard_kib} KiB, {arguments.changed} of them rewritten, {arguments.turns} turns")
    for name, usage in (("only listing", listing), ("full index", full), ("unchanged", unchanged), ("indexed again", best)):
        print(f"  {name:14} {usage.cpu_s:7.2f} s CPU  {usage.read_bytes / 1e6:10.2f} MB read")
    print(f"  bytes read:          {shares[0]:.3%} of the data (at most {MAX_BYTES_SHARE:.1%})")
    print(f"  CPU without listing: {shares[1]:.3%} of a full index (at most {MAX_CPU_SHARE:.0%})")
    print(f"  {best.output.splitlines()[0]}")
    return shares[0] <= MAX_BYTES_SHARE and shares[1] <= MAX_CPU_SHARE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/feedline")
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--shard-kib", type=int, default=1024)
    parser.add_argument("--changed", type=int, default=10)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="shards of 64 KiB")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.shard_kib = 64
    if shutil.disk_usage(tempfile.gettempdir()).free < arguments.shards * arguments.shard_kib * 1100:
        sys.exit("the temporary directory is too small for the dataset; set TMPDIR, or use --quick")
    with tempfile.TemporaryDirectory(prefix="feedline-reindex-") as directory:
        if not run(arguments, Path(directory)):
            sys.exit("a target is missed")


if __name__ == "__main__":
    main()
