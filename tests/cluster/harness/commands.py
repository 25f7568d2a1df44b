"""Runs commands, and waits for conditions that nothing announces. Both fail if a program of a cluster ends or hangs."""

import subprocess
import tempfile
import time
from collections.abc import Callable

from harness import health

# The default limit of all waiting: more than ten times of what it usually takes, because the machine may be busy.
LIMIT_S = 300


class CommandFailed(Exception):
    """A command with an exit status other than 0. The message contains its output."""

    def __init__(self, command: list[str], result: subprocess.CompletedProcess) -> None:
        self.stdout, self.stderr, self.returncode = result.stdout, result.stderr, result.returncode
        output = (result.stderr or result.stdout)[-4000:]
        super().__init__(f"`{' '.join(command)}` failed with {result.returncode}: {output}")


def run(command: list, input: str | None = None, **options) -> str:
    """Returns the standard output of a command."""
    result = complete(command, input, **options)
    if result.returncode != 0:
        raise CommandFailed(result.args, result)
    return result.stdout


def complete(
    command: list, input: str | None = None, timeout: float = LIMIT_S, **options
) -> subprocess.CompletedProcess:
    """Returns the output and the exit status of a command that may fail. Kills it after `timeout` seconds."""
    command, end = [str(part) for part in command], time.monotonic() + timeout
    # A file, because `communicate` does not continue to write to a pipe after its own timeout.
    with tempfile.TemporaryFile("w+") as file:
        file.write(input or "")
        file.seek(0)
        pipes = {"stdin": file, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes, **options) as process:
            try:
                while True:
                    try:
                        stdout, stderr = process.communicate(timeout=1)
                        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
                    except subprocess.TimeoutExpired:
                        health.check()
                    if time.monotonic() > end:
                        report = health.write_report()
                        raise TimeoutError(f"`{' '.join(command)}` took more than {timeout} s; all logs: {report}")
            finally:
                process.kill()


def until(condition: Callable[[], object], what: str, timeout: float = LIMIT_S) -> object:
    """Returns the first result of `condition` that is true. Prefer `Cluster.wait` and `watch`, which do not poll."""
    end = time.monotonic() + timeout
    while not (result := condition()):
        health.check()
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not true after {timeout} s; all logs: {health.write_report()}")
        time.sleep(0.1)
    return result


def succeeds(command: list) -> bool:
    return complete(command).returncode == 0
