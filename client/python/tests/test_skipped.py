"""What `Job.skipped` and `Job.stats` say about rows that are not delivered."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path
from typing import Any

import feedline
import pytest


def test_rows_that_fail_after_the_last_batch_are_listed(
    tmp_path: Path, local: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\n{"a": "x"}\n')
    pipeline = feedline.read(url=file, format="jsonl", on_error="skip").batch(2)
    with caplog.at_level(logging.WARNING, "feedline"), pipeline.open(epochs=1, **local) as job:
        batches = [(batch["a"].tolist(), batch.skipped) for batch in job]
    assert [values for values, _ in batches] == [[1, 2]]
    listed = [row for _, skipped in batches for row in skipped] + job.skipped
    assert len(listed) == 1 == job.stats()["skipped_rows"]
    assert listed == job.skipped and listed[0][0].endswith("a.jsonl")
    assert "1 rows after the last batch were skipped" in caplog.text


def test_unreadable_parts_are_listed_until_they_are_repaired(
    tmp_path: Path, local: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.txt.gz"
    whole = gzip.compress("".join(f"the text of row {row * 7919 % 99991}\n" for row in range(20_000)).encode())
    file.write_bytes(whole[: len(whole) // 2])
    pipeline = feedline.read(url=file, format="text", on_error="skip").batch(100)
    with caplog.at_level(logging.WARNING, "feedline"), pipeline.open(epochs=1, **local) as job:
        rows = sum(len(batch["text"]) for batch in job)
        stats = job.stats()
        assert 0 < rows < 20_000 and stats["defect_count"] == 1
        [(shard, offset, reason)] = stats["defects"]
        assert shard.endswith("a.txt.gz") and offset > 0 and reason
        assert "the rest of the shard is skipped" in caplog.text
        file.write_bytes(whole)
    with pipeline.open(epochs=1, **local) as job:
        assert sum(len(batch["text"]) for batch in job) == 20_000
        assert job.stats()["defect_count"] == 0 and job.stats()["defects"] == []
