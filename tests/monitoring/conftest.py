"""Makes the modules of the tests of the chart importable, and provides a Prometheus that evaluates its rules."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "helm"))
sys.path.insert(0, str(Path(__file__).parents[2] / "helm/tests"))

from prometheus import Prometheus, find_prometheuses, missing_prometheus  # noqa: E402
from rendering import find, find_helm, render  # noqa: E402
from roles import Roles, find_binary  # noqa: E402
from skips import give_up, pytest_terminal_summary  # noqa: E402, F401

# Time for which the condition of an alert must hold in these tests.
SHORT_FOR = "1s"


@pytest.fixture(scope="session")
def tools():
    if not find_helm():
        give_up("Helm is missing: run `make test-chart` once, or set HELM")
    if message := missing_prometheus():
        give_up(message)
    if not find_binary():
        give_up("the feedline binary is missing: run `make build`, or set FEEDLINE_BINARY")


@pytest.fixture(scope="module")
def roles(tools, tmp_path_factory):
    roles = Roles(tmp_path_factory.mktemp("roles"))
    yield roles
    roles.stop()


@pytest.fixture(scope="module")
def prometheus(tools, roles, tmp_path_factory):
    """A Prometheus with the rules of the chart, whose times are shortened by the chart's own values."""
    folder = tmp_path_factory.mktemp("prometheus")
    keys = roles.create_keys()
    prometheus = Prometheus(folder, shortened_groups(), keys, find_prometheuses()[0])
    yield prometheus
    prometheus.stop()


def shortened_groups() -> list[dict]:
    def groups(*arguments: str) -> list[dict]:
        objects = render("minimal", "--set", "monitoring.rules.enabled=true", *arguments)
        return find(objects, "PrometheusRule", "")["spec"]["groups"]

    alerts = [rule["alert"] for group in groups() for rule in group["rules"] if "alert" in rule]
    overrides = ",".join(f"monitoring.rules.for.{alert}={SHORT_FOR}" for alert in alerts)
    shortened = groups("--set", overrides)
    assert all(rule.get("for", SHORT_FOR) == SHORT_FOR for group in shortened for rule in group["rules"])
    return shortened
