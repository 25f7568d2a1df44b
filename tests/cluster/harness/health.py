"""Whether the programs of all running machines run and answer, and what they logged."""

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.programs import REPOSITORY

if TYPE_CHECKING:
    from harness.machine import Machine

# The machines of all clusters of this process. A crashed machine is not one of them.
MACHINES: "list[Machine]" = []
# Logs of failed tests, which remain when their cluster ends.
REPORTS = REPOSITORY / "target/cluster-logs"
LINES, REPORT_LINES = 15, 300


class ProgramFailed(Exception):
    """A program of a machine ended or hangs that no test has stopped. The message contains the end of its log."""


def check() -> None:
    """Fails if a program has ended or hangs. All waiting calls this, so a test does not wait for such a program."""
    for machine in list(MACHINES):
        failed = {name: f"ended with status {status}" for name, status in machine.ended().items()}
        failed |= {name: f"has not answered for {seconds:.0f} s" for name, seconds in machine.hung().items()}
        for name, how in failed.items():
            logs = f"{tail(machine.log(name), LINES)}\nall logs: {write_report()}"
            raise ProgramFailed(f"{machine.name}: {name} {how}\n{logs}")


def write_report(*sections: str) -> Path:
    """Writes the last lines of all programs, and other sections, to a file that the name of the running test names."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].rpartition("::")[2]
    path = REPORTS / f"{re.sub('[^A-Za-z0-9_.-]+', '-', test).strip('-') or 'no-test'}-{os.getpid()}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    logs = [tail(log, REPORT_LINES, machine.name) for machine in list(MACHINES) for log in machine.all_logs()]
    with open(path, "a") as file:
        file.write("\n".join([f"=== {time.strftime('%H:%M:%S')}", *sections, *logs, ""]))
    return path


def tail(path: Path, lines: int, machine: str = "") -> str:
    """Returns the last lines of a log."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join([f"--- {machine} {path.name}", *text.splitlines()[-lines:]])
