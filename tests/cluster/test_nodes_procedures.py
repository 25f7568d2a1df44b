"""Procedures of docs/kubernetes.md that no other test executes."""

import time

import pytest
from harness import until
from nodes import data
from nodes.release import FIXED, tolerant
from nodes.results import record

VOTERS_S = 30
WAIT_MS = 5


@pytest.mark.parametrize("major", [3, 4])
def test_second_installation_continues_the_jobs(release, reference, major):
    """`helm uninstall` keeps the claims and the Secrets. A second installation continues a job whose trainer waits."""
    release.major = major
    values = FIXED | {"workers": {"replicas": 2}}
    release.install(values)
    training = release.train("training", data.pipeline(WAIT_MS), "--buffer", 4096, "--patience", 600)
    training.until_steady()
    kept = identities(release)
    begun = time.time()
    release.uninstall()
    until(lambda: not release.coordinators() and not release.workers(), "all pods ended")
    assert identities(release) == kept, "a claim or a Secret was deleted or replaced"
    release.install(values)
    installed = time.time()
    assert identities(release) == kept
    training.until_after(installed + 5)
    received = training.stop()
    record(
        f"uninstalled and installed again by Helm {major}",
        outage_s=received.stall(begun, installed + 5),
        rows=received.rows,
    )
    received.check(reference)


def identities(release) -> set[tuple[str, str]]:
    """Returns the claims of coordinators and the Secrets with keys, by name and uid."""
    items = [*release.get("pvc")["items"], *release.get("secret")["items"]]
    kept = [item["metadata"] for item in items if item["metadata"]["name"] != "data"]
    return {(item["name"], item["uid"]) for item in kept if not item["name"].startswith("sh.helm.")}


def test_deleted_claim(release, reference):
    """The procedure for a lost volume: delete the claim and the pod."""
    release.install(FIXED | {"workers": {"replicas": 2}})
    training = release.train("training", data.pipeline(WAIT_MS), "--buffer", 4096)
    training.until_steady()
    lost = f"{release.prefix}-coordinator-1"
    [old] = [member["id"] for member in release.members() if f"//{lost}." in member["url"]]
    begun = time.time()
    release.cluster.kubectl("delete", "pvc", f"data-{lost}", "-n", release.namespace, "--wait=false")
    release.cluster.kubectl("delete", "pod", lost, "-n", release.namespace)
    until(
        tolerant(lambda: old not in [member["id"] for member in release.members()]),
        "the coordinator has another id",
        90,
    )
    release.until_voters(3)
    ended = time.time()
    training.until_after(ended + 5)
    received = training.stop()
    record("claim deleted to three voters", seconds=round(ended - begun, 1), stall_s=received.stall(begun, ended + 5))
    received.check(reference)
    assert ended - begun <= VOTERS_S
