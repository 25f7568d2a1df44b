"""What batches are: types, shapes, missing values, views, and where their rows come from."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def one_batch(pipeline: feedline.Pipeline, local: dict[str, Any], **options: Any) -> Any:
    with pipeline.open(**local, **options) as job:
        return next(iter(job))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows = 10
    columns = {
        name: pa.array(np.arange(rows).astype(name))
        for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
    }
    columns["bool"] = pa.array([row % 3 == 0 for row in range(rows)])
    columns["text"] = pa.array([None if row == 4 else f"é{row}" for row in range(rows)])
    columns["bytes"] = pa.array([bytes([row] * row) for row in range(rows)])
    columns["list"] = pa.array([list(range(row)) for row in range(rows)], pa.list_(pa.int32()))
    columns["holes"] = pa.array([None if row % 5 == 0 else row for row in range(rows)], pa.int64())
    file = tmp_path_factory.mktemp("table") / "table.parquet"
    pq.write_table(pa.table(columns), file)
    return file


def test_columns_have_the_types_and_values_of_the_data(table: Path, local: dict[str, Any]) -> None:
    batch = one_batch(feedline.read(url=table, format="parquet").batch(4), local)
    for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]:
        assert batch[name].dtype == name and batch[name].tolist() == [0, 1, 2, 3]
    assert batch["bool"].dtype == bool and batch["bool"].tolist() == [True, False, False, True]
    assert batch["text"].tolist() == ["é0", "é1", "é2", "é3"]
    assert batch["bytes"].tolist() == [b"", b"\1", b"\2\2", b"\3\3\3"]
    assert [row.tolist() for row in batch["list"]] == [[], [0], [0, 1], [0, 1, 2]]
    assert batch["list"][3].dtype == np.int32
    assert isinstance(batch["holes"], np.ma.MaskedArray)
    assert batch["holes"].tolist() == [None, 1, 2, 3]
    assert isinstance(batch, dict) and batch.size == 4 and batch.epoch == 0 and batch.slot == 0


def test_missing_text_is_none(table: Path, local: dict[str, Any]) -> None:
    batch = one_batch(feedline.read(url=table, format="parquet").select(["text"]).batch(10), local)
    assert batch["text"][4] is None


def test_tensors_are_views_that_outlive_the_job(table: Path, local: dict[str, Any]) -> None:
    pipeline = feedline.read(url=table, format="parquet").pad("list", 9, value=-1).select(["list"]).batch(10)
    batch = one_batch(pipeline, local)
    array = batch["list"]
    del batch
    gc.collect()
    assert array.shape == (10, 9) and array.dtype == np.int32
    assert array[3].tolist() == [0, 1, 2] + [-1] * 6
    assert not array.flags.owndata and not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


def test_dlpack_shares_the_memory_of_a_batch(table: Path, local: dict[str, Any]) -> None:
    batch = one_batch(feedline.read(url=table, format="parquet").select(["float32"]).batch(4), local)
    taken = np.from_dlpack(batch["float32"])
    assert taken.tolist() == [0, 1, 2, 3]
    assert taken.ctypes.data == batch["float32"].ctypes.data
    assert not taken.flags.writeable, "other processes may read the same memory"
    del batch
    gc.collect()
    assert taken.tolist() == [0, 1, 2, 3]


def test_arrow_imports_a_batch_without_a_copy(table: Path, local: dict[str, Any]) -> None:
    pipeline = feedline.read(url=table, format="parquet").batch(4)
    with pipeline.open(**local).arrow() as job:
        batches = list(job)
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    assert batches[0].equals(pq.read_table(table).to_batches()[0].slice(0, 4))


def test_rows_contain_shard_and_index_after_shuffles_and_filters(tmp_path: Path, local: dict[str, Any]) -> None:
    for shard in range(3):
        lines = (json.dumps({"shard": shard, "row": row}) for row in range(50))
        (tmp_path / f"{shard}.jsonl").write_text("\n".join(lines))
    shuffled = feedline.read(url=tmp_path / "*.jsonl", format="jsonl", seed=9).shuffle(window=32)
    for pipeline in [shuffled, shuffled.filter(where="row <> 7 AND row < 40"), shuffled.repeat(2)]:
        with pipeline.batch(16).open(**local) as job:
            for _ in range(2):
                for batch in job:
                    origins = [(int(Path(shard).stem), row) for shard, row in batch.rows]
                    assert origins == list(zip(batch["shard"].tolist(), batch["row"].tolist(), strict=True))


def test_a_failed_row_is_named_or_listed(tmp_path: Path, local: dict[str, Any]) -> None:
    (tmp_path / "x.csv").write_text("a\n1\ntwo\n3\n")
    pipeline = feedline.read(url=tmp_path / "x.csv", format="csv").cast("a", "int64").batch(2)
    with pipeline.open(**local) as job, pytest.raises(feedline.JobFailed, match=r"x.csv.*two"):
        list(job)
    with pipeline.on_error("skip").open(**local) as job:
        batches = list(job)
    skipped = [row for batch in batches for row in batch.skipped]
    assert [batch["a"].tolist() for batch in batches] == [[1, 3]]
    assert len(skipped) == 1 and skipped[0][0].endswith("x.csv") and "two" in skipped[0][2]


def test_a_copy_of_a_batch_is_a_dict(local: dict[str, Any], numbers: feedline.Pipeline) -> None:
    import pickle

    batch = one_batch(numbers.batch(8), local)
    copied = pickle.loads(pickle.dumps(batch))
    assert copied.keys() == batch.keys() and copied["id"].tolist() == batch["id"].tolist()
    with pytest.raises(AttributeError, match="is a copy by another library"):
        _ = copied.epoch
