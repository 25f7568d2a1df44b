#!/usr/bin/env python3
"""Runs the phases of `make test` and of continuous integration, and reports their times and failures.

    phases.py run NAME COMMAND...    runs a command, with its output in target/phases/NAME.log too
    phases.py quiet NAME COMMAND...  the same, and prints the output only after a failure: for a phase beside others
    phases.py clear                  forgets all phases
    phases.py report                 prints the table of the phases, and why phases failed

With PHASE_LIMIT_MINUTES, a phase that takes longer is killed, and its output ends with the processes that it had then.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "target/phases"
# Together with the table, the report fits into the last 40 lines of a log.
REPORT_LINES = 40
LINES_OF_A_FAILURE = 6
OUTPUT_AFTER_END_S = 10
LATE = "the phase did not end within"


def main() -> None:
    match sys.argv[1:]:
        case ["run" | "quiet" as mode, name, *command] if command:
            sys.exit(run(name, command, is_quiet=mode == "quiet"))
        case ["clear"]:
            shutil.rmtree(FOLDER, ignore_errors=True)
        case ["report"]:
            print("\n".join(report(load_phases())))
        case _:
            sys.exit(__doc__)


def run(name: str, command: list[str], *, is_quiet: bool) -> int:
    """Returns the exit status of the command. A signal to this process also ends the command."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    begin, received = time.time(), []
    with log_file(name).open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        def forward(number: int, _: object) -> None:
            received.append(number)
            process.send_signal(number)

        def copy() -> None:
            with suppress(ValueError):  # The log was closed.
                for line in process.stdout:
                    log.write(line)
                    log.flush()
                    if not is_quiet:
                        sys.stdout.buffer.write(line)
                        sys.stdout.buffer.flush()

        for number in [signal.SIGINT, signal.SIGTERM]:
            signal.signal(number, forward)
        copying = threading.Thread(target=copy, daemon=True)
        copying.start()
        with time_limit(process.pid) as late:
            status = process.wait()
        # A process that the command has left behind may have inherited its output.
        copying.join(OUTPUT_AFTER_END_S)
        if copying.is_alive():
            print(f"{name}: a process that outlives the phase keeps its output open", flush=True)
        log.write("".join(f"{line}\n" for line in late).encode())
    status = status if status >= 0 else 128 - status
    if received:  # The run ends for another reason, which the report describes.
        return status
    if is_quiet and status != 0:
        sys.stdout.write(log_file(name).read_text(errors="replace"))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = usage.ru_utime + usage.ru_stime
    phase = {"name": name, "begin": begin, "seconds": time.time() - begin, "cpu": cpu, "status": status}
    (FOLDER / f"{file_name(name)}.json").write_text(json.dumps(phase))
    return status


@contextmanager
def time_limit(pid: int) -> Iterator[list[str]]:
    """Kills a process and its descendants after the limit. Yields a list, which then gets a line about the limit and one for each of them."""
    minutes, lines = float(os.environ.get("PHASE_LIMIT_MINUTES", "inf")), []

    def kill() -> None:
        tree = descendants(pid)
        lines.append(f"{LATE} {minutes:g} minutes; its processes were:")
        lines.extend(f"  {process} {command_line(process)}" for process in tree)
        for process in tree:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    timer = threading.Timer(min(minutes * 60, threading.TIMEOUT_MAX), kill)
    timer.daemon = True
    timer.start()
    try:
        yield lines
    finally:
        timer.cancel()
        if lines:
            timer.join()


def descendants(pid: int) -> list[int]:
    """Returns a process and its descendants, parents first."""
    tree = [pid]
    for process in tree:
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            with suppress(OSError):
                tree += map(int, children.read_text().split())
    return tree


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")[:200]
    return ""


def load_phases() -> list[dict]:
    phases = [json.loads(file.read_text()) for file in FOLDER.glob("*.json")]
    return sorted(phases, key=lambda phase: phase["begin"])


def report(phases: list[dict]) -> list[str]:
    """Returns the table, and below it the failures of each failed phase."""
    if not phases:
        return ["no phase has ended"]
    start = phases[0]["begin"]
    table = ["phase                      start   seconds  of CPU"]
    for phase in phases:
        failed = "" if phase["status"] == 0 else f"  failed with {phase['status']}"
        table.append(f"{phase['name']:24} {phase['begin'] - start:7.0f} {phase['seconds']:9.0f} {phase['cpu']:7.0f}{failed}")
    end = max(phase["begin"] + phase["seconds"] for phase in phases)
    table.append(f"{'total':24} {0:7} {end - start:9.0f} {sum(phase['cpu'] for phase in phases):7.0f}")
    failed = [phase for phase in phases if phase["status"] != 0]
    rest = REPORT_LINES - len(table)
    lines = []
    for phase in failed:
        log = log_file(phase["name"])
        lines.append(f"{phase['name']} failed; its output is {log}")
        lines += failures(log.read_text(errors="replace").splitlines(), rest // len(failed) - 1)
    return table + lines


def failures(log: list[str], most: int) -> list[str]:
    """Returns at most this number of lines that say what failed: tests, else errors of the compiler, else the end of the log."""
    if late := next((number for number, line in enumerate(log) if line.startswith(LATE)), 0):
        processes = log[late:][: most * 2 // 3]
        return processes + log[:late][len(processes) - most :]
    found = rust_failures(log) or pytest_failures(log) or compiler_errors(log)
    if not found:
        return log[-most:]
    if len(found) > most:
        found = [*found[: most - 1], f"... {len(found) - most + 1} more lines"]
    return found


def rust_failures(log: list[str]) -> list[str]:
    """Returns the names of all failed tests of libtest, and then the first lines of the output of each."""
    names, details, rest = [], [], 0
    for line in log:
        if match := re.fullmatch(r"---- (.*) stdout ----", line):
            names.append(f"test {match[1]} failed")
            details.append(f"{match[1]}:")
            rest = LINES_OF_A_FAILURE
        elif line in ["failures:", "stack backtrace:"]:
            rest = 0
        elif re.match(r"the log of process \d+ is ", line):
            details.append("  " + line)
        elif rest and line.strip() and not line.startswith("thread '"):
            details.append("  " + line)
            rest -= 1
    return names + details


def pytest_failures(log: list[str]) -> list[str]:
    return [line for line in log if re.match(r"(FAILED|ERROR) \S+", line)]


def compiler_errors(log: list[str]) -> list[str]:
    found = []
    for number, line in enumerate(log):
        # Cargo's line about a failed test does not say why, for example if the test was aborted.
        if re.match(r"error(\[\w+\])?: (?!test failed)", line):
            found += log[number : number + 2]
    return found


def log_file(name: str) -> Path:
    return FOLDER / f"{file_name(name)}.log"


def file_name(name: str) -> str:
    return re.sub(r"\W+", "-", name)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
