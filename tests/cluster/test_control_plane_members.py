"""Changes of the number of coordinators."""

import pytest

from harness import Cluster
from manifests import load
from releases import Release

COORDINATOR = "demo-feedline-coordinator"
SYNC = "demo-feedline-members"


@pytest.mark.parametrize("major", [3, 4], ids=["helm3", "helm4"])
def test_members_are_removed_before_their_pods(control_plane: Cluster, namespace: str, major: int):
    release = Release(control_plane, namespace, major)
    release.install(coordinators(1))
    for number in [3, 5]:
        release.upgrade(coordinators(number))
        assert is_running(release, number)
        assert SYNC not in hooks(release), "members join on their own"
    for number in [3, 1]:
        release.upgrade(coordinators(number))
        assert is_running(release, number)
        assert sync_targets(release) == number
    completed = [event for event in events(release, SYNC) if event["reason"] == "Completed"]
    deleted = [event for event in events(release, COORDINATOR) if is_deletion(event, 4)]
    assert len(completed) == 2 and deleted, events(release, COORDINATOR)
    first = min(event["metadata"]["creationTimestamp"] for event in completed)
    assert first <= min(event["metadata"]["creationTimestamp"] for event in deleted)
    # Their logs remain, as the default of `whenScaled` says.
    claims = {claim["metadata"]["name"] for claim in release.get("pvc")["items"]}
    assert claims == {f"data-{COORDINATOR}-{ordinal}" for ordinal in range(5)}


@pytest.mark.parametrize("major", [3, 4], ids=["helm3", "helm4"])
def test_a_rollback_removes_members_before_their_pods(control_plane: Cluster, namespace: str, major: int):
    release = Release(control_plane, namespace, major)
    release.install(coordinators(1))
    release.upgrade(coordinators(3))
    release.rollback(1)
    assert is_running(release, 1)
    [completed] = [event for event in events(release, f"{SYNC}-rollback") if event["reason"] == "Completed"]
    deleted = [event for event in events(release, COORDINATOR) if is_deletion(event, 2)]
    assert deleted, events(release, COORDINATOR)
    first_deleted = min(event["metadata"]["creationTimestamp"] for event in deleted)
    assert completed["metadata"]["creationTimestamp"] <= first_deleted
    [container] = hooks(release)[f"{SYNC}-rollback"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][2].count(COORDINATOR + "-0.") == 1 and "--if-surplus" in container["args"]


def test_claims_of_removed_coordinators_are_deleted_on_request(control_plane: Cluster, namespace: str):
    release = Release(control_plane, namespace)
    values = {"persistence": {"whenScaled": "Delete"}}
    release.install({"coordinators": values | {"replicas": 3}})
    release.upgrade({"coordinators": values | {"replicas": 1}})
    control_plane.watch("pvc", lambda claims: set(claims) == {f"data-{COORDINATOR}-0"}, namespace)


def coordinators(number: int) -> dict:
    return {"coordinators": {"replicas": number}}


def is_running(release: Release, number: int) -> bool:
    """Whether as many pods are ready, and each knows the addresses of all."""
    release.cluster.watch(
        "pods",
        lambda pods: set(pods) == {f"{COORDINATOR}-{ordinal}" for ordinal in range(number)},
        release.namespace,
        selector="app.kubernetes.io/component=coordinator",
    )
    stateful_set = release.get(f"statefulset/{COORDINATOR}")
    arguments = stateful_set["spec"]["template"]["spec"]["containers"][0]["args"]
    [peers] = [argument for argument in arguments if argument.startswith("--peers=")]
    assert [f"{COORDINATOR}-{ordinal}." in peers for ordinal in range(6)] == [ordinal < number for ordinal in range(6)]
    return stateful_set["status"]["readyReplicas"] == stateful_set["status"]["updatedReplicas"] == number


def hooks(release: Release) -> dict[str, dict]:
    text = release.cluster.helm(release.major, "get", "hooks", release.name, "--namespace", release.namespace)
    return {item["metadata"]["name"]: item for item in load(text) if item["kind"] == "Job"}


def sync_targets(release: Release) -> int:
    """Returns the number of members that the hook leaves."""
    [container] = hooks(release)[SYNC]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["members", "sync"]
    return len(container["args"][2].split(","))


def events(release: Release, name: str) -> list[dict]:
    return [event for event in release.get("events")["items"] if event["involvedObject"]["name"] == name]


def is_deletion(event: dict, ordinal: int) -> bool:
    return event["reason"] == "SuccessfulDelete" and f"{COORDINATOR}-{ordinal} " in event["message"]
