"""Tests of the messages of the logger `feedline`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import feedline
import pytest


def _rows(pipeline: feedline.Pipeline, local: dict[str, Any]) -> int:
    with feedline.open(pipeline, epochs=1, **local) as job:
        return sum(len(batch["n"]) for batch in job.batches())


def test_changed_shards_that_are_indexed_again_are_logged_on_one_line(
    tmp_path: Path, local: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for shard in range(4):
        (tmp_path / f"{shard}.csv").write_text("n\n1\n2\n")
    pipeline = feedline.read(url=tmp_path / "*.csv", format="csv").batch(2)
    with caplog.at_level(logging.INFO, logger="feedline"):
        assert _rows(pipeline, local) == 8
        assert "shards changed" not in caplog.text
        (tmp_path / "3.csv").write_text("n\n1\n2\n3\n")
        assert _rows(pipeline, local) == 9
    messages = [record for record in caplog.records if "shards changed" in record.getMessage()]
    assert [record.getMessage() for record in messages] == [
        "1 of 4 shards changed since they were indexed; indexed them again"
    ]
    assert [(record.name, record.levelname) for record in messages] == [("feedline", "INFO")]
