"""Skips tests whose tools are missing, or fails them in continuous integration."""

import os
from collections import Counter

import pytest


def give_up(message: str) -> None:
    """Skips a test, but fails it in continuous integration."""
    pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints one sentence for all tests that were skipped for the same reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.items():
        terminalreporter.write_line(f"skipped {count} test{'s' * (count > 1)}: {reason}")
