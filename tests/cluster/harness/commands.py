"""Runs commands, and waits for conditions that nothing announces."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path


class CommandFailed(Exception):
    """A command with an exit status other than 0. The message contains its output."""

    def __init__(self, command: list[str], result: subprocess.CompletedProcess) -> None:
        self.stdout, self.stderr, self.returncode = result.stdout, result.stderr, result.returncode
        output = (result.stderr or result.stdout)[-4000:]
        super().__init__(f"`{' '.join(command)}` failed with {result.returncode}: {output}")


def run(command: list, input: str | None = None, **options) -> str:
    """Returns the standard output of a command."""
    command = [str(part) for part in command]
    result = subprocess.run(command, input=input, capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise CommandFailed(command, result)
    return result.stdout


def until(condition: Callable[[], object], what: str, timeout: float = 60) -> object:
    """Returns the first result of `condition` that is true. Prefer `Cluster.wait` and `watch`, which do not poll."""
    end = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not true after {timeout} s")
        time.sleep(0.1)
    return result


def succeeds(command: list) -> bool:
    command = [str(part) for part in command]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def tail(path: Path, lines: int = 15) -> str:
    """Returns the last lines of a log."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join([f"--- {path.name}", *text.splitlines()[-lines:]])
