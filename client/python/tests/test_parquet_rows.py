"""Rows of Parquet and Arrow files with values that have no column type, and files whose columns differ in what their numbers mean."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import feedline
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LARGE = 2**60


def read(path: Path, local: dict[str, Any], on_error: str) -> tuple[list[int], list[str]]:
    """Returns the column `id`, and the reasons of skipped rows."""
    ids: list[int] = []
    reasons: list[str] = []
    with feedline.read(url=path, format="parquet", on_error=on_error).batch(100).open(epochs=1, **local) as job:
        for batch in job:
            ids += [int(value) for value in batch["id"]]
            reasons += [reason for _, _, reason in batch.skipped]
        assert job.stats()["skipped_rows"] == len(reasons)
    return sorted(ids), reasons


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([0, LARGE, 2], pa.timestamp("ms")), "the time is too large for 64 bits of microseconds"),
        (pa.array([[0], [1, LARGE], []], pa.list_(pa.duration("ms"))), "the time is too large for 64 bits of microseconds"),
        (pa.array([Decimal(1), Decimal(10**30), None], pa.decimal128(38, 0)), "the decimal number is too large for 64 bits"),
        (
            pa.array([[Decimal(1)], [Decimal(10**30), Decimal(10**31)], None], pa.list_(pa.decimal128(38, 0))),
            "the decimal number is too large for 64 bits",
        ),
    ],
)
def test_a_value_that_is_too_large_fails_its_row(tmp_path: Path, local: dict[str, Any], column: Any, reason: str) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [0, 1, 2], "x": column}), file)
    assert read(file, local, "skip") == ([0, 2], [f"column `x`: {reason}"])
    with pytest.raises(feedline.JobFailed, match=f"a.parquet, row 1 .*column `x`: {reason}"):
        read(file, local, "fail")


def test_a_damaged_row_group_fails_its_rows(tmp_path: Path, local: dict[str, Any]) -> None:
    file = tmp_path / "a.parquet"
    table = pa.table({"id": range(300), "text": [f"the text of row {row}" for row in range(300)]})
    pq.write_table(table, file, row_group_size=100, compression="none", write_page_checksum=True, use_dictionary=False)
    data = bytearray(file.read_bytes())
    at = data.index(b"the text of row 150")
    data[at] ^= 1
    file.write_bytes(data)
    ids, reasons = read(file, local, "skip")
    assert ids == [*range(100), *range(200, 300)]
    assert len(reasons) == 100 and len(set(reasons)) == 1
    with pytest.raises(feedline.JobFailed, match="a.parquet"):
        read(file, local, "fail")


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (pa.array([5], pa.int64()), "numbers"),
        (pa.array([5], pa.timestamp("us")), "timestamps without a time zone"),
        (pa.array([5], pa.date32()), "dates"),
        (pa.array([5], pa.duration("us")), "durations"),
    ],
)
def test_numbers_that_mean_something_else_have_no_common_type(
    tmp_path: Path, local: dict[str, Any], other: Any, kind: str
) -> None:
    pq.write_table(pa.table({"id": [0], "x": pa.array([5], pa.timestamp("ms", "UTC"))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "x": other}), tmp_path / "b.parquet")
    with pytest.raises(feedline.JobFailed, match=f"column `x` contains timestamps in UTC in .*a.parquet but {kind} in .*b.parquet"):
        read(tmp_path / "*.parquet", local, "fail")
