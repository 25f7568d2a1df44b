"""Evictions, drains of nodes, and many workers."""

import json

import pytest

from harness import Cluster
from releases import Release

COORDINATOR, WORKER = "demo-feedline-coordinator", "demo-feedline-worker"


@pytest.fixture
def release(control_plane: Cluster, namespace: str) -> Release:
    return Release(control_plane, namespace)


@pytest.fixture
def full_nodes(control_plane: Cluster):
    """Makes new pods wait, so that the replacement of an evicted pod is not ready."""

    def cordon() -> None:
        control_plane.kubectl("cordon", "--selector=kubernetes.io/os=linux")

    yield cordon
    uncordon(control_plane)


def test_the_eviction_of_a_second_coordinator_is_refused(release, full_nodes):
    release.install()
    full_nodes()
    assert evict(release, f"{COORDINATOR}-0") == ""
    release.cluster.wait(f"pdb/{COORDINATOR}", "jsonpath={.status.disruptionsAllowed}=0", release.namespace)
    assert "would violate the pod's disruption budget" in evict(release, f"{COORDINATOR}-1")
    uncordon(release.cluster)
    release.cluster.wait(f"pdb/{COORDINATOR}", "jsonpath={.status.disruptionsAllowed}=1", release.namespace)
    assert evict(release, f"{COORDINATOR}-1") == ""


def test_a_single_coordinator_does_not_block_the_drain_of_a_node(release):
    release.install({"coordinators": {"replicas": 1}})
    [node] = {pod["spec"]["nodeName"] for pod in pods(release, "coordinator")}
    drain(release, node)
    release.cluster.wait(f"pod/{COORDINATOR}-0", "condition=Ready", release.namespace)
    assert node not in {pod["spec"]["nodeName"] for pod in pods(release, "coordinator")}
    uncordon(release.cluster)


def test_two_hundred_workers_in_two_pools(release):
    pools = [{"name": "spot"}, {"name": "disk"}]
    release.install({"workers": {"max": 100, "pools": pools}})
    names = [f"{WORKER}-spot", f"{WORKER}-disk"]
    for name in names:
        scale(release, name, 100)
    for name in names:
        wait_for_workers(release, name, 100)
        release.cluster.wait(f"pdb/{name}", "jsonpath={.status.disruptionsAllowed}=25", release.namespace)
    assert set(pods_by_node(release)) == set(release.cluster.kubectl("get", "nodes", "--output=name").split())
    # A rollout replaces all of them, and stays within the budget and the surge.
    release.upgrade({"workers": {"max": 100, "pools": pools, "podLabels": {"new": "yes"}}})
    for name in names:
        status = release.get(f"deployment/{name}")["status"]
        assert status["updatedReplicas"] == status["readyReplicas"] == 100
    scale(release, names[0], 1)
    release.cluster.watch(
        "pods", lambda found: len(found) == 101, release.namespace, selector="app.kubernetes.io/component=worker"
    )
    assert release.get(f"deployment/{names[1]}")["status"]["readyReplicas"] == 100


def test_the_drain_of_a_node_moves_its_workers(release):
    release.install({"workers": {"max": 40}})
    scale(release, WORKER, 40)
    wait_for_workers(release, WORKER, 40)
    drain(release, "node-1")
    wait_for_workers(release, WORKER, 40)
    assert "node/node-1" not in pods_by_node(release)
    uncordon(release.cluster)


def evict(release: Release, pod: str) -> str:
    """Returns the error of the eviction API, or an empty string."""
    metadata = {"name": pod, "namespace": release.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod}/eviction"
    return release.cluster.kubectl_result("create", "--raw", path, "--filename=-", input=json.dumps(eviction)).stderr


def drain(release: Release, node: str) -> None:
    release.cluster.kubectl("drain", node, "--delete-emptydir-data", "--timeout=300s", "--force", timeout=330)


def uncordon(cluster: Cluster) -> None:
    cluster.kubectl("uncordon", "--selector=kubernetes.io/os=linux")


def scale(release: Release, name: str, number: int) -> None:
    release.cluster.kubectl("scale", f"deployment/{name}", f"--replicas={number}", "--namespace", release.namespace)


def wait_for_workers(release: Release, name: str, number: int) -> None:
    condition = f"jsonpath={{.status.readyReplicas}}={number}"
    release.cluster.wait(f"deployment/{name}", condition, release.namespace)


def pods(release: Release, component: str) -> list[dict]:
    selector = f"--selector=app.kubernetes.io/component={component}"
    return release.cluster.kubectl_json("get", "pods", selector, "--namespace", release.namespace)["items"]


def pods_by_node(release: Release) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pod in pods(release, "worker"):
        node = f"node/{pod['spec'].get('nodeName')}"
        counts[node] = counts.get(node, 0) + 1
    return counts
