"""Provides real Kafka brokers. Without Java, the tests are skipped, and fail in continuous integration."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from brokers import Brokers, downloads, missing_programs  # noqa: E402
from jobs import BINARY, Jobs  # noqa: E402
from registry import Registry  # noqa: E402
from topics import Topics  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "smoke: tests with at most one broker, which continuous integration runs for each change")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if not {"cluster", "secure", "service"} & set(item.fixturenames):
            item.add_marker(pytest.mark.smoke)


def pytest_sessionstart(session):
    missing = missing_programs() or ("" if BINARY.is_file() else f"{BINARY} (`make build`)")
    if missing and os.environ.get("CI"):
        pytest.exit(f"the tests of Kafka need {missing}", returncode=1)
    if missing:
        pytest.exit(f"skipped the tests of Kafka, because {missing} is missing", returncode=0)
    if not hasattr(session.config, "workerinput"):
        # The processes of pytest-xdist start later.
        downloads.provide("kafka")


@pytest.fixture(scope="session")
def brokers(tmp_path_factory):
    """One broker, for tests that do not stop it."""
    brokers = Brokers(tmp_path_factory.mktemp("broker") / "kafka")
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Three brokers, for tests that kill one. A test starts what it has killed."""
    cluster = Brokers(tmp_path_factory.mktemp("cluster") / "kafka", count=3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def topics(brokers):
    return Topics(brokers.servers())


@pytest.fixture
def jobs(tmp_path):
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.stop()


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    try:
        registry = Registry(tmp_path_factory.mktemp("registry") / "log")
    except SystemExit as error:
        if os.environ.get("CI"):
            pytest.fail(f"the tests with a real schema registry need its archive: {error}")
        pytest.skip(f"skipped the tests with a real schema registry, because it cannot be downloaded: {error}")
    try:
        registry.wait_until_ready()
        yield registry
    finally:
        registry.stop()
