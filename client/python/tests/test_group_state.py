"""Where operators change the number of rows, the state of any one rank also restores all ranks."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import feedline
import pytest
from conftest import ranks_of
from test_resume_matrix import digest

cloudpickled = pytest.importorskip("cloudpickle")

KINDS = ["filter", "skip", "carry", "function"]


def _keeps(batch: Any) -> Any:
    return batch["n"] % 5 != 0


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, feedline.Pipeline]:
    folder = tmp_path_factory.mktemp("group")
    for shard in range(2):
        rows = range(shard * 450, (shard + 1) * 450)
        # Slots keep different numbers of rows, so their positions diverge.
        lines = [f"{row},{'none' if row % 9 == 4 or 100 < row < 130 else row}" for row in rows]
        (folder / f"{shard}.csv").write_text("\n".join(["n,text", *lines]) + "\n")
    read = feedline.read(url=folder / "*.csv", format="csv", seed=6, name="group").shuffle(window=32)
    return {
        "filter": read.filter(where="n <> 7 AND (n < 500 OR n > 640)").batch(8),
        "skip": read.on_error("skip").cast("text", "int64").batch(8),
        "carry": read.batch(8, remainder="carry"),
        "function": read.filter(_keeps).batch(8),
    }


class Loops:
    """The loops of all ranks of a job, in one thread."""

    def __init__(self, jobs: list[feedline.Job]) -> None:
        self.jobs = jobs
        self.loops = [iter(job.batches()) for job in jobs]
        self.is_over = [False] * len(jobs)
        self.found: dict[int, list[str]] = {}

    def step(self, rank: int) -> bool:
        """Reads a rank's batches of one step, one for each slot. Returns whether a batch was left."""
        for count in range(len(self.jobs[rank].slots)):
            batch = None if self.is_over[rank] else next(self.loops[rank], None)
            if batch is None:
                self.is_over[rank] = True
                return count > 0
            self.found.setdefault(batch.slot, []).append(digest(batch))
        return True

    def rest(self) -> dict[int, list[str]]:
        """Reads all remaining batches."""
        while not all(self.is_over):
            [self.step(rank) for rank in range(len(self.jobs))]
        return self.found

    def close(self) -> None:
        [loop.close() for loop in self.loops]
        [job.close() for job in self.jobs]


def read_all(pipeline: feedline.Pipeline, url: str, name: str, slots: int) -> dict[int, list[str]]:
    loops = Loops(ranks_of(pipeline, 1, name, coordinator=url, virtual_consumers=slots, epochs=2))
    found = loops.rest()
    loops.close()
    return found


