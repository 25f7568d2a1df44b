#!/usr/bin/env python3
"""Measures reading a Parquet file with one large row group and no page index, which is the default of pyarrow.

Writes ROWS (131,072) rows of 4 KiB without compression, once as one row group, and once in row groups of 4 MiB. A row consists of bytes,
or of a list of 1,024 numbers, which continues in the next page. Reads the files with `--memory 256MiB`, in order and shuffled, in ROUNDS
(3) alternating runs after a run that indexes the file. The Markdown table contains the medians of the rate and of the peak resident
memory, and the bytes that the worker read as a multiple of the size of the file.

Exits with status 1 if the peak exceeds 400 MiB, if an ordered run reads more than 1.1 times the file, or if its rate is less than 0.8
of the rate with row groups of 4 MiB. Needs pyarrow. `make parquet-groups` builds Feedline in release mode and runs this script.
"""

import contextlib
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import usage
from limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE", ROOT / "target/release/feedline"))
ROWS = int(os.environ.get("ROWS", "131072"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
ROW_BYTES = 4096
MEMORY = "256MiB"
LOOK_SECONDS = 0.01
MAX_PEAK_MIB, MAX_READ, MIN_RATE = 400, 1.1, 0.8
KINDS = ["bytes", "lists"]

PIPELINE = """
name: {name}
source: {{ url: "{file}", format: parquet }}
{shuffle}operators:
  - batch: {{ size: 256 }}
"""
SHUFFLES = {"in order": "", "shuffled": "seed: 1\nshuffle: { window: 16384 }\n"}


def write_files(folder):
    """Returns the files by the kind of their rows and by the size of their row groups."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        sys.exit("skipped: this measurement needs pyarrow")
    values = pyarrow.py_buffer(os.urandom(ROWS * ROW_BYTES))
    numbers = pyarrow.Array.from_buffers(pyarrow.int32(), ROWS * ROW_BYTES // 4, [None, values])

    def offsets(step):
        return pyarrow.py_buffer(b"".join((row * step).to_bytes(4, "little") for row in range(ROWS + 1)))

    payloads = {
        "bytes": pyarrow.Array.from_buffers(pyarrow.binary(), ROWS, [None, offsets(ROW_BYTES), values]),
        "lists": pyarrow.Array.from_buffers(pyarrow.list_(pyarrow.int32()), ROWS, [None, offsets(ROW_BYTES // 4)], children=[numbers]),
    }
    files = {}
    for kind in KINDS:
        table = pyarrow.table({"id": pyarrow.array(range(ROWS)), "payload": payloads[kind]})
        for name, group_rows in [("one row group", ROWS), ("row groups of 4 MiB", (4 << 20) // ROW_BYTES)]:
            files[kind, name] = folder / f"{kind}-{group_rows}.parquet"
            pyarrow.parquet.write_table(table, files[kind, name], row_group_size=group_rows, compression="none", use_dictionary=False)
    return files


def run(file, scratch):
    """Returns the rows per second, the peak memory in MiB, and the number of bytes that the process has read."""
    command = (FEEDLINE, "run", file, "--index-dir", scratch / "index", "--memory", MEMORY, "--no-digest", "--report", "json")
    with tempfile.TemporaryFile("w+") as stdout:
        process = subprocess.Popen([str(part) for part in command], stdout=stdout)
        read = 0
        while process.poll() is None:
            # The kernel forgets the number when the process ends, which is long after its last read.
            with contextlib.suppress(OSError):
                counted = re.search(r"^rchar: (\d+)", pathlib.Path(f"/proc/{process.pid}/io").read_text(encoding="utf-8"), re.MULTILINE)
                read = int(counted[1]) if counted else read
            time.sleep(LOOK_SECONDS)
        if process.returncode:
            sys.exit(f"{file.name}: exit status {process.returncode}")
        stdout.seek(0)
        report = json.loads(stdout.read().splitlines()[-1])
    peaks = report["peak_rss_bytes"]
    return ROWS / report["seconds"], max(peaks["client"], *peaks["workers"]) / 2**20, read


def main():
    usage.check(__doc__)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make parquet-groups`")
    limits = Limits()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        files = write_files(scratch)
        runs = {}
        for turn, (order, shuffle) in itertools.product(range(ROUNDS + 1), SHUFFLES.items()):
            for (kind, name), data in reversed(files.items()) if turn % 2 else files.items():
                file = scratch / "pipeline.yaml"
                file.write_text(PIPELINE.format(name="groups", file=data, shuffle=shuffle), encoding="utf-8")
                found = run(file, scratch)
                print(f"{kind}, {order}, {name}: {found}", file=sys.stderr)
                if turn > 0:
                    runs.setdefault((kind, order, name), []).append((*found, found[2] / data.stat().st_size))
    print(f"| {ROWS * ROW_BYTES >> 20} MiB, `--memory {MEMORY}` | rows | order | MB/s | peak memory | bytes read |")
    print("|---|---|---|---|---|---|")
    medians = {key: [statistics.median(values) for values in zip(*turns)] for key, turns in runs.items()}
    for (kind, order, name), (rate, peak, _, read) in medians.items():
        marks = ["", "", ""]
        if name == "one row group":
            ratio = rate / medians[kind, order, "row groups of 4 MiB"][0]
            is_ordered = order == "in order"
            title = f"{kind}, {order}"
            marks[0] = limits.mark(not is_ordered or ratio >= MIN_RATE, f"{title}: {ratio:.2f} of the rate with row groups of 4 MiB")
            marks[1] = limits.mark(peak <= MAX_PEAK_MIB, f"{title}: a peak of {peak:.0f} MiB")
            marks[2] = limits.mark(not is_ordered or read <= MAX_READ, f"{title}: {read:.2f} times the file was read")
        rates = f"{rate * ROW_BYTES / 1e6:.0f}{marks[0]} | {peak:.0f} MiB{marks[1]} | {read:.2f} x the file{marks[2]}"
        print(f"| {name} | {kind} | {order} | {rates} |")
    limits.end()


if __name__ == "__main__":
    main()
