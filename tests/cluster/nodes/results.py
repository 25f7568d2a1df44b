"""The numbers that tests measure: printed, and kept in target/cluster-results.json for docs/performance.md."""

import fcntl
import functools
import json
import os
import time
from pathlib import Path

from harness.programs import REPOSITORY
from nodes import images

# The lines of each test, by the id of the test.
LINES: dict[str, list[str]] = {}
# The files with the logs of failed tests, by the id of the test.
REPORTS: dict[str, Path] = {}
FILE = REPOSITORY / "target/cluster-results.json"
# Only a debug build contains the messages of these checks of Rust's standard library.
DEBUG_MARK = b"unsafe precondition(s) violated"


def record(name: str, **numbers: object) -> None:
    """Replaces the numbers of one test in the file, with the version and the profile of the image."""
    line = f"{name}: {', '.join(f'{key} {value}' for key, value in numbers.items())}"
    print(line, flush=True)
    LINES.setdefault(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0], []).append(line)
    with open(FILE.with_suffix(".lock"), "w") as lock:  # Long tests run in another process.
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = json.loads(FILE.read_text()) if FILE.exists() else {}
        results[name] = {"measured": time.strftime("%Y-%m-%d"), "image": image(), **numbers}
        partial = FILE.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        partial.replace(FILE)


@functools.cache
def image() -> str:
    """Returns the version and the profile of the binary in the image."""
    return f"{images.VERSION} {'debug' if DEBUG_MARK in images.binary() else 'release'}"
