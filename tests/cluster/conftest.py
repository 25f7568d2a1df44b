"""Makes the harness importable, and offers clusters to tests."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import Cluster, missing_requirement, until  # noqa: E402
from harness.programs import TOOLS  # noqa: E402
from nodes.fixtures import (  # noqa: E402, F401
    nodes,
    pytest_runtest_makereport,
    pytest_terminal_summary,
    reference,
    release,
)

FAKE_NODES = 6
# A claim needs a volume in a cluster whose nodes are fake.
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "fake", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/no-provisioner",
}
VOLUMES_PER_NAMESPACE = 8
# The order of the files: what breaks first is seen first.
ORDER = ["test_control_plane", "test_nodes", "test_"]


def pytest_configure(config: pytest.Config) -> None:
    # Users other than root in pods read files that the harness and containerd create.
    os.umask(0o022)
    config.addinivalue_line("markers", "control_plane: the tests with fake nodes, or without a cluster")
    config.addinivalue_line("markers", "long: tests that wait for minutes, in a cluster of their own")
    config.addinivalue_line("markers", "smoke: the test with real nodes that continuous integration runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith(("test_control_plane", "test_tools", "test_harness")):
            item.add_marker("control_plane")
    items.sort(key=lambda item: next(i for i, prefix in enumerate(ORDER) if item.path.name.startswith(prefix)))


def require(message: str | None) -> None:
    """Skips a test with a message about what is missing, but fails it in continuous integration."""
    if message:
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """A control plane with fake nodes: pods become ready and jobs complete, but nothing runs."""
    require(missing_requirement(0, FAKE_NODES, ["helm3", "helm4"]))
    with Cluster(fake_nodes=FAKE_NODES) as cluster:
        cluster.apply(CLASS)
        yield cluster


@pytest.fixture(scope="session")
def crds(control_plane: Cluster) -> None:
    """The CRDs of the projects that the chart and the examples use."""
    require(None if (TOOLS / "crds").exists() else f"{TOOLS}/crds is missing: run `make cluster-tools`")
    # Not `apply`, whose annotation is limited to 256 KiB.
    control_plane.kubectl("create", "--filename", TOOLS / "crds")
    # `kubectl wait` fails for a CRD without any condition yet.
    established = ["wait", "crd", "--all", "--for=condition=Established"]
    until(lambda: control_plane.kubectl_result(*established).returncode == 0, "all CRDs are established")


@pytest.fixture
def new_namespace(control_plane: Cluster) -> Iterator[Callable[[], str]]:
    """Creates namespaces with volumes, which admit only restricted pods, and deletes them after the test."""
    names = []

    def create() -> str:
        name = f"test-{os.urandom(3).hex()}"
        names.append(name)
        control_plane.create_namespace(name)
        control_plane.apply(*(volume(f"{name}-{number}", name) for number in range(VOLUMES_PER_NAMESPACE)))
        return name

    yield create
    for name in names:
        control_plane.kubectl("delete", "namespace", name, "--wait=false")
        control_plane.kubectl("delete", "pv", f"--selector=for={name}", "--wait=false")


@pytest.fixture
def namespace(new_namespace: Callable[..., str]) -> str:
    return new_namespace()


def volume(name: str, namespace: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"for": namespace}},
        "spec": {
            "capacity": {"storage": "1Ti"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fake",
            "hostPath": {"path": "/none"},
        },
    }
