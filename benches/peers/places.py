"""Where everything lies, how many rows a job has, and how a program's output is taken."""

import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = ROOT / "target/peers"
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
KERNEL = pathlib.Path(os.environ.get("KERNEL_BIN", FEEDLINE.parent / "examples/kernel"))
SHARED_DATA = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
# Few photographs and sentences, repeated until an epoch takes some seconds.
ROWS = {"images": int(os.environ.get("ROWS", "3200")), "text": 290_000}


def folder(job):
    """The data of a job."""
    return TARGET / f"data/{job}-{ROWS[job]}"


def output(*command):
    """What a program prints; a failure carries what it said."""
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
