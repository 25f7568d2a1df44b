"""Implements :func:`feedline.open`: validates the arguments, and selects the ranks and the service."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedline._arguments import (
    shorten,
    to_bool,
    to_float,
    to_list,
    to_optional_int,
    to_optional_text,
    to_path,
    to_positive_int,
    to_size,
    to_switch,
)
from feedline._config import JobConfig
from feedline._job import Job
from feedline._native import WrongUse
from feedline._pipeline import Pipeline, load
from feedline._ranks import find_ranks


def open(
    pipeline: str | os.PathLike[str] | Pipeline | Mapping[str, Any],
    *,
    coordinator: str | Sequence[str] | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    device: Any = None,
    rank: int | None = None,
    world_size: int | None = None,
    consumers: int | None = None,
    replica_size: int | None = None,
    mesh: Any = None,
    data_dims: Sequence[str] | None = None,
    virtual_consumers: int | None = None,
    elastic: bool = False,
    name: str | None = None,
    state: Mapping[str, Any] | None = None,
    progress: bool = False,
    buffer: int | None = None,
    feature_cache: int | str | None = None,
    weight: float = 1.0,
    patience: float | None = None,
    accept_reuploaded: bool = False,
    accept_changed_pipeline: bool = False,
    **service: Any,
) -> Job:
    """Opens a job in which this process is one rank. The job starts when the first batch is requested.

    Args:
        pipeline: a pipeline file, or a pipeline from :func:`feedline.read`.
        coordinator: URL of a coordinator, such as ``http://feedline:7070``, or a list of URLs of the coordinators of one cluster. With
            ``None``, all roles run in this process.
        batch_size: number of rows per batch, which overrides the size in the pipeline.
        epochs: number of epochs. ``None`` is unlimited. Each ``for`` loop over the job is one epoch.
        device: device of PyTorch tensors, such as ``"cuda"`` or ``"cpu"``. With ``None``, batches are NumPy arrays.
        rank, world_size: rank of this process, and number of ranks. They default to those of torch.distributed, JAX, torchrun, MPI or Slurm.
        consumers: number of ranks with different data, instead of ``world_size``. A group of replicas counts as one rank.
        replica_size: number of neighbouring ranks with the same data, such as tensor, pipeline and context parallel ranks.
        mesh, data_dims: a ``DeviceMesh`` and the names of its data dimensions, instead of the previous arguments.
        virtual_consumers: number of slots that share the rows, at least the number of ranks with different data. With the same number of
            slots, a job has the same batches on any number of ranks.
        elastic: whether ranks may join, leave (:meth:`Job.leave`) and fail while the job runs. The ``virtual_consumers`` slots move
            between ranks, and faster ranks have more slots. The batches of a slot do not depend on its rank.
        name: name of the run. It must be equal on all ranks, and new for each run. The default comes from torchrun or Slurm, or is random.
        state: state from which the job resumes, from :meth:`Job.state_dict`.
        progress: whether to show a progress bar on a terminal (requires ``tqdm``), and a line after each epoch.
        buffer: maximum number of bytes that this process buffers or receives. The default is 256 MiB.
        feature_cache: memory for features of nodes in a graph, such as ``"4GiB"``, in addition to ``buffer``. Workers omit the cached rows
            from batches, and the batches are the same. It has the most hits if the graph was built with ``--order vip`` or ``degree``.
        weight: relative share of the job if the workers cannot feed all jobs.
        patience: time in seconds without a coordinator after which the job fails. The default is 60. An explicit value also applies to the
            first connection, which otherwise fails immediately.
        accept_reuploaded: whether to resume from a state even if shards were written again since it was saved, and indexing reads only
            parts of them, such as the footer of a Parquet file. These parts must be equal. It is not needed if the store has checksums
            of the shards.
        accept_changed_pipeline: whether to resume from a state even if the pipeline changed since it was saved. The rows after the state
            are those of the new pipeline. If it has another order of rows, some rows of the epoch may be repeated or missing.
        service: further flags of ``feedline run`` as keywords. Without a coordinator, they are ``workers``, ``cores``, ``memory``,
            ``graph_memory``, ``index_dir``, ``cache_dir``, ``cache_disk``, ``auto_cache`` and ``credentials``. With a coordinator, they
            are ``token_file``, ``tls_ca``, ``tls_cert`` and ``tls_key``. ``http`` is the address, such as ``"127.0.0.1:7170"``, on which
            this process serves Prometheus metrics.

    Raises:
        WrongUse: if an argument or the pipeline is invalid. The message contains the argument and the fix.
    """
    ranks = _find_ranks(rank, world_size, consumers, replica_size, mesh, data_dims)
    batch_size, buffer = to_optional_int("batch_size", batch_size), to_optional_int("buffer", buffer)
    virtual_consumers, elastic = to_optional_int("virtual_consumers", virtual_consumers), to_bool("elastic", elastic)
    patience = None if patience is None else to_float("patience", patience)
    if elastic and virtual_consumers is None:
        raise WrongUse(
            "an elastic job requires virtual_consumers=, the number of slots that move between ranks; set it to at least the number of ranks"
        )
    _check_positive(virtual_consumers=virtual_consumers, buffer=buffer, patience=patience)
    opened = _to_pipeline(pipeline)
    if batch_size is not None:
        opened = opened.with_batch_size(batch_size)
    config = JobConfig(
        opened,
        ranks=ranks,
        epochs_argument=to_optional_int("epochs", epochs),
        virtual_consumers=virtual_consumers,
        is_elastic=elastic,
        name=to_optional_text("name", name),
        buffer_bytes=buffer,
        feature_cache=None if feature_cache is None else to_size("feature_cache", feature_cache),
        weight=to_float("weight", weight),
        patience_seconds=patience,
        accepts_reuploaded=to_bool("accept_reuploaded", accept_reuploaded),
        accepts_changed_pipeline=to_bool("accept_changed_pipeline", accept_changed_pipeline),
        service=_service_settings(coordinator, service),
    )
    job = Job(config, progress=to_bool("progress", progress))
    if state is not None:
        job.load_state_dict(state)
    return job if device is None else job.torch(device)


Pipeline._open_job = staticmethod(open)


def _find_ranks(rank: Any, world_size: Any, consumers: Any, replica_size: Any, mesh: Any, data_dims: Any) -> Any:
    rank, world_size = to_optional_int("rank", rank), to_optional_int("world_size", world_size)
    consumers, replica_size = to_optional_int("consumers", consumers), to_optional_int("replica_size", replica_size)
    if consumers is not None:
        if world_size is not None:
            raise WrongUse("consumers= and world_size= cannot be used together; pass only one of them")
        world_size = consumers * (replica_size or 1)
        rank = 0 if rank is None and world_size == 1 else rank
    return find_ranks(rank, world_size, replica_size, mesh, data_dims)


def _to_urls(name: str, value: Any) -> list[str]:
    urls = to_list(name, value)
    if not urls or not all(isinstance(url, str) and url for url in urls):
        raise WrongUse(f"{name} is {shorten(value)}; expected the URL of a coordinator, such as http://feedline:7070, or a list of URLs")
    return urls


def _to_texts(name: str, value: Any) -> list[str]:
    texts = to_list(name, value)
    if not all(isinstance(text, str) for text in texts):
        raise WrongUse(f"{name} is {shorten(value)}; expected a string, or a list of strings")
    return texts


_SETTINGS: dict[str, Callable[[str, Any], Any]] = {
    "allow_metadata_addresses": to_bool,
    "allow_url": _to_texts,
    "auto_cache": to_switch,
    "cache_dir": to_path,
    "cache_disk": to_size,
    "cache_store": to_optional_text,
    "cache_store_limit": to_size,
    "cores": to_positive_int,
    "credentials": to_path,
    "functions": to_switch,
    "graph_memory": to_size,
    "http": to_optional_text,
    "index_dir": to_path,
    "memory": to_size,
    "pool": to_optional_text,
    "python": to_path,
    "store_retry_timeout": to_optional_text,
    "tls_ca": to_path,
    "tls_cert": to_path,
    "tls_key": to_path,
    "token_file": to_path,
    "trace": to_switch,
    "transport": to_optional_text,
    "workers": to_positive_int,
}
"""The settings of the service, with the functions that convert their values."""


def _service_settings(coordinator: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the settings of the service. Omits settings that are ``None``."""
    for name in options:
        if name not in _SETTINGS:
            nearest = difflib.get_close_matches(name, [*_SETTINGS, *inspect.signature(open).parameters], 1)
            hint = f"; did you mean {nearest[0]}=?" if nearest else f"; the options of the service are {', '.join(_SETTINGS)}"
            raise WrongUse(f"feedline.open() has no option {name}={hint}")
    settings = {name: _SETTINGS[name](name, value) for name, value in options.items() if value is not None}
    if coordinator is not None:
        return {**settings, "coordinator": _to_urls("coordinator", coordinator)}
    if os.environ.get("FEEDLINE_COORDINATOR") or settings.get("functions") is False:
        return settings
    # Run the functions of the pipeline with the Python interpreter and the packages of this process.
    return {"python": sys.executable, **settings}


def _check_positive(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and not 0 < number < float("inf"):
            raise WrongUse(f"{name} is {number!r}; expected a number greater than 0")


def _to_pipeline(pipeline: Any) -> Pipeline:
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, str | os.PathLike):
        return load(pipeline)
    if isinstance(pipeline, Mapping):
        return Pipeline(pipeline)
    raise WrongUse(f"the pipeline is a {type(pipeline).__name__}; expected a pipeline file, or a pipeline from feedline.read(...)")
