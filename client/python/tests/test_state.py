"""Exact resume: the state is small and readable, and the resumed job returns the remaining batches."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline
import pytest
from conftest import ranks_of
from feedline import _state


def ids(job: Any, count: int | None = None) -> list[list[int]]:
    """Returns the ids of the next batches; without a count, of the rest of the epoch."""
    found = []
    for batch in job:
        found.append(batch["id"].tolist())
        if len(found) == count:
            break
    return found


def test_a_state_is_small_and_identifies_its_job(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with numbers.batch(16).open(virtual_consumers=64, **local) as job:
        ids(job, 5)
        state = json.loads(json.dumps(job.state_dict()))
    assert len(json.dumps(state)) < 1024
    assert (state["version"], state["epoch"], state["step"], state["ahead"]) == (1, 0, 0, 5)
    assert state["data"]["rows"] == 997 and state["parts"]["seed"] == 3


def test_a_job_resumes_after_any_batch(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
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


def test_a_loop_is_an_epoch_and_continues_after_the_last_batch(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
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


def test_any_number_of_ranks_resumes_from_the_state_of_any_rank(
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
    """Returns the ids of each slot in each step. Reads the ranks in turn."""
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


def test_states_of_ranks_without_a_coordinator_are_merged(
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
    with pytest.raises(feedline.WrongUse, match="no position of slot 1"):
        feedline.merge_states(states[:1])


def test_the_error_names_changes_since_the_state_was_saved(
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
    # Caches do not change rows.
    feedline.read(url=tmp_path / "*.csv", format="csv", seed=1).filter(where="id >= 0").batch(4, parallelism=None)
    (tmp_path / "b.csv").write_text("id\n" + "\n".join(map(str, range(40, 50))))
    elsewhere = {**local, "index_dir": tmp_path / "index"}
    with pytest.raises(feedline.JobFailed, match="with 50 rows in 2 shards.* had 40 rows in 1 shards"):
        ids(pipeline.open(state=state, **elsewhere), 1)
    for wrong in [{}, {"version": 9, "pipeline": ""}, 3]:
        with pytest.raises(feedline.WrongUse):
            pipeline.open(state=wrong, **local)


def test_skipped_batches_count_as_delivered(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    pipeline = numbers.batch(100)
    with pipeline.open(epochs=1, **local) as job:
        whole = ids(job)
    with pipeline.open(epochs=1, **local) as job:
        ids(job, 2)
        state = job.state_dict()
        job.skip(3, 6)
        assert ids(job) == whole[2:3] + whole[6:]
        assert job.step == 10
        with pytest.raises(feedline.WrongUse, match="has already received batch 4"):
            job.skip(4, 5)
        job.load_state_dict(state)
        assert job.step in (0, 2, 10)
        assert ids(job) == whole[2:3] + whole[6:], "a skipped range remains after loading an earlier state"
    with pytest.raises(feedline.WrongUse, match="is an empty range"):
        pipeline.open(**local).skip(5, 5)


def test_a_loop_that_prefetches_saves_the_state_of_an_earlier_step(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    pipeline = numbers.filter(where="kind > 2").batch(10)
    with pipeline.open(epochs=1, **local) as job:
        whole = ids(job)
    with pipeline.open(epochs=1, **local) as job:
        ids(job, 9)
        state = job.state_dict(at=6)
        with pytest.raises(feedline.WrongUse, match="the position after batch 50 is unknown"):
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
def test_a_state_within_a_step_is_loaded_and_saved_again(
    slots: int, saved: int, first: int, loaded: int, then: int, numbers: feedline.Pipeline, local: dict[str, Any]
) -> None:
    """On another number of ranks, the ranks are at different steps, and the state of any rank contains all of them."""
    pipeline = numbers.batch(10)

    def read(state: dict[str, Any] | None, ranks: int, count: int | None) -> tuple[list[int], list[dict[str, Any]]]:
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

    begun, states = read(None, saved, first)
    middle, states = read(states[-1], loaded, then)
    positions = [_state.start_position(state)["streams"] for state in states]
    assert all(position == positions[0] for position in positions)
    for state in states:
        rest, _ = read(state, 1, None)
        assert sorted(begun + middle + rest) == list(range(997))


def test_batches_are_skipped_after_loading_an_earlier_state(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
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


def test_ranks_load_one_state_several_times(
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
    "changes",
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
def test_invalid_states_are_rejected(changes: dict[str, Any], numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with numbers.batch(10).open(**local) as job:
        next(iter(job))
        state = job.state_dict()
    edited = changes if "version" in changes else {**state, **changes}
    if isinstance(changes.get("layout"), dict) and changes["layout"]:
        edited["layout"] = {**state["layout"], **changes["layout"]}
    with pytest.raises(feedline.WrongUse):
        numbers.batch(10).open(state=edited, **local)


def test_the_error_names_a_change_of_on_error(numbers: feedline.Pipeline, local: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\nc")
    read = {"url": tmp_path / "a.txt", "format": "text"}
    with feedline.read(**read).batch(1).open(**local) as job:
        next(iter(job))
        state = job.state_dict()
    with pytest.raises(feedline.WrongUse, match="on_error changed"):
        feedline.read(**read, on_error="skip").batch(1).open(state=state, **local)


def test_a_state_of_the_earlier_release_is_loaded_and_one_of_another_version_is_rejected(tmp_path: Path, local: dict[str, Any]) -> None:
    """``state.json`` is the state that ef04d0d saved after three batches of this job, with files in another directory. The
    test therefore replaces the hashes that depend on the paths of the files."""
    earlier = json.loads((Path(__file__).parents[3] / "tests/tests/golden/ef04d0d/state.json").read_text())
    for shard in range(1, 5):
        (tmp_path / f"t{shard}.txt").write_text("".join(f"line {shard} {letter}\n" for letter in "abcde"))
    pipeline = feedline.read(url=tmp_path / "t*.txt", format="text", seed=3, name="state").shuffle(window=8).batch(4)

    def texts(job: feedline.Job, count: int | None = None) -> list[list[str]]:
        return [[str(text) for text in batch["text"]] for batch in itertools.islice(job, count)]

    with pipeline.open(epochs=2, **local) as job:
        first = texts(job, 3)
        assert first[0] == ["line 3 b", "line 2 d", "line 2 c", "line 2 e"]
        saved = job.state_dict()
    paths = {"pipeline": saved["pipeline"], "dataset": saved["dataset"]}
    earlier |= paths | {"parts": earlier["parts"] | {"source": saved["parts"]["source"]}}
    with pipeline.open(epochs=2, **local) as job:
        job.load_state_dict(earlier)
        assert texts(job) == [["line 4 a", "line 3 e", "line 4 c", "line 4 e"], ["line 1 d", "line 1 c", "line 1 e", "line 1 b"]]
        with pytest.raises(feedline.WrongUse, match="the state has version 99, but this release reads version 1"):
            job.load_state_dict(earlier | {"version": 99})


def _touch(path: Path) -> None:
    """Sets another modification time, as an upload of the same bytes does."""
    later = path.stat().st_mtime + 5
    os.utime(path, (later, later))


def test_a_state_is_loaded_after_an_upload_of_the_same_bytes_and_rejected_after_other_changes(tmp_path: Path, local: dict[str, Any]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for shard in "abc":
        (data / f"{shard}.txt").write_text("".join(f"{shard} {row}\n" for row in range(20)))
    pipeline = feedline.read(url=data / "*.txt", format="text").batch(4)

    def texts(job: feedline.Job) -> list[list[str]]:
        return [[str(text) for text in batch["text"]] for batch in job]

    with pipeline.open(epochs=1, **local) as job:
        next(iter(job))
        state = json.loads(json.dumps(job.state_dict()))
    assert len(state["content"]) == 64
    with pipeline.open(epochs=1, state=state, **local) as job:
        rest = texts(job)
    _touch(data / "b.txt")
    with pipeline.open(epochs=1, state=state, **local) as job:
        assert texts(job) == rest
    (data / "b.txt").write_text("".join(f"B {row}\n" for row in range(20)))
    with pipeline.open(epochs=1, state=state, **local) as job, pytest.raises(feedline.JobFailed, match=r"1 shard was rewritten \(.*b\.txt\)"):
        texts(job)


def test_shards_that_are_not_read_to_index_them_must_be_accepted_after_an_upload(tmp_path: Path, local: dict[str, Any]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in "abcdefgh":
        (data / name).write_bytes(name.encode() * 10)
    pipeline = feedline.read(url=f"{data}/", format="files").batch(2)

    def rows(job: feedline.Job) -> list[bytes]:
        return [bytes(value) for batch in job for value in batch["bytes"]]

    with pipeline.open(epochs=1, **local) as job:
        next(iter(job))
        state = job.state_dict()
        rest = rows(job)
    _touch(data / "c")
    with pipeline.open(epochs=1, state=state, **local) as job, pytest.raises(feedline.JobFailed, match="accept_reuploaded=True"):
        rows(job)
    with pipeline.open(epochs=1, state=state, accept_reuploaded=True, **local) as job:
        assert rows(job) == rest


def test_a_state_of_another_pipeline_must_be_accepted(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    def rows(job: feedline.Job) -> list[int]:
        return [int(row) for batch in job for row in batch["id"]]

    with numbers.batch(50).open(epochs=1, **local) as job:
        batches = iter(job)
        first = [int(row) for row in next(batches)["id"]]
        state = job.state_dict()
        assert len(json.dumps(state)) < 1024
    kept = numbers.cast("kind", dtype="float32").batch(50)
    with pytest.raises(feedline.WrongUse, match=r"another pipeline: the list of operators.*accept_changed_pipeline=True"):
        kept.open(epochs=1, state=state, **local)
    with kept.open(epochs=1, state=state, accept_changed_pipeline=True, **local) as job:
        rest = rows(job)
    assert sorted(first + rest) == list(range(997)), "the order of rows is unchanged"


def test_the_segments_of_a_job_without_an_end_merge() -> None:
    """Ranks that save their states later know more segments, and have forgotten earlier ones."""
    segments = [{"round": first, "rounds": 2, "row": 10 * first, "epoch": 0, "ranges": [[0, 5 * first, 5 * first + 10, 9]]} for first in (2, 4, 6, 8)]
    layout = {
        "dataset_rows": 1 << 40, "passes": 1, "epochs": 1, "streams": 2, "batch_rows": 4, "remainder": "carry", "changes_rows": True,
        "split_rows": 8, "group_rows": 4, "coordinated": False, "unbounded": True,
    }  # fmt: skip

    def state(slot: int, known: list[dict[str, Any]]) -> dict[str, Any]:
        growth = {"partitions": [{"url": "kafka://a:1/t/0"}], "segments": known, "rounds": known[-1]["round"] + 2, "columns": {"fields": []}}
        positions = [(slot, 0, 24 + slot)]
        return _state.build_state(
            identity={"pipeline": "p", "dataset": "d"}, layout=layout, ranks=2, positions=positions, batches=6, missing=[1 - slot], growth=growth
        )

    merged = feedline.merge_states([state(0, segments[:3]), state(1, segments[1:])])
    assert [segment["round"] for segment in merged["growth"]["segments"]] == [2, 4, 6, 8]
    assert merged["growth"]["rounds"] == 10
    position = _state.start_position(merged)
    assert position["growth"] == merged["growth"]
    assert [stream["row"] for stream in position["streams"]] == [24, 25]
