"""Converts arguments to built-in Python types. Raises ``WrongUse`` with the expected value for invalid arguments."""

from __future__ import annotations

import math
import numbers
import os
import reprlib
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

from feedline._native import WrongUse


def to_json_value(value: Any, name: str) -> Any:
    """Converts ``value`` to JSON types. Accepts numbers, arrays and dtypes of NumPy and PyTorch, paths, tuples, ranges and iterators.

    Raises:
        WrongUse: for any other value; the message starts with ``name``.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {_to_key(key, name): to_json_value(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return to_json_value(os.fspath(value), name)
    if isinstance(value, numbers.Real):
        return _to_number(value, name)
    if isinstance(value, Sequence | Iterator | KeysView | ValuesView) and not isinstance(value, bytes | bytearray | memoryview):
        return [to_json_value(item, f"{name}[{index}]") for index, item in enumerate(value)]
    converted = _from_array_library(value)
    if converted is None:
        raise WrongUse(f"{name} is {shorten(value)}, of type {type(value).__name__}; expected a string, a number, a list or a mapping")
    return to_json_value(converted, name)


def to_names(columns: Any) -> Any:
    """Converts a single column name to a list that contains only this name."""
    return [columns] if isinstance(columns, str) else columns


def _to_key(key: Any, name: str) -> str:
    if not isinstance(key, str):
        raise WrongUse(f"{name} has the key {shorten(key)}; keys must be strings")
    return str(key)


def _to_number(value: numbers.Real, name: str) -> int | float:
    if isinstance(value, numbers.Integral):
        integer = int(value)
        if not -(2**63) <= integer < 2**64:
            raise WrongUse(f"{name} is {shorten(integer)}; expected a number of at most 64 bits")
        return integer
    if not math.isfinite(value):
        raise WrongUse(f"{name} is {float(value)}; expected a finite number")
    return float(value)


def _from_array_library(value: Any) -> Any:
    """Converts an array, a scalar or a dtype of an array library to a Python value. Returns ``None`` for any other value."""
    kind = type(value)
    if kind.__name__ == "dtype" and kind.__module__ == "torch":
        return str(value).removeprefix("torch.")
    if isinstance(value, type):
        # Accept scalar types such as numpy.float32, but not Python's own types, which have no width.
        return value.__name__ if any(base.__name__ == "generic" for base in value.__mro__) else None
    if hasattr(value, "itemsize") and isinstance(getattr(value, "name", None), str):
        return value.name
    to_list = getattr(value, "tolist", None)
    converted = to_list() if callable(to_list) else None
    # `tolist` returns values of types without a Python equivalent, such as numpy.longdouble, unchanged.
    return None if type(converted) is kind else converted


def shorten(value: Any) -> str:
    """Formats a value for an error message, in one short line."""
    return " ".join(reprlib.repr(value).split())


def to_int(name: str, value: Any) -> int:
    """Converts an integer."""
    scalar = _to_scalar(value)
    if isinstance(scalar, float) and scalar.is_integer():
        return int(scalar)
    if isinstance(scalar, bool) or not isinstance(scalar, int):
        raise WrongUse(f"{name} is {shorten(value)}; expected an integer")
    return scalar


def to_positive_int(name: str, value: Any) -> int:
    """Converts a positive integer."""
    number = to_int(name, value)
    if number < 1:
        raise WrongUse(f"{name} is {number}; expected an integer greater than 0")
    return number


def to_optional_int(name: str, value: Any) -> int | None:
    """Converts an integer or ``None``."""
    return None if value is None else to_int(name, value)


def to_float(name: str, value: Any) -> float:
    """Converts a number."""
    scalar = _to_scalar(value)
    if isinstance(scalar, bool) or not isinstance(scalar, int | float):
        raise WrongUse(f"{name} is {shorten(value)}; expected a number")
    return float(scalar)


def _to_scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return _from_array_library(value)


def to_bool(name: str, value: Any) -> bool:
    """Converts a boolean."""
    scalar = _to_scalar(value)
    if scalar not in (True, False) or not isinstance(scalar, int):
        raise WrongUse(f"{name} is {shorten(value)}; expected True or False")
    return bool(scalar)


def to_switch(name: str, value: Any) -> bool:
    """Converts a boolean, or the values ``on`` and ``off`` of a command-line flag."""
    return value == "on" if isinstance(value, str) and value in ("on", "off") else to_bool(name, value)


def to_optional_text(name: str, value: Any) -> str | None:
    """Converts a string or ``None``."""
    if value is not None and not isinstance(value, str):
        raise WrongUse(f"{name} is {shorten(value)}; expected a string")
    return value


def to_path(name: str, value: Any) -> str:
    """Converts a path to a string."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise WrongUse(f"{name} is {shorten(value)}; expected a path, as a string or a Path")
    return path


def to_size(name: str, value: Any) -> int | str:
    """Converts a size, which is a number of bytes or text with a unit, such as ``"4GiB"``."""
    return value if isinstance(value, str) else to_int(name, value)


def to_list(name: str, value: Any) -> list[Any]:
    """Converts a sequence to a list, and any other value to a list that contains only this value."""
    converted = to_json_value(value, name)
    return converted if isinstance(converted, list) else [converted]
