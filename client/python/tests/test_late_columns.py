"""Columns that appear late, values of other types, and the statistics about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest


def read_all(pipeline: feedline.Pipeline, local: dict[str, Any]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Returns the values of all rows, with None for null, and the statistics of the job."""
    rows: dict[str, list[Any]] = {}
    with pipeline.batch(500).open(epochs=1, **local) as job:
        for batch in job:
            for name, column in batch.items():
                rows.setdefault(name, []).extend(None if value is np.ma.masked else value for value in column)
        return rows, job.stats()


def test_json_values_after_many_rows_are_unchanged(tmp_path: Path, local: dict[str, Any]) -> None:
    cases = {"fraction": ("1", "2.5", 2.5), "negative": ("1", "-0.9", -0.9), "large": ("1", str(2**64 - 1), 2**64 - 1)}
    for name, (first, last, expected) in cases.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_text(f'{{"x": {first}}}\n' * 2000 + f'{{"x": {last}}}\n')
        rows, _ = read_all(feedline.read(url=file, format="jsonl"), local)
        assert rows["x"][-1] == expected and rows["x"][0] == 1
    (tmp_path / "text.jsonl").write_text('{"x": 1}\n' * 2000 + '{"x": "12"}\n')
    with pytest.raises(feedline.JobFailed, match=r"row 2000.*column `x`"):
        read_all(feedline.read(url=tmp_path / "text.jsonl", format="jsonl"), local)


def test_late_columns_are_delivered_and_statistics_list_the_others(tmp_path: Path, local: dict[str, Any]) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n' * 1500 + '{"id": 2, "late": 5}\n{"id": "x", "other": []}\n')
    (tmp_path / "b.jsonl").write_text('{"id": 3, "late": 7.5}\n')
    source = feedline.read(url=tmp_path / "*.jsonl", format="jsonl", features={"id": "id", "late": "late"}, on_error="skip")
    rows, stats = read_all(source, local)
    assert [value for value in rows["late"] if value == value and value is not None] == [5, 7.5]
    assert stats["skipped_rows"] == 1 and stats["rows"] == 1502
    assert stats["ignored_columns"] == ["other"]
    assert stats["widened_columns"] == [{"column": "late", "from": "int64", "to": "float64"}]


def test_columns_that_parquet_files_lack_are_null_if_optional(tmp_path: Path, local: dict[str, Any]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"id": [1, 2], "v": [0.5, 1.5]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [3]}), tmp_path / "b.parquet")
    with pytest.raises(feedline.JobFailed, match=r"b\.parquet has no column `v`.*optional: true"):
        read_all(feedline.read(url=tmp_path / "*.parquet", format="parquet"), local)
    optional: dict[str, Any] = {"id": "id", "v": {"name": "v", "optional": True}}
    rows, _ = read_all(feedline.read(url=tmp_path / "*.parquet", format="parquet", features=optional), local)
    assert rows["id"] == [1, 2, 3] and rows["v"][:2] == [0.5, 1.5]
    assert rows["v"][2] is None or rows["v"][2] != rows["v"][2]


def test_integers_of_other_files_are_never_rounded(tmp_path: Path, local: dict[str, Any]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": [1, 2**53 + 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [0.5]}), tmp_path / "b.parquet")
    source = feedline.read(url=tmp_path / "*.parquet", format="parquet", on_error="skip")
    rows, stats = read_all(source, local)
    assert rows["x"] == [1, 0.5] and stats["skipped_rows"] == 1


def test_statistics_list_columns_whose_values_are_rounded(tmp_path: Path, local: dict[str, Any]) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "ns": arrow.array([1_700_000_000_123_456_789], arrow.timestamp("ns")),
        "us": arrow.array([1], arrow.timestamp("us")),
        "times": arrow.array([[1, 2]], arrow.list_(arrow.time64("ns"))),
        "price": arrow.array(["1.25"]).cast(arrow.decimal128(9, 2)),
        "exact": arrow.array(["12345678901234567890.0123456789"]).cast(arrow.decimal128(38, 10)),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    _, stats = read_all(feedline.read(url=tmp_path / "a.parquet", format="parquet"), local)
    nanoseconds = "nanoseconds are rounded down to microseconds"
    assert stats["rounded_columns"] == [
        {"column": "exact", "reason": "decimals are rounded to 15 digits"},
        {"column": "ns", "reason": nanoseconds},
        {"column": "times", "reason": nanoseconds},
    ]
