"""Pipelines built in Python, with the names of the pipeline file as keyword arguments."""

from __future__ import annotations

import base64
import functools
import inspect
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from feedline import _native
from feedline._code import signature
from feedline._native import WrongUse
from feedline._operators import Operators
from feedline._plain import names, plain, several, shown

if TYPE_CHECKING:
    from feedline._job import Job

_BUILT = "pipeline"
"""What errors call a pipeline that comes from no file."""


class Pipeline(Operators):
    """A pipeline: one source, operators in order. Every method gives a new pipeline and leaves this one as it is.

    >>> pipeline = (
    ...     feedline.read(url="data/*.tfrecord", format="tfrecord", features={"image": "image/encoded"}, seed=5)
    ...     .shuffle(window=4096)
    ...     .random_resized_crop(column="image", size=[224, 224])
    ...     .batch(256)
    ... )
    >>> job = pipeline.open()
    """

    def __init__(self, spec: Mapping[str, Any], file: str = _BUILT) -> None:
        if not isinstance(spec, Mapping):
            raise WrongUse(f"a pipeline is what feedline.read(...) gives, or a mapping as in a pipeline file, and this is {shown(spec)}")
        self._spec: dict[str, Any] = plain(spec, "")
        self._file = file

    # What holds for all rows.

    def named(self, name: str) -> Pipeline:
        """Under this name, which messages, metrics and lists of jobs show."""
        return self._with(name=name)

    def seed(self, seed: int) -> Pipeline:
        """With this seed of the order and of every random operator."""
        return self._with(seed=seed)

    def shuffle(self, window: int) -> Pipeline:
        """Rows in random order: blocks of the data are permuted, then rows within ``window`` of them. 0 keeps storage order."""
        return self._with(shuffle={"window": window})

    def order(self, order: Literal["deterministic", "relaxed"]) -> Pipeline:
        """``deterministic``: batches depend on nothing but the job. ``relaxed``: each rank takes the next ready rows."""
        return self._with(order=order)

    def on_error(self, on_error: Literal["fail", "skip", "replace"]) -> Pipeline:
        """What happens to a row that fails: it fails the job, is left out, or is filled with zeros; never silently."""
        return self._with(on_error=on_error)

    # Operators that take a Python function. The others are those of `Operators`.

    def filter(self, where: str | Callable[..., Any], *, parallelism: int | None = None, **options: Any) -> Pipeline:
        """Keeps the rows for which an SQL expression over the columns is true; or those that a Python function keeps, see
        :meth:`filter_function`."""
        if not isinstance(where, str):
            return self.filter_function(where, parallelism=parallelism, **options)
        if options:
            raise WrongUse(f"filter by an SQL expression takes no {next(iter(options))}=; functions do")
        return self._operator("filter", parallelism, where=where)

    def map(
        self, function: str | Callable[..., Any], outputs: Mapping[str, Any] | None = None, *, parallelism: int | None = None, **options: Any
    ) -> Pipeline:
        """Calls a Python function on workers, in processes of its own, with dicts of NumPy arrays whose first axis is rows.

        Args:
            function: a function, which travels by cloudpickle; or ``"package.module:function"``, importable on workers.
            outputs: columns that it adds or replaces: name to a dtype such as ``"float32"``, ``"text"`` or ``"bytes"``; to
                ``(dtype, shape)`` of a row; or to ``{"dtype": ..., "list": True}`` for lists of any length.
            options: ``columns`` that it is given (all by default), ``timeout_s``, ``memory``, ``rows`` of one call, ``seeded`` (it then
                takes ``seeds`` or ``rngs`` as a keyword), ``environment``, ``path``; and ``version``, by which states and caches go: by default it
                follows from a function's bytecode and what it uses, so its place in a file does not matter.
        """
        declared = {name: _output(name, output) for name, output in outputs.items()} if isinstance(outputs, Mapping) else outputs
        return self._operator("map", parallelism, **{**_function(function), **_options(options)}, outputs=declared)

    def filter_function(self, function: str | Callable[..., Any], *, parallelism: int | None = None, **options: Any) -> Pipeline:
        """Keeps the rows for which a Python function returns a true value; arguments as for :meth:`map`."""
        return self._operator("filter_function", parallelism, **{**_function(function), **_options(options)})

    # What becomes of it.

    def open(self, **options: Any) -> Job:
        """Opens it as a job: see :func:`feedline.open` for the options."""
        from feedline._open import open

        return open(self, **options)

    def to_yaml(self) -> str:
        """The pipeline file, with all defaults.

        Raises:
            WrongUse: when the pipeline is wrong or not whole, with the place and the fix.
        """
        return _placed(_native.to_yaml, self._text(), self._file)

    def check(self) -> dict[str, Any]:
        """The checked pipeline as plain data, with all defaults.

        Raises:
            WrongUse: when the pipeline is wrong or not whole, with the place and the fix.
        """
        return json.loads(_placed(_native.check_pipeline, self._text(), self._file))

    def with_batch_size(self, size: int) -> Pipeline:
        """With this batch size, in place of that of its ``batch`` or, where it has none, behind its operators."""
        operators = self._spec.get("operators", [])
        last = next(iter(operators[-1])) if operators else ""
        if last in ("bucket_by_length", "pack"):
            raise WrongUse(f"batch_size is for pipelines that end with batch, and this one ends with {last}, which has sizes of its own")
        if last != "batch":
            return self.batch(size)
        return self._with(operators=[*operators[:-1], {"batch": {**operators[-1]["batch"], "size": size}}])

    def __repr__(self) -> str:
        operators = [next(iter(operator)) for operator in self._spec.get("operators", [])]
        return f"<feedline.Pipeline {self._spec.get('name')!r}: {' | '.join(['source', *operators])}>"

    def _text(self) -> str:
        return json.dumps(self._spec)

    def _with(self, **changes: Any) -> Self:
        return type(self)({**self._spec, **changes}, self._file)

    def _operator(self, name: str, parallelism: int | None, **parameters: Any) -> Self:
        for key, wanted in inspect.signature(getattr(Pipeline, name)).parameters.items():
            if wanted.default is wanted.empty and key in parameters and parameters[key] is None:
                raise WrongUse(f"{name}.{key} is None, and {name} needs it; give a value")
        given = {**parameters, "parallelism": parallelism}
        operator = {name: plain({key: value for key, value in given.items() if value is not None}, name)}
        return self._with(operators=[*self._spec.get("operators", []), operator])