@pytest.fixture(scope="module")
def expected_batches() -> dict[tuple[str, int], dict[int, list[str]]]:
    return {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_state_of_any_rank_restores_all_ranks(
    kind: str, ranks: int, pipelines: Any, clusters: Any, run_name: Any, expected_batches: Any
) -> None:
    draw = random.Random(f"{kind} {ranks}")
    cases = int(os.environ.get("CASES", "2" if kind == "function" else "4"))
    for case in range(cases):
        # With 7 slots, ranks have different numbers of slots.
        slots = 12 if case % 2 == 0 else 7
        if (kind, slots) not in expected_batches:
            expected_batches[kind, slots] = read_all(pipelines[kind], clusters(1), run_name(), slots)
        expected = expected_batches[kind, slots]
        # All ranks have joined after the first step.
        stop = draw.randrange(2, min(len(batches) for batches in expected.values()) - 1)
        workers = draw.choice([1, 3])
        options = {"virtual_consumers": slots, "epochs": 2}
        loops = Loops(ranks_of(pipelines[kind], ranks, run_name(), coordinator=clusters(workers), **options))
        for _ in range(stop - 1):
            [loops.step(rank) for rank in range(ranks)]
        order = draw.sample(range(ranks), ranks)
        states = []
        for rank in order:
            # Other ranks are one step behind, or at this step.
            loops.step(rank)
            states.append(json.loads(json.dumps(loops.jobs[rank].state_dict())))
        positions = {json.dumps(state["places"]) for state in states}
        assert len(positions) == 1, "all states have the same positions"
        assert all(len(json.dumps(state)) < 1024 for state in states)
        if case % 4 >= 2:
            # The states stay equal after the loops have ended.
            [loop.close() for loop in loops.loops]
            assert {json.dumps(job.state_dict()["places"]) for job in loops.jobs} == positions
        begun = loops.found
        loops.close()
        state = draw.choice(states)
        after, others = draw.choice([1, 2, 3, 4]), 4 - workers
        again = Loops(ranks_of(pipelines[kind], after, run_name(), coordinator=clusters(others), state=state, **options))
        rest = again.rest()
        again.close()
        case_is = f"case {case}: step {stop} of {ranks} ranks, {slots} slots; {after} ranks after"
        assert {slot: begun.get(slot, []) + rest.get(slot, []) for slot in expected} == expected, case_is


def test_ranks_with_different_numbers_of_batches_resume_together(
    pipelines: Any, clusters: Any, run_name: Any
) -> None:
    options = {"coordinator": clusters(1), "virtual_consumers": 6, "epochs": 3}
    pipeline = pipelines["filter"]
    jobs = ranks_of(pipeline, 3, run_name(), **options)
    first = [[digest(batch) for batch in job] for job in jobs]
    assert len({len(batches) for batches in first}) > 1, "the test needs ranks with different numbers of batches"
    states = [job.state_dict() for job in jobs]
    assert all(state["places"] == states[0]["places"] for state in states)
    again = ranks_of(pipeline, 3, run_name(), state=states[1], **options)
    assert [[digest(batch) for batch in job] for job in again] == [[digest(batch) for batch in job] for job in jobs]
    # Within the third epoch.
    for group in (jobs, again):
        loops = [iter(job) for job in group]
        [next(loop) for _ in range(4) for loop in loops]
    states = [json.loads(json.dumps(job.state_dict())) for job in [*jobs, *again]]
    assert all(state["places"] == states[0]["places"] for state in states)
    [loop.close() for loop in loops]
    left = [[digest(batch) for batch in job] for job in again]
    third = ranks_of(pipeline, 3, run_name(), state=states[4], **options)
    assert [[digest(batch) for batch in job] for job in third] == left
    [job.close() for job in [*jobs, *again, *third]]


def test_the_state_of_a_finished_rank_lacks_ranks_that_continue(pipelines: Any, clusters: Any, run_name: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("feedline._position._GROUP_SECONDS", 0.3)
    options = {"coordinator": clusters(1), "virtual_consumers": 2, "epochs": 1}
    pipeline = pipelines["filter"]
    jobs = ranks_of(pipeline, 2, run_name(), **options)
    loops = [iter(job) for job in jobs]
    over = None
    while over is None:
        batches = [next(loop, None) for loop in loops]
        over = next((rank for rank, batch in enumerate(batches) if batch is None), None)
    assert any(batch is not None for batch in batches), "the test needs a rank with more batches"
    states = [job.state_dict() for job in jobs]
    state, other = states[over], states[1 - over]
    assert state["missing"] == [1 - over] and "places" not in state
    with pytest.raises(feedline.WrongUse, match=f"rank {1 - over} of 2 did not report a position.*merge_states"):
        feedline.open(pipeline, state=state, **options)
    assert feedline.merge_states(states)["places"] == other["places"]
    left = [digest(batch) for batch in loops[1 - over]]
    with ranks_of(pipeline, 1, run_name(), state=other, **options)[0] as again:
        assert [digest(batch) for batch in again] == left
    # After all ranks have finished, the state contains all positions.
    states = [job.state_dict() for job in jobs]
    assert states[0]["places"] == states[1]["places"]
    with ranks_of(pipeline, 1, run_name(), state=states[over], **options)[0] as again:
        assert list(again) == []
    [job.close() for job in jobs]


def test_a_state_lists_missing_ranks(pipelines: Any, clusters: Any, run_name: Any, monkeypatch: Any, local: Any) -> None:
    monkeypatch.setattr("feedline._position._GROUP_SECONDS", 0.2)
    for service in ({"coordinator": clusters(1)}, local):
        with feedline.open(pipelines["filter"], rank=1, world_size=3, name=run_name(), **service) as job:
            next(iter(job))
            state = json.loads(json.dumps(job.state_dict()))
        assert state["missing"] == [0, 2] and list(state["slots"]) == ["1"]
        with pytest.raises(feedline.WrongUse, match="ranks 0, 2 of 3 did not report a position.*merge_states"):
            feedline.open(pipelines["filter"], state=state, **service)


def test_states_of_different_steps_are_not_merged(pipelines: Any, clusters: Any, run_name: Any) -> None:
    options = {"coordinator": clusters(1), "virtual_consumers": 4, "epochs": 1}
    loops = Loops(ranks_of(pipelines["filter"], 2, run_name(), **options))
    [loops.step(rank) for rank in (0, 1)]
    early = loops.jobs[0].state_dict()
    [loops.step(rank) for rank in (0, 1)]
    late = loops.jobs[1].state_dict()
    assert feedline.merge_states([late, loops.jobs[0].state_dict()])["places"] == late["places"]
    own = {key: value for key, value in late.items() if key != "places"}
    positions = feedline._state.unpack_positions(late["places"])
    own["slots"] = {str(slot): list(positions[slot]) for slot in (1, 3)}
    with pytest.raises(feedline.WrongUse, match="have different positions of slot"):
        feedline.merge_states([early, own])
    loops.close()


def test_a_state_of_many_ranks_is_small(tmp_path: Path, clusters: Any, run_name: Any) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["n", *map(str, range(6000))]))
    pipeline = feedline.read(url=tmp_path / "a.csv", format="csv", seed=1).filter(where="n <> 5").batch(4)
    for ranks, slots in [(16, 16), (16, 64)]:
        loops = Loops(ranks_of(pipeline, ranks, run_name(), coordinator=clusters(1), virtual_consumers=slots, epochs=1))
        [loops.step(rank) for _ in range(3) for rank in range(ranks)]
        text = json.dumps(loops.jobs[ranks - 1].state_dict())
        assert '"places"' in text and len(text) < 1024, len(text)
        loops.close()
