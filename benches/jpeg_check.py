#!/usr/bin/env python3
"""Measures which part of the time of random crops checks that the JPEG is complete.

Profiles the benchmark `kernels` with `perf record` for each operator below, and prints a Markdown table of the samples in the
check of the data that the crop does not decode, and in the complete decoding of images whose structure is unexpected.

The photographs are in $FEEDLINE_SHARED_DATA/images (default ../shared/data). Exits with status 1 if the check takes more than 2 %
of a random crop.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = 20
MAX_PERCENT = 2.0
OPERATORS = ["random_resized_crop", "center_crop", "decode_image"]
CHECK = ["has_expected_structure"]
# The decoding of the rest: by the decoder of Feedline, and by that of libjpeg-turbo.
DECODING = ["read_to_end", "feedline_partial_check"]


def build() -> str:
    """Returns the benchmark with its symbols."""
    command = ["cargo", "bench", "--quiet", "--workspace", "--bench", "kernels", "--no-run", "--message-format", "json"]
    environment = {**os.environ, "CARGO_PROFILE_BENCH_STRIP": "none"}
    output = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "kernels")


def symbols(executable: str, operator: str, directory: str) -> dict[str, float]:
    """Returns the percentage of the samples in each function."""
    data = f"{directory}/perf.data"
    run = [executable, "--bench", "--profile-time", str(SECONDS), f"images/{operator}$"]
    # The profile of the processor's time needs no counters of the processor.
    record = ["perf", "record", "--quiet", "--event", "cpu-clock", "--freq", "2000", "--output", data, "--", *run]
    subprocess.run(record, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    report = ["perf", "report", "--input", data, "--no-children", "--sort", "symbol", "--field-separator", "\t", "--stdio"]
    lines = subprocess.run(report, capture_output=True, text=True, check=True).stdout.splitlines()
    fields = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    return {symbol: float(percent.strip().rstrip("%")) for percent, symbol, *_ in fields}


def total(found: dict[str, float], names: list[str]) -> float:
    return sum(percent for symbol, percent in found.items() if any(name in symbol for name in names))


def main() -> None:
    if shutil.which("perf") is None:
        sys.exit("`perf` is missing; install the package linux-perf (Debian) or linux-tools (Ubuntu)")
    executable = build()
    print("| operator | check of the structure | decoding of the rest |\n|---|---|---|")
    crop = 0.0
    with tempfile.TemporaryDirectory() as directory:
        for operator in OPERATORS:
            found = symbols(executable, operator, directory)
            check, decoding = total(found, CHECK), total(found, DECODING)
            print(f"| `{operator}` | {check:.2f} % | {decoding:.2f} % |", flush=True)
            if operator == "random_resized_crop":
                crop = check + decoding
    if crop > MAX_PERCENT:
        sys.exit(f"the check takes {crop:.2f} % of a random crop; at most {MAX_PERCENT:.0f} % are allowed")


if __name__ == "__main__":
    main()
