"""Measures how long it takes to index an ImageFolder of many small files, and the memory and the index size per file.

    python3 benches/image_folder.py --binary target/release/feedline [--files 100000] [--folders 1000]

The time of a process that lists and indexes the files for the first time, of one that finds the index up to date, and of one
that lists them after a folder was added, which changes the labels of half of the files. The memory per file is the peak resident
set size of a process minus that of a process with one folder, divided by the number of files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# Targets: ImageNet has 1.28 million files.
MAX_SECONDS_PER_100_000 = 10.0
MAX_INDEX_BYTES = 300.0
MAX_MEMORY_BYTES = 3000.0


@dataclass
class Usage:
    """The resources that one process used."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    output: str


def measure(binary: str, pipeline: Path, index: Path) -> Usage:
    started = time.monotonic()
    command = [binary, "index", str(pipeline), "--index-dir", str(index)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)} failed: {output}")
    seconds = time.monotonic() - started
    return Usage(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, output.strip())


def write_folder(root: Path, folder: str, files: int) -> None:
    (root / folder).mkdir(parents=True)
    for number in range(files):
        (root / folder / f"{folder}_{number:08}.JPEG").write_bytes(b"image")


def write_pipeline(path: Path, root: Path) -> Path:
    source = json.dumps({"url": f"{root}/", "format": "imagefolder"})
    path.write_text(f"name: images\nsource: {source}\noperators: [ batch: {{ size: 32 }} ]\n")
    return path


def run(arguments: argparse.Namespace, directory: Path) -> bool:
    root, index = directory / "images", directory / "index"
    per_folder = arguments.files // arguments.folders
    for folder in range(arguments.folders):
        write_folder(root, f"n{folder:08}", per_folder)
    write_folder(directory / "few", "n0", per_folder)
    pipeline = write_pipeline(directory / "images.yaml", root)
    few = measure(arguments.binary, write_pipeline(directory / "few.yaml", directory / "few"), directory / "few-index")
    first = measure(arguments.binary, pipeline, index)
    index_bytes = sum(path.stat().st_size for path in index.rglob("*") if path.is_file()) / arguments.files
    again = measure(arguments.binary, pipeline, index)
    write_folder(root, f"n{arguments.folders // 2:08}a", per_folder)
    added = measure(arguments.binary, pipeline, index)
    memory = max(first.peak_bytes, again.peak_bytes, added.peak_bytes) - few.peak_bytes
    memory_per_file = memory / arguments.files
    seconds = first.seconds * 100_000 / arguments.files
    print(f"{arguments.files} files in {arguments.folders} folders")
    for name, usage in (("first index", first), ("up to date", again), ("one more folder", added)):
        print(f"  {name:16} {usage.seconds:6.2f} s  {usage.cpu_s:6.2f} s CPU  {usage.peak_bytes / 1e6:8.1f} MB  {usage.output.splitlines()[0]}")
    print(f"  {seconds:.2f} s per 100,000 files (at most {MAX_SECONDS_PER_100_000:.0f} s)")
    print(f"  {memory_per_file:.0f} bytes of memory per file (at most {MAX_MEMORY_BYTES:.0f})")
    print(f"  {index_bytes:.0f} bytes of the index per file (at most {MAX_INDEX_BYTES:.0f})")
    return seconds <= MAX_SECONDS_PER_100_000 and memory_per_file <= MAX_MEMORY_BYTES and index_bytes <= MAX_INDEX_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/feedline")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--folders", type=int, default=1000)
    arguments = parser.parse_args()
    arguments.binary = str(Path(arguments.binary).resolve())
    with tempfile.TemporaryDirectory(prefix="feedline-images-") as directory:
        if not run(arguments, Path(directory)):
            sys.exit("a target is missed")


if __name__ == "__main__":
    main()
