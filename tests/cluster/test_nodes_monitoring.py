"""Monitoring through the prometheus-operator, which finds the pods and the rules by objects of the chart."""

import shutil
import time

import pytest
from conftest import require
from harness import LIMIT_S, until
from harness.programs import TOOLS
from nodes import data
from nodes.operators import Prometheus, install_prometheus_operator
from nodes.release import FIXED
from nodes.results import record
from releases import CHART

VALUES = FIXED | {
    "workers": {"replicas": 2},
    "monitoring": {
        "monitor": "PodMonitor",
        "interval": "2s",
        "additionalLabels": {"prometheus": "tests"},
        "rules": {"enabled": True, "for": {"FeedlineNoLeader": "5s", "FeedlineQuorumAtRisk": "5s"}},
    },
}


@pytest.fixture
def prometheus(release):
    require(
        None
        if shutil.which("go")
        else "Go is missing, so the CRDs of the prometheus-operator are not found: install Go"
    )
    programs = ["prometheus", "prometheus-operator", "prometheus-config-reloader"]
    missing = [program for program in programs if not (TOOLS / program).exists()]
    require(f"{TOOLS} lacks {', '.join(missing)}: run `make cluster-tools WITH=prometheus`" if missing else None)
    install_prometheus_operator(release.cluster, release.namespace)
    return Prometheus(release.cluster, release.namespace)


def test_pod_monitor_and_rules(release, prometheus):
    release.install(VALUES)
    training = release.train("training", data.pipeline(5), "--buffer", 4096)
    training.until_steady()

    until_scraped(prometheus, {*release.coordinators(), *release.workers()})
    [leads] = prometheus.query("sum(feedline_coordinator_leads)")
    assert leads["value"][1] == "1"
    sent = "sum(rate(feedline_worker_sent_rows_total[10s])) > 0"
    until(lambda: prometheus.query(sent), "rows are counted")

    names = {path.stem for path in (CHART / "files/alerts").glob("*.yaml")}
    until(lambda: names <= set(prometheus.rules()), f"Prometheus has the rules {sorted(names)}")
    broken = {name: rule["lastError"] for name, rule in prometheus.rules().items() if rule["health"] == "err"}
    assert not broken
    firing = {
        alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"] if alert["state"] == "firing"
    }
    assert not firing, "a healthy cluster has no alert"
    training.stop()

    # A former leader counts for two minutes.
    lost = until_fires(release, prometheus, "FeedlineQuorumAtRisk", 2)
    gone = until_fires(release, prometheus, "FeedlineNoLeader", 1)
    scale(release, 3)
    release.until_ready()
    until(lambda: prometheus.rules()["FeedlineNoLeader"]["state"] == "inactive", "FeedlineNoLeader ends")
    record("coordinators gone to a firing alert", one_s=lost, two_s=gone)


def until_scraped(prometheus: Prometheus, pods: set[str]) -> None:
    """Waits until all pods are targets of Prometheus, and answer."""
    errors = lambda: {target["labels"]["pod"]: target["lastError"] for target in prometheus.targets()}  # noqa: E731
    try:
        until(lambda: errors() == dict.fromkeys(pods, ""), "Prometheus scrapes all pods")
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {errors()}") from None


def until_fires(release, prometheus: Prometheus, alert: str, coordinators: int) -> float:
    """Leaves this number of coordinators, and returns the seconds until the alert fires."""
    begun = time.monotonic()
    scale(release, coordinators)
    until(lambda: prometheus.rules()[alert]["state"] == "firing", f"{alert} fires", 2 * LIMIT_S)
    return round(time.monotonic() - begun, 1)


def scale(release, coordinators: int) -> None:
    statefulset = f"statefulset/{release.prefix}-coordinator"
    release.cluster.kubectl("scale", statefulset, f"--replicas={coordinators}", "-n", release.namespace)
