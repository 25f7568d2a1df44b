"""Makes the modules of `helm` importable, and provides the tools of the tests."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from skips import give_up, pytest_terminal_summary  # noqa: E402, F401


@pytest.fixture(scope="session")
def helm():
    from rendering import find_helm

    if not find_helm():
        give_up("Helm is missing, so the chart is not rendered: run `make test-chart`, or set HELM")


@pytest.fixture(scope="session")
def schemas():
    try:
        import kubernetes_validate
    except ImportError:
        give_up("kubernetes-validate is missing, so the objects are not validated: run `make test-chart`")
    return kubernetes_validate


@pytest.fixture(scope="session")
def promtool():
    if not shutil.which("promtool"):
        give_up("promtool is missing, so the alerts are not tested: run `make setup NEEDED=prometheus`")
