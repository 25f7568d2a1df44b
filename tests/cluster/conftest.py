"""Makes the harness importable, and offers clusters to tests."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def require(message: str | None) -> None:
    """Skips a test with a message about what is missing, but fails it in continuous integration."""
    if message:
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
