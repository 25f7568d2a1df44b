"""Feedline as a ``tf.data.Dataset``, as Keras takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from feedline._convert import refuse_missing
from feedline._job import Job
from feedline._native import WrongUse
from feedline._open import open as open_job


def dataset(job: Any, **options: Any) -> tf.data.Dataset:
    """A job's batches as a ``tf.data.Dataset`` of dicts; each iteration is one epoch.

    Columns of text and bytes are string tensors of shape ``[rows]``. Lists of varying length have no such form: ``pad`` them.
    ``tf.data`` takes a batch or two ahead of the loop; ask the job for its state with ``job.state_dict(at=steps)``.

    Args:
        job: a job, a pipeline or a pipeline file.
        options: those of :func:`feedline.open`, where it is not a job.
    """
    if isinstance(job, Job) and options:
        raise WrongUse(f"the job is open already, so {next(iter(options))}= comes too late; give it to feedline.open()")
    opened = job if isinstance(job, Job) else open_job(job, **options)
    opened.numpy()
    # What the columns are is known with the first batch; the first iteration begins with it.
    begun = iter(opened)
    first = next(begun, None)
    if first is None:
        raise WrongUse("the job has no batch left, so nothing tells what its columns are")
    signature = {name: _signature(name, column) for name, column in first.items()}
    waiting: list[Iterator[Any]] = [_chain(first, begun)]

    def epoch() -> Iterator[dict[str, Any]]:
        for batch in waiting.pop() if waiting else iter(opened):
            yield {name: _plain(name, column) for name, column in batch.items()}

    return tf.data.Dataset.from_generator(epoch, output_signature=signature)


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _signature(name: str, column: np.ndarray[Any, Any]) -> tf.TensorSpec:
    if column.dtype != object:
        return tf.TensorSpec((None, *column.shape[1:]), column.dtype)
    if len(column) and isinstance(column[0], np.ndarray | list):
        raise WrongUse(f"column {name!r} has lists of varying length, which a tf.data.Dataset cannot hold; pad them to one length")
    return tf.TensorSpec((None,), tf.string)


def _plain(name: str, column: np.ndarray[Any, Any]) -> Any:
    refuse_missing(name, column)
    return column if column.dtype != object else ["" if value is None else value for value in column.tolist()]