def read(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str,
    features: Mapping[str, str] | None = None,
    *,
    name: str = "python",
    seed: int = 0,
    order: Literal["deterministic", "relaxed"] = "deterministic",
    on_error: Literal["fail", "skip", "replace"] = "fail",
    credentials: str | None = None,
) -> Pipeline:
    """Begins a pipeline at its source.

    Args:
        url: one or several paths, globs, prefixes that end in ``/``, or URLs (``s3://``, ``gs://``, ``az://``, ``http(s)://``).
        format: of the files, such as ``tfrecord`` or ``parquet``; docs/pipelines.md lists all formats.
        features: column name to name in the data; by default every column under its own name.
        name: shown in messages, metrics and lists of jobs.
        seed: of the order and of every random operator.
        order: ``deterministic`` or ``relaxed``.
        on_error: what happens to a row that fails: ``fail``, ``skip`` or ``replace``.
        credentials: name of the credentials that the workers read the data with.
    """
    urls = plain(url, "source.url")
    if isinstance(urls, list) and not all(isinstance(one, str) for one in urls):
        raise WrongUse(f"source.url is {shown(url)}; give a path, glob or URL, or a list of them")
    source: dict[str, Any] = {"url": urls[0] if isinstance(urls, list) and len(urls) == 1 else urls, "format": format}
    if features:
        source["features"] = features
    if credentials is not None:
        source["credentials"] = credentials
    spec = {"name": name, "source": source, "seed": seed, "order": order, "on_error": on_error, "operators": []}
    return Pipeline(spec)


