"""Runs the commands that prepare something, again if they may have failed because of the network."""

import subprocess
import sys
import time
from pathlib import Path

ATTEMPTS = 3
PAUSE_S = 5.0


def run(command: list, directory: Path | None = None, attempts: int = 1, **options: object) -> str:
    """Returns the standard output. Ends the program with the error of the last attempt. Children inherit locks."""
    command = [str(part) for part in command]
    for attempt in range(1, attempts + 1):
        result = subprocess.run(command, cwd=directory, capture_output=True, text=True, close_fds=False, **options)
        if result.returncode == 0:
            return result.stdout
        if attempt < attempts:
            lines = result.stderr.strip().splitlines() or ["no message"]
            print(f"`{' '.join(command[:2])}` failed, trying again: {lines[-1]}", file=sys.stderr, flush=True)
            time.sleep(PAUSE_S * attempt)
    sys.exit(f"`{' '.join(command)}` failed in {directory or Path.cwd()}:\n{result.stderr[-4000:]}")
