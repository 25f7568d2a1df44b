"""Exact resume: the state is small and readable, and what follows it is what would have followed."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline
import pytest
from conftest import ranks_of
from feedline import _state


def ids(job: Any, count: int | None = None) -> list[list[int]]:
    """The ids of the next batches; of all that are left of the epoch without a count."""
    found = []
    for batch in job:
        found.append(batch["id"].tolist())
        if len(found) == count:
            break
    return found


def test_a_state_is_readable_small_and_says_what_it_belongs_to(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with numbers.batch(16).open(virtual_consumers=64, **local) as job:
        ids(job, 5)
        state = json.loads(json.dumps(job.state_dict()))
    assert len(json.dumps(state)) < 1024
    assert (state["version"], state["epoch"], state["step"], state["ahead"]) == (1, 0, 0, 5)
    assert state["data"]["rows"] == 997 and state["parts"]["seed"] == 3


def test_stop_anywhere_load_compare(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    pipeline = numbers.batch(32)
    with pipeline.open(epochs=2, **local) as job:
        whole = [batch["id"].tolist() for batch in job.batches()]
    assert len(whole) == 64
    with pipeline.open(epochs=2, **local) as job:
        for stop in sorted(random.Random(1).sample(range(64), 8)):
            ahead = job.step
            found = []
            for batch in job.batches():
                found.append(batch["id"].tolist())
                if ahead + len(found) == stop + 1:
                    break
            assert found == whole[ahead : stop + 1]
            state = job.state_dict()
            with pipeline.open(epochs=2, state=state, **local) as other:
                assert other.step in (0, stop + 1)
                assert [batch["id"].tolist() for batch in other.batches()] == whole[stop + 1 :]


def test_a_loop_is_an_epoch_and_goes_on_where_the_last_one_was_left(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with numbers.batch(100).open(**local) as job:
        assert len(job) == 10
        first = ids(job)
        assert len(first) == 10 and job.step == 10
        assert sorted(sum(first, [])) == list(range(997))
        left = ids(job, 4)
        rest = ids(job)
        assert len(rest) == 6 and job.step == 20
        assert sorted(sum(left + rest, [])) == list(range(997))
        assert first[0] != left[0]
        assert job.state_dict()["epoch"] == 2 and job.state_dict()["step"] == 0


def test_the_state_of_any_rank_restores_the_group_on_any_number_of_ranks(
    numbers: feedline.Pipeline, clusters: Any, run_name: Any
) -> None:
    pipeline, options = numbers.batch(16), {"coordinator": clusters(1), "virtual_consumers": 12, "epochs": 1}
    whole = steps_of(ranks_of(pipeline, 1, run_name(), **options))
    for before, after, stop in [(2, 3, 3), (3, 2, 1), (4, 1, 2), (1, 4, 4), (6, 12, 2)]:
        jobs = ranks_of(pipeline, before, run_name(), **options)
        begun = steps_of(jobs, stop)
        states = [job.state_dict() for job in jobs]
        assert all(state == states[0] for state in states)
        [job.close() for job in jobs]
        again = ranks_of(pipeline, after, run_name(), state=random.Random(stop).choice(states), **options)
        rest = steps_of(again)
        assert begun + rest == whole, (before, after, stop)


def steps_of(jobs: list[feedline.Job], steps: int | None = None) -> list[dict[int, list[int]]]:
    """The ids of each slot in each step, of all ranks taken in turn."""
    loops = [iter(job.batches()) for job in jobs]
    slots = [len(job.slots) for job in jobs]
    found: list[dict[int, list[int]]] = []
    while steps is None or len(found) < steps:
        step = {}
        for loop, count in zip(loops, slots, strict=True):
            for _ in range(count):
                batch = next(loop, None)
                if batch is not None:
                    step[batch.slot] = batch["id"].tolist()
        if not step:
            break
        found.append(dict(sorted(step.items())))
    [loop.close() for loop in loops]
    return found


def test_behind_a_filter_and_without_a_coordinator_the_states_of_all_ranks_go_together(
    numbers: feedline.Pipeline, clusters: Any, local: Any, run_name: Any
) -> None:
    pipeline = numbers.filter(where="kind < 4").batch(16)
    options = {"virtual_consumers": 4, "epochs": 1}
    whole = steps_of(ranks_of(pipeline, 2, run_name(), **options, **local))
    jobs = ranks_of(pipeline, 2, run_name(), **options, **local)
    begun = steps_of(jobs, 3)
    states = [json.loads(json.dumps(job.state_dict())) for job in jobs]
    [job.close() for job in jobs]
    with pytest.raises(feedline.WrongUse, match="feedline.merge_states"):
        feedline.open(pipeline, state=states[0], **options)
    merged = feedline.merge_states(states)
    again = ranks_of(pipeline, 4, run_name(), state=merged, coordinator=clusters(1), **options)
    assert begun + steps_of(again) == whole
    with pytest.raises(feedline.WrongUse, match="differ in 'layout'"):
        feedline.merge_states([states[0], {**states[1], "layout": {}}])
    with pytest.raises(feedline.WrongUse, match="slot 1 stands"):
        feedline.merge_states(states[:1])


def test_what_changed_since_the_state_was_saved_is_named(
    numbers: feedline.Pipeline, local: dict[str, Any], tmp_path: Any
) -> None:
    (tmp_path / "a.csv").write_text("id\n" + "\n".join(map(str, range(40))))
    pipeline = feedline.read(url=tmp_path / "*.csv", format="csv", seed=1).filter(where="id >= 0").batch(4)
    with pipeline.open(**local) as job:
        ids(job, 2)
        state = job.state_dict()
    for other, sentence in [
        (pipeline.seed(2), "seed changed"),
        (pipeline.shuffle(window=8), "shuffle changed"),
        (pipeline.with_batch_size(5), r"operators\[1\] \(batch\) changed"),
        (feedline.read(url=tmp_path / "*.csv", format="csv", seed=1).batch(4), "list of operators .it was filter, batch. changed"),
    ]:
        with pytest.raises(feedline.WrongUse, match=sentence):
            other.open(state=state, **local)
    # Where rows are kept does not change them.
    feedline.read(url=tmp_path / "*.csv", format="csv", seed=1).filter(where="id >= 0").batch(4, parallelism=None)
    (tmp_path / "b.csv").write_text("id\n" + "\n".join(map(str, range(40, 50))))
    elsewhere = {**local, "index_dir": tmp_path / "index"}
    with pytest.raises(feedline.JobFailed, match="with 50 rows in 2 shards.* had 40 rows in 1 shards"):
        ids(pipeline.open(state=state, **elsewhere), 1)
    for wrong in [{}, {"version": 9, "pipeline": ""}, 3]:
        with pytest.raises(feedline.WrongUse):
            pipeline.open(state=wrong, **local)


def test_steps_are_skipped_once_and_their_rows_count_as_had(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    pipeline = numbers.batch(100)
    with pipeline.open(epochs=1, **local) as job:
        whole = ids(job)
    with pipeline.open(epochs=1, **local) as job:
        ids(job, 2)
        state = job.state_dict()
        job.skip(3, 6)
        assert ids(job) == whole[2:3] + whole[6:]
        assert job.step == 10
        with pytest.raises(feedline.WrongUse, match="has been had already"):
            job.skip(4, 5)
        job.load_state_dict(state)
        assert job.step in (0, 2, 10)
        assert ids(job) == whole[2:3] + whole[6:], "a range to skip stays when an earlier state is loaded"
    with pytest.raises(feedline.WrongUse, match="leaves out nothing"):
        pipeline.open(**local).skip(5, 5)


def test_loops_that_take_batches_ahead_ask_for_the_state_of_their_step(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    pipeline = numbers.filter(where="kind > 2").batch(10)
    with pipeline.open(epochs=1, **local) as job:
        whole = ids(job)
    with pipeline.open(epochs=1, **local) as job:
        ids(job, 9)
        state = job.state_dict(at=6)
        with pytest.raises(feedline.WrongUse, match="not behind batch 50"):
            job.state_dict(at=50)
    with pipeline.open(epochs=1, state=state, **local) as job:
        assert ids(job) == whole[6:]


def test_a_relaxed_job_resumes_with_every_row_once(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    pipeline = numbers.order("relaxed").batch(50)
    with pipeline.open(**local) as job:
        begun = ids(job, 7)
        state = json.loads(json.dumps(job.state_dict()))
    with pipeline.open(state=state, **local) as job:
        rest = ids(job)
    assert sorted(sum(begun + rest, [])) == list(range(997))


@pytest.mark.parametrize(("slots", "saved", "first", "loaded", "then"), [(4, 2, 3, 4, 2), (6, 2, 4, 3, 3), (4, 1, 2, 2, 1), (4, 1, 3, 1, 2), (6, 3, 1, 1, 5)])
def test_a_state_saved_between_the_slots_of_a_step_is_saved_and_loaded_again(
    slots: int, saved: int, first: int, loaded: int, then: int, numbers: feedline.Pipeline, local: dict[str, Any]
) -> None:
    """On another number of ranks these do not stand alike, and any one of them must know it."""
    pipeline = numbers.batch(10)

    def had(state: dict[str, Any] | None, ranks: int, count: int | None) -> tuple[list[int], list[dict[str, Any]]]:
        rows: list[int] = []
        states = []
        for rank in range(ranks):
            with feedline.open(
                pipeline, rank=rank, world_size=ranks, name="again", virtual_consumers=slots, epochs=1, state=state, **local
            ) as job:
                for number, batch in enumerate(itertools.islice(job.batches(), count)):
                    rows += batch["id"].tolist()
                    assert len(json.dumps(job.state_dict())) < 1024, number
                states.append(job.state_dict())
        return rows, states

    begun, states = had(None, saved, first)
    middle, states = had(states[-1], loaded, then)
    positions = [_state.start_of(state)["streams"] for state in states]
    assert all(position == positions[0] for position in positions)
    for state in states:
        rest, _ = had(state, 1, None)
        assert sorted(begun + middle + rest) == list(range(997))


def test_batches_are_skipped_behind_a_state_from_before(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with numbers.batch(10).open(epochs=1, **local) as job:
        taken = []
        for batch in job:
            taken.append(batch["id"].tolist())
            if job.step == 10:
                state = job.state_dict()
            if job.step == 41:
                break
        job.load_state_dict(state)
        assert job.step == 10
        job.skip(12, 14)
        again = [batch["id"].tolist() for batch in itertools.islice(job, 10)]
    assert again == taken[10:12] + taken[14:22]


def test_a_group_rewinds_to_one_state_again_and_again(
    numbers: feedline.Pipeline, clusters: Callable[[int], str], run_name: Callable[[], str]
) -> None:
    jobs = ranks_of(numbers.batch(10), 2, run_name(), coordinator=clusters(1), epochs=1)
    loops = [job.batches() for job in jobs]
    for loop in loops:
        next(loop)
    state = jobs[0].state_dict()
    seen = []
    for _ in range(3):
        for job in jobs:
            job.load_state_dict(state)
        loops = [job.batches() for job in jobs]
        seen.append([next(loop)["id"].tolist() for _ in range(4) for loop in loops])
    for job in jobs:
        job.close()
    assert seen[1] == seen[0] and seen[2] == seen[0]


@pytest.mark.parametrize(
    "rubbish",
    [
        {"version": 1, "pipeline": "x"},
        {"layout": {}},
        {"step": -4},
        {"step": "a"},
        {"ranks": None},
        {"parts": 5},
        {"layout": {"batch_rows": 0}},
        {"layout": {"streams": 10**9}},
        {"order": "relaxed", "layout": None},
    ],
    ids=str,
)
def test_rubbish_is_refused(rubbish: dict[str, Any], numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with numbers.batch(10).open(**local) as job:
        next(iter(job))
        state = job.state_dict()
    edited = rubbish if "version" in rubbish else {**state, **rubbish}
    if isinstance(rubbish.get("layout"), dict) and rubbish["layout"]:
        edited["layout"] = {**state["layout"], **rubbish["layout"]}
    with pytest.raises(feedline.WrongUse):
        numbers.batch(10).open(state=edited, **local)


def test_a_change_of_what_becomes_of_failed_rows_is_named(numbers: feedline.Pipeline, local: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\nc")
    read = {"url": tmp_path / "a.txt", "format": "text"}
    with feedline.read(**read).batch(1).open(**local) as job:
        next(iter(job))
        state = job.state_dict()
    with pytest.raises(feedline.WrongUse, match="on_error changed"):
        feedline.read(**read, on_error="skip").batch(1).open(state=state, **local)
