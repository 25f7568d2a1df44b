"""Where everything lies, how many rows a job has, and how a program is run."""

import os
import pathlib
import signal
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Environments and data; the results lie in target/bench.
TARGET = ROOT / "target/peers"
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
SHARED_DATA = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
# Few photographs and sentences, repeated until an epoch takes some seconds.
ROWS = {"images": int(os.environ.get("ROWS", "3200")), "text": int(os.environ.get("TEXT_ROWS", "290000"))}


class Failed(Exception):
    """Why there is no number, in one sentence."""


def folder(job):
    """The data of a job."""
    return TARGET / f"data/{job}-{ROWS[job]}"


def output(*command, seconds=None):
    """What a program prints. Nothing that it started stays behind; `Failed` is the last line of its complaint."""
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
        raise Failed(f"no end after {seconds} s") from None
    finally:
        stop(process)
    if process.returncode != 0:
        raise Failed((complaint.strip().splitlines() or [f"exit status {process.returncode}"])[-1])
    return out


def stop(process):
    """Ends a process and its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
