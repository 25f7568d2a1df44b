"""Jobs under faults, upgrades and changes of the cluster: how long a training program waits, and what it receives."""

import time
from collections.abc import Callable
from datetime import datetime

import pytest
from harness import CommandFailed, until
from nodes import data, images
from nodes.pods import Training
from nodes.release import FIXED, OPERATOR_NODE, tolerant, wipe
from nodes.results import record

STALL_S, NODE_STALL_S, VOTERS_S, SERVING_S = 5, 8, 30, 3
BUFFER = 4096
WAIT_MS = 5
# The time after a fault or its repair that belongs to it.
SETTLE_S = 10
TWO_WORKERS = FIXED | {"workers": {"replicas": 2}}


def test_lost_worker_pod(release, reference):
    release.install(TWO_WORKERS)
    stall_of(release, reference, "worker pod lost", lambda: release.kill(release.workers()[0]))


def test_lost_leader(release, reference):
    release.install(TWO_WORKERS)
    stall_of(release, reference, "leader lost", lambda: release.kill(release.leader()))


def test_lost_node(release, reference):
    """The node with the leader vanishes, and returns."""
    release.install(TWO_WORKERS)
    node = release.node_of(release.move_leader(avoid=OPERATOR_NODE))

    def lose(training: Training) -> None:
        release.cluster.cut(node)
        try:
            training.until_after(time.time() + 15)
        finally:
            release.cluster.restore(node)
            release.cluster.wait(f"node/{node}", "condition=Ready")

    stall_of(release, reference, "node with the leader vanishes", lose, NODE_STALL_S)
    release.until_voters(3)


def test_lost_volume(release, reference):
    release.install(TWO_WORKERS)
    seconds = []

    def lose() -> None:
        before = release.members()
        [url] = [member["url"] for member in before if member["leads"]]
        leader = release.leader()
        claim = release.get(f"pvc/data-{leader}")["spec"]["volumeName"]
        volume = release.cluster.kubectl_json("get", f"pv/{claim}")
        begun = time.monotonic()
        release.kill(leader)
        wipe(release.cluster, release.node_of(leader), volume["spec"]["local"]["path"])
        old = next(member["id"] for member in before if member["url"] == url)
        replaced = tolerant(lambda: old not in [member["id"] for member in release.members()])
        until(replaced, "the wiped coordinator has another id")
        release.until_voters(3)
        seconds.append(round(time.monotonic() - begun, 1))

    stall_of(release, reference, "volume of the leader lost", lose)
    record("volume lost to three voters", seconds=seconds[0])
    assert seconds[0] <= VOTERS_S


@pytest.mark.parametrize("major", [3, 4])
def test_rolling_upgrade(release, reference, major):
    """Another tag and other values at once, and back by a rollback."""
    release.major = major
    release.install(TWO_WORKERS)
    values = {
        "image": {"tag": images.NEXT_VERSION},
        "coordinators": {"podAnnotations": {"note": "upgraded"}},
        "workers": {"memory": "60%"},
    }
    stall_of(release, reference, f"rolling upgrade by Helm {major}", lambda: release.upgrade(values))
    pods = release.get("pods")["items"]
    tags = {
        pod["spec"]["containers"][0]["image"]
        for pod in pods
        if "helm.sh/chart" not in pod["metadata"].get("annotations", {})
    }
    assert f"feedline:{images.NEXT_VERSION}" in tags and f"feedline:{images.VERSION}" not in tags
    stall_of(release, reference, f"rollback by Helm {major}", lambda: release.rollback(1))


def test_scale_in(release, reference):
    release.install(FIXED | {"workers": {"replicas": 4}})

    def shrink() -> None:
        release.upgrade({"workers": {"replicas": 1}})
        until(lambda: len(release.workers()) == 1, "one worker")

    stall_of(release, reference, "scale-in from 4 to 1", shrink)


def test_drained_node(release, reference):
    """`kubectl drain` of the node with the leader, under the budgets for disruptions."""
    release.install(TWO_WORKERS)
    node = release.node_of(release.move_leader(avoid=OPERATOR_NODE))

    def drain() -> None:
        flags = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s"]
        release.cluster.kubectl("drain", node, *flags, timeout=330)
        release.cluster.kubectl("uncordon", node)
        release.until_ready()

    try:
        stall_of(release, reference, "node drained", drain)
    finally:
        release.cluster.kubectl("uncordon", node)


def test_restart_under_new_addresses(release, reference):
    """All coordinators end at once, and return with other addresses of their pods."""
    release.install(TWO_WORKERS)
    addresses = lambda: {pod["status"].get("podIP") for pod in coordinators(release)}  # noqa: E731
    before = addresses()
    seconds = []

    def restart() -> None:
        killed = time.time()
        for name in release.coordinators():
            release.kill(name)
        leads = "this coordinator is the leader"
        until(lambda: any(log_times(release, leads, killed)), "a leader")
        starts = sorted(log_times(release, "", killed))
        seconds.append(round(min(log_times(release, leads, killed)) - starts[1], 1))

    stall_of(release, reference, "all coordinators restarted", restart, allowed=None)
    assert not before & addresses(), "the pods returned with an old address"
    record("second coordinator started to serving", seconds=seconds[0])
    assert seconds[0] <= SERVING_S


@pytest.mark.parametrize("major", [3, 4])
def test_member_changes(release, reference, major):
    """1 > 3 > 5 > 3 > 1 coordinators by `helm upgrade --wait`, under one job."""
    release.major = major
    release.install(FIXED | {"coordinators": {"replicas": 1}, "workers": {"replicas": 2}})
    durations = []

    def change() -> None:
        for count in [3, 5, 3, 1]:
            begun = time.monotonic()
            release.upgrade({"coordinators": {"replicas": count}})
            release.until_voters(count)
            durations.append(round(time.monotonic() - begun, 1))
            release.delete_claims(count)

    stall_of(release, reference, f"1 > 3 > 5 > 3 > 1 coordinators by Helm {major}", change)
    record(f"member changes by Helm {major}", seconds=durations)


def stall_of(release, reference, name: str, fault: Callable, allowed: float | None = STALL_S) -> None:
    """Causes a fault under a job, and checks how long a training program waited and that it received each row once."""
    training = release.train(f"training-{len(release.jobs)}", data.pipeline(WAIT_MS), "--buffer", BUFFER)
    release.jobs.append(training)
    training.until_steady()
    begun = time.time()
    fault(training) if fault.__code__.co_argcount else fault()
    ended = time.time()
    training.until_after(ended + SETTLE_S)
    received = training.stop()
    stall = received.stall(begun, ended + SETTLE_S)
    record(
        name,
        stall_s=stall,
        fault_s=round(ended - begun, 1),
        rows=received.rows,
        lost=received.missing,
        repeated=received.repeated,
    )
    received.check(reference)
    assert allowed is None or stall <= allowed


def coordinators(release) -> list[dict]:
    selector = "--selector=app.kubernetes.io/component=coordinator"
    return release.cluster.kubectl_json("get", "pods", selector, "-n", release.namespace)["items"]


def log_times(release, text: str, after: float) -> list[float]:
    """Returns when each running coordinator first logged a line with this text after a Unix time."""
    times = []
    for name in release.coordinators():
        try:
            log = release.cluster.kubectl("logs", name, "-n", release.namespace, "--timestamps")
        except CommandFailed:  # The container does not run yet.
            continue
        found = [parse_time(line.split()[0]) for line in log.splitlines() if text in line]
        times += [at for at in found if at > after][:1]
    return times


def parse_time(text: str) -> float:
    return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()
