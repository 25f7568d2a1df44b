"""How a job is opened: its pipeline, its ranks, and the flags of the service that it runs on."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from feedline import _ranks
from feedline._job import Job
from feedline._native import WrongUse
from feedline._pipeline import Pipeline, load
from feedline._plain import number, plain, shown, switch, text
from feedline._plain import whole_if_any as count


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
    weight: float = 1.0,
    patience: float | None = None,
    **service: Any,
) -> Job:
    """Opens a job, of which this process is one rank. Nothing runs before the first batch is asked for.

    Args:
        pipeline: a pipeline file, or a pipeline built by :func:`feedline.read`.
        coordinator: URL of the service, such as ``http://feedline:7070``; of several coordinators one or more. ``None``: everything
            runs in this process.
        batch_size: rows of a batch, in place of the pipeline's.
        epochs: epochs of the job; ``None``: as many as are asked for. Each ``for`` loop over the job is one epoch.
        device: where PyTorch tensors are wanted, such as ``"cuda"`` or ``"cpu"``; ``None`` gives NumPy arrays.
        rank, world_size: this process among those of the training job. By default as torch.distributed, JAX, torchrun, MPI or Slurm say.
        consumers: ranks with different data, in place of ``world_size``: those of one replica group count once.
        replica_size: neighbouring ranks that see the same data: tensor, pipeline and context parallel ranks.
        mesh, data_dims: a ``DeviceMesh`` in place of these, and its dimensions over which data differs.
        virtual_consumers: slots that rows are dealt to, at least as many as ranks with different data; the same number gives the same
            batches on any number of ranks.
        elastic: ranks may join and leave while the job runs (:meth:`Job.leave`), and die; ``virtual_consumers`` slots move between them,
            more to faster ranks, and each slot's batches stay the same.
        name: of the run, the same on all ranks and new for each run. By default as torchrun or Slurm says, or a random one.
        state: where to start, as :meth:`Job.state_dict` gave it.
        progress: shows a bar on a terminal (needs ``tqdm``), and a line at the end of each epoch.
        buffer: bytes of batches that this process holds or has on their way; 256 MiB by default.
        weight: claim of the job where there are too few workers for all.
        patience: seconds without a coordinator after which the job is given up; 60 by default. Where it is given, a coordinator that is
            not there yet is waited for as long, too.
        service: further flags of ``feedline run`` by name: without a coordinator ``workers``, ``cores``, ``memory``, ``index_dir``,
            ``cache_dir``, ``cache_disk``, ``auto_cache``, ``credentials``; with one ``token_file``, ``tls_ca``, ``tls_cert``, ``tls_key``; and
            ``http``, an address such as ``"127.0.0.1:7170"`` to serve Prometheus metrics of this process on.

    Raises:
        WrongUse: when an argument or the pipeline is wrong, with the place and the fix.
    """
    batch_size, epochs, buffer = count("batch_size", batch_size), count("epochs", epochs), count("buffer", buffer)
    rank, world_size, consumers = count("rank", rank), count("world_size", world_size), count("consumers", consumers)
    replica_size, virtual_consumers = count("replica_size", replica_size), count("virtual_consumers", virtual_consumers)
    elastic, progress, weight = switch("elastic", elastic), switch("progress", progress), number("weight", weight)
    patience = None if patience is None else number("patience", patience)
    if consumers is not None:
        if world_size is not None:
            raise WrongUse("consumers and world_size say the same; give one of them")
        world_size = consumers * (replica_size or 1)
        rank = 0 if rank is None and world_size == 1 else rank
    if elastic and virtual_consumers is None:
        raise WrongUse("an elastic job needs virtual_consumers=: the slots that move between ranks, as many as there may ever be ranks or more")
    _check(service, virtual_consumers=virtual_consumers, buffer=buffer, patience=patience)
    found = _pipeline_of(pipeline)
    if batch_size is not None:
        found = found.with_batch_size(batch_size)
    if coordinator is not None:
        service["coordinator"] = _urls(coordinator)
    elif "python" not in service:
        # Functions of the pipeline run in the same Python, with the same packages.
        service["python"] = sys.executable
    job = Job(
        found,
        ranks=_ranks.find(rank, world_size, replica_size, mesh, data_dims),
        epochs=epochs,
        virtual_consumers=virtual_consumers,
        elastic=elastic,
        name=text("name", name),
        progress=progress,
        buffer=buffer,
        weight=weight,
        patience=patience,
        flags=_flags(service),
    )
    if state is not None:
        job.load_state_dict(state)
    return job if device is None else job.torch(device)


_OPTIONS = [
    "allow_metadata_addresses", "allow_url", "auto_cache", "cache_dir", "cache_disk", "cache_store", "cache_store_limit", "cores", "credentials", "functions",
    "http", "index_dir", "memory", "python", "tls_ca", "tls_cert", "tls_key", "token_file", "trace", "transport", "workers",
]  # fmt: skip
"""Flags of ``feedline run`` that say where a job runs."""


def _check(options: Mapping[str, Any], **counts: Any) -> None:
    for name in options:
        if name not in _OPTIONS:
            nearest = difflib.get_close_matches(name, [*_OPTIONS, *inspect.signature(open).parameters], 1)
            hint = f"; did you mean {nearest[0]}=?" if nearest else f"; there are {', '.join(_OPTIONS)}"
            raise WrongUse(f"feedline.open() has no option {name}={hint}")
    for name, value in counts.items():
        if value is not None and not 0 < value < float("inf"):
            raise WrongUse(f"{name} is {value!r}; give a number above 0")


def _pipeline_of(pipeline: Any) -> Pipeline:
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, Mapping):
        return Pipeline(pipeline)
    if isinstance(pipeline, str | os.PathLike):
        return load(pipeline)
    raise WrongUse(
        f"a pipeline is the path of a pipeline file or what feedline.read(...) gives, and this is a {type(pipeline).__name__}"
    )


def _urls(coordinator: Any) -> list[str]:
    urls = [coordinator] if isinstance(coordinator, str) else plain(coordinator, "coordinator")
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) and url for url in urls):
        raise WrongUse(f"coordinator is {shown(coordinator)}; give the URL of the service, such as http://feedline:7070, or a list of several")
    return urls


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as flags of ``feedline run``: ``cache_dir="x"`` is ``--cache-dir=x``."""
    flags = []
    for name, given in options.items():
        value = plain(given, name)
        if value is None:
            continue
        if isinstance(value, dict):
            raise WrongUse(f"{name} is {shown(given)}; give text or a number")
        flag = "--" + name.replace("_", "-")
        if value is True or value is False:
            switched = name in ("auto_cache", "trace")
            flags += [f"{flag}={'on' if value else 'off'}"] if switched else [flag] * value
        elif isinstance(value, list):
            flags += [f"{flag}={one}" for one in value]
        else:
            flags.append(f"{flag}={value}")
    return flags
