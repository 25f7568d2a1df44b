"""Buckets, packed rows, mixes, functions and elastic ranks in Python."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import ranks_of


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 rows with lists of 1 to 30 tokens."""
    file = tmp_path_factory.mktemp("sentences") / "s.jsonl"
    rows = ({"id": [row], "tokens": [row * 100 + position for position in range(1 + row * 7 % 30)]} for row in range(600))
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def test_buckets_are_arrays_of_one_length_with_row_origins(sentences: Path, local: dict[str, Any]) -> None:
    pipeline = feedline.read(url=sentences, format="jsonl", seed=1).shuffle(window=100)
    pipeline = pipeline.bucket_by_length(columns=["tokens"], boundaries=[8, 16, 30], batch_sizes=[16, 8, 4], pad="boundary", value=-1)
    seen = []
    with pipeline.open(epochs=1, **local) as job:
        for batch in job:
            tokens = batch["tokens"]
            assert tokens.ndim == 2 and tokens.shape[1] in (8, 16, 30) and not tokens.flags.owndata
            ids = [row[0] for row in batch["id"]]
            assert [row[0] // 100 for row in tokens] == ids
            assert [place for _, place in batch.rows][: len(ids)] == ids
            seen += ids
    assert sorted(seen) == list(range(600))


def test_packed_rows_have_segments_and_positions(sentences: Path, local: dict[str, Any]) -> None:
    pipeline = feedline.read(url=sentences, format="jsonl").select(["tokens"]).pack(columns=["tokens"], length=64, size=4, value=-1)
    with pipeline.open(epochs=1, **local) as job:
        batches = list(job)
    assert all(batch["tokens"].shape[1:] == (64,) for batch in batches)
    rows = []
    for batch in batches:
        for tokens, segments in zip(batch["tokens"], batch["tokens_segment_ids"], strict=True):
            rows += [tokens[segments == segment].tolist() for segment in range(1, segments.max() + 1)]
    expected = [[row * 100 + position for position in range(1 + row * 7 % 30)] for row in range(600)]
    assert sorted(rows) == sorted(expected)
    with pytest.raises(feedline.WrongUse, match="set the sizes of pack"):
        pipeline.with_batch_size(8)


def test_a_mix_is_built_in_python(sentences: Path, tmp_path: Path, local: dict[str, Any]) -> None:
    (tmp_path / "b.csv").write_text("n\n" + "\n".join(map(str, range(1000, 1100))))
    (tmp_path / "a.csv").write_text("n\n" + "\n".join(map(str, range(300))))
    sources = [feedline.read(url=tmp_path / f"{name}.csv", format="csv") for name in "ab"]
    pipeline = feedline.mix(sources, weights=[3, 1], seed=2, name="mixed").shuffle(window=50).batch(40)
    with pipeline.open(epochs=1, **local) as job:
        batches = [(batch["n"].tolist(), batch.rows) for batch in job]
    assert [sum(row >= 1000 for row in rows) for rows, _ in batches] == [10] * 10
    assert all(Path(shard).stem == ("b" if row >= 1000 else "a") for rows, origins in batches for row, (shard, _) in zip(rows, origins, strict=True))
    with pytest.raises(feedline.WrongUse, match="2 sources has 1 weights"):
        feedline.mix(sources, weights=[1])
    with pytest.raises(feedline.WrongUse, match="add the operators after the mix"):
        feedline.mix([sources[0].select(["n"])])


def _double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"twice": batch["id"] * 2}


def _noise(batch: dict[str, Any], rngs: list[np.random.Generator]) -> dict[str, Any]:
    return {"noise": np.array([rng.random() for rng in rngs], dtype="float32")}


def _fails(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["id"] == 500).any():
        raise ValueError("five hundred is not wanted")
    return {"id": batch["id"]}


def _dies(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["id"] == 500).any():
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"id": batch["id"]}


cloudpickled = pytest.mark.skipif(not pytest.importorskip("cloudpickle"), reason="cloudpickle is not installed")


@cloudpickled
def test_functions_run_on_workers_with_seeds_of_rows(numbers: feedline.Pipeline, local: dict[str, Any], clusters: Any, run_name: Any) -> None:
    pipeline = numbers.map(_double, outputs={"twice": "int64"}).filter(lambda batch: batch["id"] % 3 == 0)
    pipeline = pipeline.map(_noise, outputs={"noise": "float32"}, seeded=True)
    found = []
    for options in [local, {"coordinator": clusters(3), "name": run_name()}]:
        with pipeline.batch(50).open(epochs=1, **options) as job:
            batches = list(job)
        rows = {int(row): (int(two), float(noise)) for batch in batches for row, two, noise in zip(batch["id"], batch["twice"], batch["noise"], strict=True)}
        assert sorted(rows) == list(range(0, 997, 3)) and all(two == 2 * row for row, (two, _) in rows.items())
        found.append(rows)
    assert found[0] == found[1], "random numbers do not depend on workers"


@cloudpickled
def test_a_failed_function_names_the_row(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    for function, message in [(_fails, "ValueError: five hundred is not wanted"), (_dies, "signal 11")]:
        pipeline = numbers.map(function, outputs={"id": "int64"}).batch(50)
        with pipeline.open(epochs=1, **local) as job, pytest.raises(feedline.JobFailed, match=message) as error:
            list(job)
        assert "2.csv" in str(error.value)
        with pipeline.on_error("skip").open(epochs=1, **local) as job:
            batches = list(job)
        ids = sorted(row for batch in batches for row in batch["id"].tolist())
        assert ids == [row for row in range(997) if row != 500]
        assert sum(len(batch.skipped) for batch in batches) == 1


def test_elastic_ranks_join_and_leave_and_slots_keep_their_batches(numbers: feedline.Pipeline, clusters: Any, run_name: Any) -> None:
    options = {"coordinator": clusters(1), "virtual_consumers": 6, "epochs": 1}
    fixed: dict[int, list[list[int]]] = {}
    with numbers.batch(10).open(**options, name=run_name()) as job:
        for batch in job:
            fixed.setdefault(batch.slot, []).append(batch["id"].tolist())
    name, found = run_name(), dict[int, list[list[int]]]()

    def take(loop: Any, count: int) -> None:
        for _ in range(count):
            batch = next(loop, None)
            if batch is not None:
                found.setdefault(batch.slot, []).append(batch["id"].tolist())
                assert batch.weight > 0

    def rank(number: int) -> feedline.Job:
        return numbers.batch(10).open(**options, elastic=True, name=name, rank=number, world_size=number + 1)

    first = rank(0)
    loop = iter(first)
    take(loop, 6)
    first.leave()
    second = rank(1)
    assert first.slots == []
    take(iter(second), 12)
    second.leave()
    first.close()
    third = rank(2)
    for batch in third:
        found.setdefault(batch.slot, []).append(batch["id"].tolist())
    third.close()
    second.close()
    assert found == fixed
    with pytest.raises(feedline.WrongUse, match="only ranks of an elastic job"):
        ranks_of(numbers.batch(5), 1, run_name())[0].leave()
