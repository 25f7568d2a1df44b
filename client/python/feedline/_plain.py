"""What users give as arguments, as Python's own numbers, text, lists and mappings; or one sentence that says what is wanted."""

from __future__ import annotations

import math
import numbers
import os
import reprlib
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

from feedline._native import WrongUse


def plain(value: Any, name: str) -> Any:
    """``value`` as JSON knows it. NumPy's and PyTorch's numbers, arrays and dtypes, paths, tuples, ranges and iterators will do.

    Raises:
        WrongUse: when it is none of these, with its place behind ``name``.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {_key(key, name): plain(one, f"{name}.{key}" if name else str(key)) for key, one in value.items()}
    if isinstance(value, os.PathLike):
        return plain(os.fspath(value), name)
    if isinstance(value, numbers.Real):
        return _number(value, name)
    if isinstance(value, Sequence | Iterator | KeysView | ValuesView) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain(one, f"{name}[{place}]") for place, one in enumerate(value)]
    found = _of_arrays(value)
    if found is None:
        raise WrongUse(f"{name} is {shown(value)}, of type {type(value).__name__}; give text, a number, a list or a mapping")
    return plain(found, name)


def names(columns: Any) -> Any:
    """Names of columns as a list; a single name becomes a list with one."""
    return [columns] if isinstance(columns, str) else columns


def _key(key: Any, name: str) -> str:
    if not isinstance(key, str):
        raise WrongUse(f"{name} has the key {shown(key)}; keys are text")
    return str(key)


def _number(value: numbers.Real, name: str) -> int | float:
    if isinstance(value, numbers.Integral):
        found = int(value)
        if not -(2**63) <= found < 2**64:
            raise WrongUse(f"{name} is {shown(found)}; give a number of at most 64 bits")
        return found
    if not math.isfinite(value):
        raise WrongUse(f"{name} is {float(value)}; give a finite number")
    return float(value)


def _of_arrays(value: Any) -> Any:
    """What an array, a scalar of arrays or a dtype is in Python; ``None`` for anything else."""
    kind = type(value)
    if kind.__name__ == "dtype" and kind.__module__ == "torch":
        return str(value).removeprefix("torch.")
    if isinstance(value, type):
        # Such as numpy.float32. Python's own types have no width.
        return value.__name__ if any(base.__name__ == "generic" for base in value.__mro__) else None
    if hasattr(value, "itemsize") and isinstance(getattr(value, "name", None), str):
        return value.name
    listed = getattr(value, "tolist", None)
    found = listed() if callable(listed) else None
    # Some have no Python of their own, and give themselves.
    return None if type(found) is kind else found


def shown(value: Any) -> str:
    """A value for a sentence: one short line."""
    return " ".join(reprlib.repr(value).split())


def whole(name: str, value: Any) -> int:
    """A whole number."""
    found = _scalar(value)
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if isinstance(found, bool) or not isinstance(found, int):
        raise WrongUse(f"{name} is {shown(value)}; give a whole number")
    return found


def whole_if_any(name: str, value: Any) -> int | None:
    """A whole number, where there is one."""
    return None if value is None else whole(name, value)


def number(name: str, value: Any) -> float:
    """A number."""
    found = _scalar(value)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise WrongUse(f"{name} is {shown(value)}; give a number")
    return float(found)


def _scalar(value: Any) -> Any:
    """A number of Python's for one of another's."""
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return _of_arrays(value)


def switch(name: str, value: Any) -> bool:
    """Whether something is on."""
    found = _scalar(value)
    if found not in (True, False) or not isinstance(found, int):
        raise WrongUse(f"{name} is {shown(value)}; give True or False")
    return bool(found)


def text(name: str, value: Any) -> str | None:
    """Text, where there is some."""
    if value is not None and not isinstance(value, str):
        raise WrongUse(f"{name} is {shown(value)}; give text")
    return value


def several(name: str, value: Any) -> list[Any]:
    """A list; text and numbers alone are one of it."""
    found = plain(value, name)
    return found if isinstance(found, list) else [found]
