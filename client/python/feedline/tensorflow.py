"""Creates a ``tf.data.Dataset`` from a job, for example for Keras."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from feedline._convert import reject_missing, reject_missing_objects
from feedline._job import Job
from feedline._native import WrongUse
from feedline._open import open as open_job


def dataset(job: Any, **options: Any) -> tf.data.Dataset:
    """Creates a ``tf.data.Dataset`` of dicts from the batches of a job. Each iteration is one epoch.

    Columns of text and bytes are string tensors of shape ``[rows]``. Lists of varying length are not supported, so pad them with ``pad``.
    ``tf.data`` prefetches batches, so save the state with ``job.state_dict(at=steps)``.

    Args:
        job: a job, a pipeline or a pipeline file.
        options: options of :func:`feedline.open`, if ``job`` is not a job.
    """
    if isinstance(job, Job) and options:
        raise WrongUse(f"the job is already open, so {next(iter(options))}= has no effect; pass it to feedline.open()")
    opened = job if isinstance(job, Job) else open_job(job, **options)
    opened.numpy()
    # The first batch determines the signature. The first iteration also returns this batch.
    rest = iter(opened)
    first = next(rest, None)
    if first is None:
        raise WrongUse("the job has no further batch, so its columns are unknown; open the job with more epochs")
    signature = {name: _signature(name, column) for name, column in first.items()}
    started: list[Iterator[Any]] = [_chain(first, rest)]

    def epoch() -> Iterator[dict[str, Any]]:
        for batch in started.pop() if started else iter(opened):
            yield {name: _to_tensor_value(name, column) for name, column in batch.items()}

    return tf.data.Dataset.from_generator(epoch, output_signature=signature)


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _signature(name: str, column: np.ndarray[Any, Any]) -> tf.TensorSpec:
    if column.dtype != object:
        return tf.TensorSpec((None, *column.shape[1:]), column.dtype)
    if len(column) and isinstance(column[0], np.ndarray | list):
        raise WrongUse(f"column {name!r} has lists of varying length, which a tf.data.Dataset does not support; add pad to the pipeline")
    return tf.TensorSpec((None,), tf.string)


def _to_tensor_value(name: str, column: np.ndarray[Any, Any]) -> Any:
    if column.dtype == object:
        reject_missing_objects(name, column)
        return column.tolist()
    reject_missing(name, column)
    return column
