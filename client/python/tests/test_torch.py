"""PyTorch: tensors, the dataset, and rejected uses."""

from __future__ import annotations

import warnings
from typing import Any

import feedline
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import feedline.torch  # noqa: E402 - needs PyTorch


def test_tensors_own_their_memory_unless_copy_is_false(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with numbers.batch(10).open(device="cpu", **local) as job:
            batch = next(iter(job))
        assert isinstance(batch["id"], torch.Tensor) and batch["id"].dtype == torch.int64
        before = batch["id"].tolist()
        batch["id"] += 1
        assert batch["id"].tolist() == [row + 1 for row in before]
        with numbers.batch(10).open(**local).torch(copy=False) as job:
            assert next(iter(job))["id"].tolist() == before


def test_a_data_loader_accepts_the_dataset_and_rejects_workers(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    dataset = feedline.torch.IterableDataset(numbers.batch(100), **local)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    assert len(loader) == 10
    rows = [batch["id"] for batch in loader]
    assert sorted(torch.cat(rows).tolist()) == list(range(997))
    with pytest.raises(feedline.WrongUse, match="num_workers=0"):
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")))
    dataset.job.close()


def test_a_missing_gpu_is_rejected(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    for wrong in ("gpu", "cuda:x", 1.5):
        with pytest.raises(feedline.WrongUse, match="which is not a PyTorch device; expected"):
            numbers.batch(10).open(device=wrong, **local)
    with pytest.raises(feedline.WrongUse, match="PyTorch finds"):
        numbers.batch(10).open(device="cuda:99", **local)


def test_text_becomes_lists_and_missing_values_are_rejected(tmp_path: Any, local: dict[str, Any]) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1, "t": "x"}\n{"a": null, "t": "y"}\n')
    rows = feedline.read(url=tmp_path / "x.jsonl", format="jsonl")
    with rows.select(["t"]).batch(2).open(device="cpu", **local) as job:
        assert next(iter(job))["t"] == ["x", "y"]
    pipeline = rows.batch(2)
    with pipeline.open(device="cpu", **local) as job, pytest.raises(feedline.WrongUse, match="'a' has 1 missing"):
        next(iter(job))
    with pipeline.open(**local) as job:
        assert isinstance(next(iter(job))["a"], np.ma.MaskedArray)
