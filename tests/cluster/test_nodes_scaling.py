"""Scaling by the leading coordinator: 1 > 4 > 1 workers as the demand changes, and what interrupts it."""

import time

from harness import until
from nodes import data
from nodes.results import record
from nodes.scaling import Observer, ReplicaWatch, until_fed

PATCH_S, FED_S, STALL_S = 2, 20, 5
FED = 0.95
# A worker computes 50 rows per second, one after another, so the number of pods is the limit. A step has 10 rows.
WAIT_MS, BATCH = 20, 10
# Milliseconds of a step: 36 rows per second for one worker, four times as much, and more than four workers can feed.
LOW_MS, HIGH_MS, FLOOD_MS = 280, 70, 10
VALUES = {
    "autoscaling": {"mode": "builtin", "shrinkAfter": "15s"},
    "workers": {"min": 1, "max": 4},
}
BUFFER = 4096
# Steps are slower than workers, so a second of received batches hides nothing that lasts longer.
API_OUTAGE_S = 60
# The planner averages the rate of a consumer over this time (`RECENT_MS`).
ESTIMATE_S = 5


def train(release, steps: str):
    return release.train("training", data.pipeline(WAIT_MS, BATCH), "--buffer", BUFFER, "--steps", steps)


def test_builtin_scaling(release, reference):
    release.install(VALUES)
    scaling(release, reference, "builtin")


def scaling(release, reference, mode: str, patch_s: float | None = PATCH_S, fed_s: float | None = FED_S) -> None:
    """Raises the demand to four times, beyond all workers, and back, and checks the number of workers and the job."""
    observer = Observer(release)
    with ReplicaWatch(release) as replicas:
        training = train(release, f"{LOW_MS},30:{HIGH_MS},90:{FLOOD_MS},120:{LOW_MS}")
        training.until_first()
        until_fed(release, FED)
        assert replicas.wanted() == 1, replicas.counts()

        raised = training.until_step(HIGH_MS)
        patched = replicas.until_wanted(4)
        known = observer.until("wanted_workers", raised, lambda count: count >= 4)
        replicas.until_ready(4)
        fed = until_fed(release, FED)

        training.until_step(FLOOD_MS)
        lowered = training.until_step(LOW_MS)
        released = replicas.until_wanted_after(lowered, 1)
        training.until_after(released + 10)
        counts = replicas.counts()
        received = training.stop()
    numbers = {
        "demand_to_known_s": round(known - raised, 1),
        "known_to_patch_s": round(max(patched - known, 0), 1),
        "demand_to_fed_s": round(fed - raised, 1),
        "lowered_to_patch_s": round(released - lowered, 1),
        "scale_in_stall_s": received.stall(lowered, released + 10),
    }
    record(f"{mode} scaling 1 > 4 > 1", **numbers, counts=counts, rows=received.rows)
    received.check(reference)
    assert min(counts) >= 1 and max(counts) <= 4, counts
    assert patch_s is None or numbers["known_to_patch_s"] <= patch_s
    assert fed_s is None or numbers["demand_to_fed_s"] <= fed_s
    # The steps become slower when the demand falls, so the median of the whole job is not that of this interval.
    assert numbers["scale_in_stall_s"] <= STALL_S


def test_outage_of_the_api_server(release, reference):
    """Without the API server, the workers stay and the job continues. Their number follows the demand afterwards."""
    release.install(VALUES)
    with ReplicaWatch(release) as replicas:
        training = train(release, f"{LOW_MS},50:{HIGH_MS}")
        training.until_first()
        until_fed(release, FED)
        workers = release.workers()
        release.cluster.stop_api_server()
        begun = time.time()
        try:
            until(lambda: time.time() > begun + API_OUTAGE_S, "the outage ends", API_OUTAGE_S + 5)
        finally:
            release.cluster.start_api_server()
        started = time.time()
        assert set(workers) <= set(release.workers()), "workers ended during the outage"
        patched = replicas.until_wanted(4)
        # The kubelets also have to find the API server again.
        replicas.until_ready(4)
        training.until_after(time.time() + 5)
        received = training.stop()
    record(
        "API server down for 60 s",
        stall_s=received.stall(begun, started),
        started_to_patch_s=round(patched - started, 1),
        counts=replicas.counts(),
    )
    received.check(reference)
    assert max(replicas.counts()) <= 4


def test_leader_killed_between_decision_and_patch(release, reference):
    """While the API server is away, the leader decides on four workers and ends. The next leader decides the same."""
    release.install(VALUES)
    observer = Observer(release)
    with ReplicaWatch(release) as replicas:
        training = train(release, f"{LOW_MS},50:{HIGH_MS}")
        raised = training.until_first() + 50
        until_fed(release, FED)
        leader = release.container_of(release.leader())
        until(lambda: time.time() > raised - 3, "the demand rises soon")
        release.cluster.stop_api_server()
        try:
            known = observer.until("wanted_workers", raised, lambda count: count >= 4)
            release.kill_container(*leader)
            killed = time.time()
            observer.until("leads", killed, lambda leads: leads == 1)
            # A leader that does not know the demand keeps the number of workers. Its first estimates may be too small.
            decided = observer.until("wanted_workers", killed, lambda count: count >= 4)
            until(lambda: time.time() > decided + ESTIMATE_S, "the estimate of the next leader is complete")
        finally:
            release.cluster.start_api_server()
        started = time.time()
        patched = replicas.until_wanted(4)
        training.until_after(patched + 10)
        counts = replicas.counts()
        received = training.stop()
    numbers = {
        "decision_to_kill_s": round(killed - known, 1),
        "api_server_to_patch_s": round(max(patched - started, 0), 1),
    }
    record(
        "leader killed between decision and patch", **numbers, stall_s=received.stall(killed, started), counts=counts
    )
    received.check(reference)
    assert counts == [1, 4], counts
