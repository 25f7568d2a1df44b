"""Builds pipelines in Python. The keyword arguments have the names of the keys in pipeline files."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from feedline import _native
from feedline._arguments import shorten, to_json_value, to_list
from feedline._functions import function_parameters, output_columns
from feedline._native import WrongUse
from feedline._operators import Operators

if TYPE_CHECKING:
    from feedline._job import Job

_UNNAMED_FILE = "pipeline"
"""The file name in error messages of a pipeline without a file."""


class Pipeline(Operators):
    """A pipeline, which consists of one source and a list of operators. Each method returns a new pipeline.

    >>> pipeline = (
    ...     feedline.read(url="data/*.tfrecord", format="tfrecord", features={"image": "image/encoded"}, seed=5)
    ...     .shuffle(window=4096)
    ...     .random_resized_crop(column="image", size=[224, 224])
    ...     .batch(256)
    ... )
    >>> job = pipeline.open()
    """

    _open_job: ClassVar[Callable[..., Any]]
    """:func:`feedline.open`. The module ``feedline._open`` sets this attribute, because it imports this module."""

    def __init__(self, spec: Mapping[str, Any], file: str = _UNNAMED_FILE) -> None:
        if not isinstance(spec, Mapping):
            raise WrongUse(f"a pipeline must be created by feedline.read(...) or from a mapping as in a pipeline file, not from {shorten(spec)}")
        self._spec: dict[str, Any] = to_json_value(spec, "")
        self._file = file

    # Settings of the whole pipeline.

    def named(self, name: str) -> Pipeline:
        """Sets the name of the pipeline in messages, metrics and lists of jobs."""
        return self._with(name=name)

    def seed(self, seed: int) -> Pipeline:
        """Sets the seed of the row order and of all random operators."""
        return self._with(seed=seed)

    def shuffle(self, window: int) -> Pipeline:
        """Shuffles the rows. Permutes the blocks of the data, and then shuffles rows within windows of ``window`` rows. With 0, the rows keep
        their storage order."""
        return self._with(shuffle={"window": window})

    def order(self, order: Literal["deterministic", "relaxed"]) -> Pipeline:
        """Sets the order mode. With ``deterministic``, batches depend only on the job. With ``relaxed``, each rank receives the rows that are
        ready first."""
        return self._with(order=order)

    def on_error(self, on_error: Literal["fail", "skip", "replace"]) -> Pipeline:
        """Sets the handling of failed rows. ``fail`` fails the job, ``skip`` removes the row, and ``replace`` fills the row with zeros. Skipped
        and replaced rows are counted, and listed in :attr:`Batch.skipped`."""
        return self._with(on_error=on_error)

    # Operators that call Python functions. `Operators` contains the other operators.

    def filter(self, where: str | Callable[..., Any], *, parallelism: int | None = None, **options: Any) -> Pipeline:
        """Keeps the rows for which an SQL expression over the columns is true. With a Python function, calls :meth:`filter_function`."""
        if not isinstance(where, str):
            return self.filter_function(where, parallelism=parallelism, **options)
        if options:
            raise WrongUse(f"filter with an SQL expression has no option {next(iter(options))}=; use this option with a function, or remove it")
        return self._operator("filter", parallelism, where=where)

    def map(
        self, function: str | Callable[..., Any], outputs: Mapping[str, Any] | None = None, *, parallelism: int | None = None, **options: Any
    ) -> Pipeline:
        """Calls a Python function on workers, in separate processes. Its argument is a dict of NumPy arrays whose first axis is rows.

        Args:
            function: a function, which is sent to workers with cloudpickle, or ``"package.module:function"``, which workers import.
            outputs: columns that the function adds or replaces. Each name maps to a dtype such as ``"float32"``, ``"text"`` or ``"bytes"``,
                to the ``(dtype, shape)`` of a row, or to ``{"dtype": ..., "list": True}`` for lists of any length.
            options: ``columns`` that the function receives (all columns by default), ``timeout_s``, ``memory``, ``rows`` per call, ``seeded``
                (passes ``seeds`` or ``rngs`` as a keyword), ``environment``, ``path`` and ``version``. Checkpoints and caches are valid for
                one version. The default version is computed from the bytecode of the function and of everything that the function uses.
        """
        return self._operator("map", parallelism, **function_parameters(function, options), outputs=output_columns(outputs))

    def filter_function(self, function: str | Callable[..., Any], *, parallelism: int | None = None, **options: Any) -> Pipeline:
        """Keeps the rows for which a Python function returns a true value. The arguments are the same as in :meth:`map`."""
        return self._operator("filter_function", parallelism, **function_parameters(function, options))

    # Use of the pipeline.

    def open(self, **options: Any) -> Job:
        """Opens a job that runs this pipeline. The options are the arguments of :func:`feedline.open`."""
        return type(self)._open_job(self, **options)

    def to_yaml(self) -> str:
        """Returns the pipeline as YAML, with all defaults.

        Raises:
            WrongUse: if the pipeline is invalid or incomplete. The message contains the invalid part and the fix.
        """
        return self._call_native(_native.to_yaml)

    def check(self) -> dict[str, Any]:
        """Validates the pipeline. Returns the pipeline as plain data with all defaults.

        Raises:
            WrongUse: if the pipeline is invalid or incomplete. The message contains the invalid part and the fix.
        """
        return json.loads(self._call_native(_native.check_pipeline))

    def with_batch_size(self, size: int) -> Pipeline:
        """Sets the size of the ``batch`` operator. Adds the operator if the pipeline has none."""
        operators = self._spec.get("operators", [])
        last = next(iter(operators[-1])) if operators else ""
        if last in ("bucket_by_length", "pack", "sample_neighbors"):
            raise WrongUse(f"batch_size= applies to pipelines that end with batch, but this pipeline ends with {last}; set the sizes of {last}")
        if last != "batch":
            return self.batch(size)
        return self._with(operators=[*operators[:-1], {"batch": {**operators[-1]["batch"], "size": size}}])

    def __repr__(self) -> str:
        operators = [next(iter(operator)) for operator in self._spec.get("operators", [])]
        return f"<feedline.Pipeline {self._spec.get('name')!r}: {' | '.join(['source', *operators])}>"

    def _to_json(self) -> str:
        return json.dumps(self._spec)

    def _call_native(self, function: Callable[[str, str], str]) -> str:
        """Calls a native function. Removes line numbers from errors, because the JSON of the pipeline has only one line."""
        try:
            return function(self._to_json(), self._file)
        except WrongUse as error:
            raise WrongUse(re.sub(rf"^{re.escape(self._file)}:\d+: ", f"{self._file}: ", str(error))) from None

    def _with(self, **changes: Any) -> Self:
        return type(self)({**self._spec, **changes}, self._file)

    def _operator(self, name: str, parallelism: int | None, **parameters: Any) -> Self:
        for key, parameter in inspect.signature(getattr(Pipeline, name)).parameters.items():
            if parameter.default is parameter.empty and key in parameters and parameters[key] is None:
                raise WrongUse(f"{name}.{key} is None, but {name} requires it; set a value")
        values = {**parameters, "parallelism": parallelism}
        operator = {name: to_json_value({key: value for key, value in values.items() if value is not None}, name)}
        return self._with(operators=[*self._spec.get("operators", []), operator])


def read(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str,
    features: Mapping[str, str | Mapping[str, Any]] | None = None,
    *,
    name: str = "python",
    seed: int = 0,
    order: Literal["deterministic", "relaxed"] = "deterministic",
    on_error: Literal["fail", "skip", "replace"] = "fail",
    credentials: str | None = None,
    compression: Literal["none", "gzip", "zlib", "zstd", "bzip2", "xz"] | None = None,
    partitions: Literal["hive"] | None = None,
    config: str | None = None,
    split: str | None = None,
    seeds: str | None = None,
    topics: str | Sequence[str] | None = None,
    start: str | Mapping[str, Any] | None = None,
    until: str | Mapping[str, Any] | None = None,
    isolation: Literal["read_committed", "read_uncommitted"] | None = None,
    payload: str | Mapping[str, Any] | None = None,
    on_tombstone: Literal["skip", "null"] | None = None,
    on_gap: Literal["fail", "skip"] | None = None,
    commit_group: str | None = None,
    epoch: Mapping[str, Any] | None = None,
) -> Pipeline:
    """Creates a pipeline that reads one source.

    Args:
        url: one or several paths, globs, prefixes that end with ``/``, or URLs (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http(s)://``).
        format: format of the files, such as ``tfrecord``, ``parquet``, ``imagefolder`` or ``huggingface``. docs/pipelines.md lists all formats.
        features: maps column names of the pipeline to names in the data. By default, all columns have their names in the data. With
            ``{"name": ..., "optional": True}`` instead of a name, the column is null in files that do not contain it.
        name: name of the pipeline in messages, metrics and lists of jobs.
        seed: seed of the row order and of all random operators.
        order: ``deterministic`` or ``relaxed``. See :meth:`Pipeline.order`.
        on_error: handling of failed rows, which is ``fail``, ``skip`` or ``replace``. See :meth:`Pipeline.on_error`.
        credentials: name of the credentials with which workers read the data.
        compression: compression of all files, or ``none``. By default, the first bytes of each file determine it.
        partitions: ``hive`` adds columns from directories such as ``year=2024``.
        config: configuration of a Hugging Face dataset. By default, its default configuration.
        split: split of a Hugging Face dataset. By default, its only split.
        seeds: seed set of a graph, with ``format="graph"``. By default, its only seed set.
        topics: names or patterns of Kafka topics. This and the following arguments need ``format="kafka"``; see docs/kafka.md.
        start: first offset of each partition: ``earliest``, ``latest``, ``{"time": ...}`` or ``{"offsets": {"topic/0": ...}}``.
        until: end of the offsets of each partition: ``latest``, ``{"time": ...}`` or ``{"offsets": {"topic/0": ...}}``. With ``"none"``, the job
            is unbounded: it follows the topics.
        isolation: whether records of open and aborted transactions are read.
        payload: encoding of the payloads, such as ``json``, or a mapping with ``format`` and its settings.
        on_tombstone: handling of records without payload.
        on_gap: handling of records that were deleted or lost.
        commit_group: consumer group that receives the offsets of delivered records, for tools that show the lag.
        epoch: with ``until="none"``, when an epoch ends: ``{"every": "5m"}`` or ``{"rows": 100_000}``.
    """
    urls = to_json_value(url, "source.url")
    if isinstance(urls, list) and not all(isinstance(item, str) for item in urls):
        raise WrongUse(f"source.url is {shorten(url)}; expected a path, glob or URL, or a list of them")
    source: dict[str, Any] = {"url": urls[0] if isinstance(urls, list) and len(urls) == 1 else urls, "format": format}
    if features:
        source["features"] = features
    optional = {
        "credentials": credentials,
        "compression": compression,
        "partitions": partitions,
        "config": config,
        "split": split,
        "seeds": seeds,
    }
    for key, value in optional.items():
        if value is not None:
            source[key] = value
    kafka = {
        "topics": topics,
        "start": start,
        "until": until,
        "isolation": isolation,
        "payload": payload,
        "on_tombstone": on_tombstone,
        "on_gap": on_gap,
        "commit_group": commit_group,
        "epoch": epoch,
    }
    source |= {key: to_json_value(value, f"source.{key}") for key, value in kafka.items() if value is not None}
    spec = {"name": name, "source": source, "seed": seed, "order": order, "on_error": on_error, "operators": []}
    return Pipeline(spec)


def mix(
    sources: Sequence[Pipeline],
    weights: Sequence[float] | None = None,
    stop: Literal["all", "first", "restart"] = "all",
    **options: Any,
) -> Pipeline:
    """Creates a pipeline that mixes the rows of several sources in proportion to ``weights``.

    Args:
        sources: results of :func:`feedline.read`, without operators.
        weights: relative weight of each source. By default, all weights are equal.
        stop: end of a pass. With ``all``, a pass ends after all rows of all sources. With ``first``, a pass ends after the last row of the
            first exhausted source. With ``restart``, exhausted sources restart until all rows of all sources were read.
        options: ``name``, ``seed``, ``order`` and ``on_error``, as in :func:`feedline.read`.
    """
    if not isinstance(sources, Sequence) or not sources or not all(isinstance(source, Pipeline) for source in sources):
        raise WrongUse("a mix requires a list of sources; pass a list of results of feedline.read(...)")
    shares = [1.0] * len(sources) if weights is None else to_list("weights", weights)
    if len(shares) != len(sources):
        raise WrongUse(f"a mix of {len(sources)} sources has {len(shares)} weights; pass one weight per source")
    if any(source._spec.get("operators") for source in sources):
        raise WrongUse("a source of a mix has operators; add the operators after the mix, so that they apply to all rows")
    defaults = {"seed": 0, "order": "deterministic", "on_error": "fail"}
    for source in sources:
        ignored = [key for key, default in defaults.items() if source._spec.get(key, default) != default]
        ignored += ["shuffle"] if "shuffle" in source._spec else []
        if ignored:
            raise WrongUse(f"a source of a mix sets {ignored[0]}; set {ignored[0]} of the mix instead, so that it applies to all rows")
    parts = [{"weight": weight, **source._spec["source"]} for source, weight in zip(sources, shares, strict=True)]
    spec = {"name": "python", **defaults, **options}
    return Pipeline({**spec, "source": {"mix": parts, "stop": stop}, "operators": []})


def load(file: str | os.PathLike[str]) -> Pipeline:
    """Loads a pipeline file. Relative paths in the file are relative to the working directory.

    Raises:
        WrongUse: if the file cannot be read or is invalid. The message contains the line and the fix.
    """
    if not isinstance(file, str | os.PathLike):
        raise WrongUse(f"the pipeline file is {shorten(file)}; expected a path, as a string or a Path")
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WrongUse(f"cannot read {path}: {reason.lower()}; pass the path of a pipeline file") from None
    return Pipeline(json.loads(_native.check_pipeline(text, str(path))), str(path))
