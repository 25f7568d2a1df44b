"""Fixtures: one cluster of three nodes for all tests, and a release in a namespace of its own for each test."""

import re
import secrets

import pytest
from harness import Cluster, health, missing_requirement
from nodes import data, images, results
from nodes.pods import EPOCHS, Received, Training
from nodes.release import NodeRelease, recycle_volumes


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Notes whether a test failed, for its fixtures, and keeps the logs of its cluster."""
    report = yield
    if report.failed and health.MACHINES:
        results.REPORTS[item.nodeid] = health.write_report()
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints one line for each test: its outcome, its duration, and the numbers that it measured."""
    reports = [report for outcome in ["passed", "failed"] for report in terminalreporter.stats.get(outcome, [])]
    for report in sorted(reports, key=lambda report: report.start):
        numbers = "; ".join(results.LINES.get(report.nodeid, []))
        name = report.nodeid.rpartition("/")[2]
        line = f"{name} {report.outcome} after {report.duration:.0f} s"
        terminalreporter.write_line(f"{line}: {numbers}" if numbers else line)
        if log := results.REPORTS.get(report.nodeid):
            terminalreporter.write_line(f"  logs: {log}")
    if results.LINES:
        terminalreporter.write_line(f"image: {results.image()}; numbers in {results.FILE}")


@pytest.fixture(scope="session")
def nodes():
    from conftest import require

    require(missing_requirement(nodes=3, more=["helm3", "helm4"]))
    require(images.missing())
    with Cluster(nodes=3, images=images.archives()) as cluster:
        data.write(cluster)
        yield cluster


@pytest.fixture(scope="session")
def reference(nodes: Cluster) -> Received:
    """What a training program receives without a cluster and faults. The time of a row does not change the order."""
    namespace = "reference"
    nodes.create_namespace(namespace)
    nodes.apply(*data.volume(nodes, namespace), namespace=namespace)
    return Training(nodes, namespace, "reference").start("", data.pipeline(), epochs=EPOCHS).until_end()


@pytest.fixture
def release(nodes: Cluster, request):
    """A release that is not installed yet. The logs of the pods of a failed test remain in a file."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:30].strip("-")
    release = NodeRelease(nodes, f"{name}-{secrets.token_hex(2)}")
    yield release
    if FAILED in request.node.stash:
        health.write_report(nodes.describe(release.namespace), release.logs())
    nodes.until_recovered()
    release.remove()
    recycle_volumes(nodes)
