"""Converts Python functions of pipelines to operator parameters."""

from __future__ import annotations

import base64
import functools
import sys
import sysconfig
from collections.abc import Callable, Mapping
from typing import Any

from feedline._arguments import shorten, to_list, to_names
from feedline._function_version import function_version
from feedline._native import WrongUse


def function_parameters(function: str | Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of an operator that calls ``function``. Values in ``options`` take precedence."""
    columns = {"columns": to_names(options["columns"])} if "columns" in options else {}
    return {**_serialize(function), **options, **columns}


def output_columns(outputs: Any) -> Any:
    """Converts declared output columns to mappings with ``dtype``, ``shape`` and ``list``."""
    if not isinstance(outputs, Mapping):
        return outputs
    return {name: _output_column(name, output) for name, output in outputs.items()}


def _output_column(name: str, declared: Any) -> dict[str, Any]:
    if isinstance(declared, Mapping):
        return dict(declared)
    if not isinstance(declared, tuple | list):
        return {"dtype": declared}
    if len(declared) != 2:
        raise WrongUse(f"map.outputs.{name} is {shorten(declared)}; expected a dtype, or (dtype, shape)")
    return {"dtype": declared[0], "shape": to_list(f"map.outputs.{name}.shape", declared[1])}


def _serialize(function: str | Callable[..., Any]) -> dict[str, Any]:
    """Returns the name of a function. For a callable, also returns its code, its version and its Python version."""
    if isinstance(function, str):
        return {"function": function}
    if not callable(function):
        raise WrongUse(f"a pipeline function must be a callable or a string 'module:function', not {type(function).__name__}")
    try:
        import cloudpickle
    except ImportError:
        raise WrongUse("pipeline functions require cloudpickle, which is not installed: pip install 'feedline[functions]'") from None
    named = function
    while isinstance(named, functools.partial):
        named = named.func
    # A function in a module is also sent by value, because workers may not have the module.
    module = sys.modules.get(getattr(named, "__module__", None) or "")
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    is_registered = module is not None and module.__name__ not in by_value and _is_user_module(module)
    if is_registered:
        cloudpickle.register_pickle_by_value(module)
    try:
        code = base64.b64encode(cloudpickle.dumps(function)).decode()
    finally:
        if is_registered:
            cloudpickle.unregister_pickle_by_value(module)
    name = getattr(named, "__qualname__", type(named).__name__).replace("<", "").replace(">", "")
    module_name = getattr(named, "__module__", None) or "main"
    return {
        "function": f"{module_name}:{name}",
        "code": code,
        "version": function_version(function, lambda part: _is_user_code(part, by_value)),
        "environment": {"python": f"{sys.version_info.major}.{sys.version_info.minor}"},
    }


def _is_user_code(part: Any, by_value: set[str]) -> bool:
    """Whether a function or class is user code, not part of an installed package."""
    name = getattr(part, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is None or name in by_value or _is_user_module(module)


def _is_user_module(module: Any) -> bool:
    """Whether a module is user code. Workers also have the standard library and installed packages."""
    file = getattr(module, "__file__", None)
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return file is not None and not any(file.startswith(folder) for folder in installed if folder)
