"""Paths, numbers of rows per job, and a helper that runs programs."""

import os
import pathlib
import signal
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Environments and data. Results are written to target/bench.
TARGET = ROOT / "target/peers"
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
SHARED_DATA = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
# The photographs and sentences are repeated until an epoch takes several seconds.
ROWS = {"images": int(os.environ.get("ROWS", "3200")), "text": int(os.environ.get("TEXT_ROWS", "290000"))}


class Failed(Exception):
    """A step of a measurement failed. The message contains the reason."""


def folder(job):
    """Returns the directory with the data of a job."""
    return TARGET / f"data/{job}-{ROWS[job]}"


def output(*command, seconds=None):
    """Returns the output of a program, and stops all processes that the program started. `Failed` contains the last line of its error output."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"timed out after {seconds} s") from None
    finally:
        stop(process)
    if process.returncode != 0:
        raise Failed((complaint.strip().splitlines() or [f"exit status {process.returncode}"])[-1])
    return out


def stop(process):
    """Kills a process and its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
