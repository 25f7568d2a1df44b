"""Weights of a mix that change while its job runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline
import pytest
from conftest import ranks_of

_ROWS = 12_000


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], feedline.Pipeline]:
    """A mix of two datasets of the same size: one contains even numbers, the other odd numbers."""
    folder = tmp_path_factory.mktemp("mixed")
    for place in range(2):
        lines = (json.dumps({"n": 2 * row + place}) for row in range(_ROWS))
        (folder / f"{place}.jsonl").write_text("\n".join(lines))

    def build(stop: str) -> feedline.Pipeline:
        sources = [feedline.read(url=folder / f"{place}.jsonl", format="jsonl") for place in range(2)]
        return feedline.mix(sources, stop=stop, seed=2, name="weights").shuffle(window=50).batch(20)

    return build


def numbers(batches: Any) -> list[list[int]]:
    return [batch["n"].tolist() for batch in batches]


def odd(batches: list[list[int]]) -> float:
    """Returns the share of the second dataset."""
    rows = [number for batch in batches for number in batch]
    return sum(number % 2 for number in rows) / len(rows)


@pytest.mark.parametrize("stop", ["all", "restart"])
def test_weights_that_change_replay_from_any_state(stop: str, mixed: Callable[[str], feedline.Pipeline], local: dict[str, Any]) -> None:
    pipeline = mixed(stop)
    taken: list[list[int]] = []
    states: dict[int, dict[str, Any]] = {}
    # A small buffer leaves few rows leased, so the weights apply soon.
    with pipeline.open(epochs=2, buffer=16 << 10, **local) as job:
        for batch in job.batches():
            taken.append(batch["n"].tolist())
            assert [row for _, row in batch.rows] == [number // 2 for number in taken[-1]]
            if len(taken) == 40:
                change = job.set_weights([1, 4])
                states[40] = job.state_dict()
            if len(taken) in (41, 700, 1250):
                states[len(taken)] = job.state_dict()
    assert change["pass"] == 0 and 800 < change["row"] < 20_000
    place = change["row"] // 20
    assert odd(taken[:place]) == pytest.approx(0.5, abs=0.02)
    assert odd(taken[place + 60 : place + 200]) == pytest.approx(0.8, abs=0.02)
    assert odd(taken[1260:1500]) == pytest.approx(0.8, abs=0.02), "in the next epoch too"
    for step, state in states.items():
        assert state["mix"] == [{"pass": 0, "place": change["row"], "weights": [1.0, 4.0]}]
        assert len(json.dumps(state)) < 1024
        with pipeline.open(epochs=2, state=state, workers=2, **local) as job:
            rest = []
            for batch in job.batches():
                rest.append(batch["n"].tolist())
                assert [row for _, row in batch.rows] == [number // 2 for number in rest[-1]]
        assert rest == taken[step:], f"from step {step}"


def test_a_running_loop_applies_changed_weights(mixed: Callable[[str], feedline.Pipeline], local: dict[str, Any]) -> None:
    with mixed("all").open(buffer=16 << 10, **local) as job:
        for batch in job:
            if job.step == 10:
                change = job.set_weights([4, 1])
                break
        assert job.state_dict()["mix"][0]["place"] == change["row"]
        rest = numbers(job)
        assert job.state_dict()["mix"][0]["place"] == change["row"]
    place = change["row"] // 20 - 10
    assert odd(rest[place : place + 200]) == pytest.approx(0.2, abs=0.02)


def test_one_rank_changes_the_weights_of_all_ranks(
    mixed: Callable[[str], feedline.Pipeline], clusters: Callable[[int], str], run_name: Callable[[], str], local: dict[str, Any]
) -> None:
    pipeline, ranks = mixed("all"), 2
    jobs = ranks_of(pipeline, ranks, run_name(), coordinator=clusters(3), epochs=1, buffer=16 << 10)
    taken: list[list[list[int]]] = [[], []]
    loops = [job.batches() for job in jobs]
    for _ in range(20):
        for rank, loop in enumerate(loops):
            taken[rank].append(next(loop)["n"].tolist())
    change = jobs[1].set_weights([9, 1])
    # The other rank may not have received the change yet.
    states = [job.state_dict() for job in jobs]
    rest = [numbers(loop) for loop in loops]
    for job in jobs:
        job.close()
    assert odd(rest[0][-20:]) > 0.9, "the first dataset is exhausted"
    assert sorted(number for rank in range(ranks) for batch in taken[rank] + rest[rank] for number in batch) == list(range(2 * _ROWS))
    for state in states:
        assert state["mix"][0]["place"] == change["row"]
        with pipeline.open(epochs=1, state=state, virtual_consumers=ranks, **local) as job:
            alone = numbers(job.batches())
        assert alone[0::2] == rest[0][: len(alone[0::2])] and alone[1::2] == rest[1][: len(alone[1::2])]


def test_invalid_weights_are_rejected(mixed: Callable[[str], feedline.Pipeline], local: dict[str, Any], tmp_path: Path) -> None:
    with mixed("first").open(**local) as job, pytest.raises(feedline.WrongUse, match="stop: first"):
        job.set_weights([1, 2])
    with mixed("all").open(buffer=16 << 10, **local) as job:
        next(iter(job))
        for wrong in ([1], [1, 0], [1, float("nan")], [1, -2]):
            with pytest.raises(feedline.WrongUse):
                job.set_weights(wrong)
    (tmp_path / "one.txt").write_text("a\nb\n")
    with feedline.read(url=tmp_path / "one.txt", format="text").batch(1).open(**local) as job:
        with pytest.raises(feedline.WrongUse, match="weights apply only to the datasets in a `mix`"):
            job.set_weights([1])