def mix(
    sources: Sequence[Pipeline],
    weights: Sequence[float] | None = None,
    stop: Literal["all", "first", "restart"] = "all",
    **options: Any,
) -> Pipeline:
    """Begins a pipeline at several sources, whose rows are mixed in proportion to ``weights``.

    Args:
        sources: what :func:`feedline.read` gives, without operators.
        weights: of each; all the same by default.
        stop: when a pass ends: when ``all`` rows were had, when the ``first`` source is through, or when all are, short ones being
            begun again (``restart``).
        options: ``name``, ``seed``, ``order`` and ``on_error``, as for :func:`feedline.read`.
    """
    if not isinstance(sources, Sequence) or not sources or not all(isinstance(source, Pipeline) for source in sources):
        raise WrongUse("a mix is made of sources; give a list of what feedline.read(...) returns")
    shares = [1.0] * len(sources) if weights is None else several("weights", weights)
    if len(shares) != len(sources):
        raise WrongUse(f"there are {len(sources)} sources and {len(shares)} weights; give one for each")
    if any(source._spec.get("operators") for source in sources):
        raise WrongUse("a source of a mix has operators; put them behind the mix, where they hold for all rows")
    fresh = {"seed": 0, "order": "deterministic", "on_error": "fail"}
    for source in sources:
        lost = [key for key, usual in fresh.items() if source._spec.get(key, usual) != usual]
        lost += ["shuffle"] if "shuffle" in source._spec else []
        if lost:
            raise WrongUse(f"a source of a mix has {lost[0]} of its own; say it of the mix, for which it holds as a whole")
    parts = [{"weight": weight, **source._spec["source"]} for source, weight in zip(sources, shares, strict=True)]
    spec = {"name": "python", "seed": 0, "order": "deterministic", "on_error": "fail", **options}
    return Pipeline({**spec, "source": {"mix": parts, "stop": stop}, "operators": []})


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "columns": names(options["columns"])} if "columns" in options else options


def _output(name: str, declared: Any) -> dict[str, Any]:
    if isinstance(declared, Mapping):
        return dict(declared)
    if not isinstance(declared, tuple | list):
        return {"dtype": declared}
    if len(declared) != 2:
        raise WrongUse(f"map.outputs.{name} is {shown(declared)}; give a dtype, or (dtype, shape)")
    return {"dtype": declared[0], "shape": several(f"map.outputs.{name}.shape", declared[1])}


def _function(function: str | Callable[..., Any]) -> dict[str, Any]:
    """A function by its name, or with its code and the Python that it was written for."""
    if isinstance(function, str):
        return {"function": function}
    named = function
    while isinstance(named, functools.partial):
        named = named.func
    if not callable(function):
        raise WrongUse(f"a function of workers is callable or the text 'module:function', and this is a {type(function).__name__}")
    try:
        import cloudpickle
    except ImportError:
        raise WrongUse("functions travel by cloudpickle, which is not installed: pip install 'feedline[functions]'") from None
    # By value, also where it lies in a module: workers need not have that.
    module = sys.modules.get(getattr(named, "__module__", None) or "")
    known = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    by_value = module is not None and module.__name__ not in known and _is_users(module)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        code = base64.b64encode(cloudpickle.dumps(function)).decode()
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    name = getattr(named, "__qualname__", type(named).__name__).replace("<", "").replace(">", "")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = getattr(named, "__module__", None) or "main"
    version = signature(function, lambda part: _is_users_part(part, known))
    return {"function": f"{home}:{name}", "code": code, "version": version, "environment": {"python": python}}


def _is_users_part(part: Any, by_value: set[str]) -> bool:
    """Whether a function or class is the user's own."""
    name = getattr(part, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is None or name in by_value or _is_users(module)


def _is_users(module: Any) -> bool:
    """Whether a module is the user's own: workers have Python's and those that are installed."""
    file = getattr(module, "__file__", None)
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return file is not None and not any(file.startswith(folder) for folder in installed if folder)


def load(file: str | os.PathLike[str]) -> Pipeline:
    """The pipeline in a file. Relative paths in it start at the present directory.

    Raises:
        WrongUse: when the file cannot be read or is wrong, with the line and the fix.
    """
    if not isinstance(file, str | os.PathLike):
        raise WrongUse(f"the pipeline file is {shown(file)}; give its path, as text or a Path")
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WrongUse(f"cannot read {path}: {reason.lower()}; give the path of a pipeline file") from None
    return Pipeline(json.loads(_native.check_pipeline(text, str(path))), str(path))


def _placed(check: Any, text: str, file: str) -> str:
    """Calls ``check``; a pipeline that comes from no file has no lines."""
    try:
        return check(text, file)
    except WrongUse as error:
        raise WrongUse(re.sub(rf"^{re.escape(file)}:\d+: ", f"{file}: ", str(error))) from None
