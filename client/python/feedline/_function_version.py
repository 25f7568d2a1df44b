"""Computes the version of a Python function. Checkpoints and caches depend on this version.

The version is the same in all processes that have the same function, and does not depend on the position of the function in its file. The
bytes that cloudpickle creates do not have these properties.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

_DIGEST_BYTES = 8
_SCALARS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range)
_IGNORED_ATTRIBUTES = {
    "__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__", "__slotnames__", "__doc__",
}  # fmt: skip
"""Attributes of a class that do not affect its behaviour."""


def function_version(function: Callable[..., Any], is_user_code: Callable[[Any], bool]) -> str:
    """Returns 16 hexadecimal digits that depend on the bytecode of a function, its defaults, its closure, and the globals that it uses.

    The version includes the content of objects for which ``is_user_code`` returns ``True``, and only the names of other objects.
    """
    return hashlib.blake2b(_Encoder(is_user_code).encode(function), digest_size=_DIGEST_BYTES).hexdigest()


class _Encoder:
    """Encodes an object in bytes that do not depend on addresses, the order of sets, line numbers or file names."""

    def __init__(self, is_user_code: Callable[[Any], bool]) -> None:
        self._is_user_code = is_user_code
        # Encoded objects by id. Holding the objects prevents reuse of their ids.
        self._encoded: dict[int, tuple[int, Any]] = {}

    def encode(self, value: Any) -> bytes:
        if isinstance(value, _SCALARS):
            return _frame(type(value).__name__, repr(value).encode())
        if isinstance(value, tuple | frozenset | types.CodeType):
            # Encode repetitions in full, because the compiler decides whether equal constants are the same object.
            return _frame(type(value).__name__, *self._parts(value))
        if id(value) in self._encoded:
            return _frame("again", str(self._encoded[id(value)][0]).encode())
        self._encoded[id(value)] = (len(self._encoded), value)
        return _frame(type(value).__qualname__, *self._parts(value))

    def _parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, tuple | list):
            yield from map(self.encode, value)
        elif isinstance(value, frozenset | set):
            yield from sorted(_Encoder(self._is_user_code).encode(item) for item in value)
        elif isinstance(value, Mapping):
            yield from (self.encode(part) for item in value.items() for part in item)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            yield repr((value.dtype.str, value.shape)).encode()
            yield hashlib.blake2b(np.ascontiguousarray(value).view(np.uint8).data).digest()
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif isinstance(value, functools.partial):
            yield from map(self.encode, (value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            yield from map(self.encode, (value.__func__, value.__self__))
        elif isinstance(value, property):
            yield from map(self.encode, (value.fget, value.fset, value.fdel))
        elif isinstance(value, staticmethod | classmethod):
            yield self.encode(value.__func__)
        elif isinstance(value, types.ModuleType):
            yield value.__name__.encode()
        elif isinstance(value, types.FunctionType) and self._is_user_code(value):
            yield from self._function(value)
        elif isinstance(value, type) and self._is_user_code(value):
            yield from self._class(value)
        elif name := getattr(value, "__qualname__", None):
            yield f"{getattr(value, '__module__', None)}:{name}".encode()
        else:
            yield from self._object(value)

    def _code(self, code: types.CodeType) -> Iterator[bytes]:
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        yield repr((shape, names)).encode()
        yield code.co_code
        yield code.co_exceptiontable
        yield from map(self.encode, code.co_consts)

    def _function(self, function: types.FunctionType) -> Iterator[bytes]:
        yield self.encode(function.__code__)
        yield from map(self.encode, (function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield self.encode(cell.cell_contents)
            except ValueError:
                yield b"nothing yet"
        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                yield name.encode()
                yield self.encode(function.__globals__[name])

    def _class(self, kind: type) -> Iterator[bytes]:
        yield kind.__qualname__.encode()
        yield from map(self.encode, kind.__bases__)
        for name, value in sorted(vars(kind).items()):
            if name not in _IGNORED_ATTRIBUTES and not isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
                yield name.encode()
                yield self.encode(value)

    def _object(self, value: Any) -> Iterator[bytes]:
        """Encodes the parts that ``copy`` would copy. Objects without these parts cannot be pickled either."""
        try:
            registered = copyreg.dispatch_table.get(type(value))
            reduced = registered(value) if registered is not None else value.__reduce_ex__(4)
        except Exception:
            return
        if isinstance(reduced, str):
            yield reduced.encode()
            return
        for part in reduced:
            yield self.encode(list(part) if isinstance(part, Iterator) else part)


def _global_names(code: types.CodeType) -> set[str]:
    """Returns the names of the globals that a function and its nested functions read."""
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_global_names(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def _frame(kind: str, *parts: bytes) -> bytes:
    """Concatenates parts with length prefixes, so that different lists of parts have different encodings."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in [kind.encode(), *parts])
