"""What a function is, whatever it is called when it is sent: states and jobs go by it, so it must be the same in each process that has the same
function, and wherever the function stands in its file. Bytes of cloudpickle are neither."""

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
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range)
_UNTOLD = {"__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__", "__slotnames__", "__doc__"}
"""Attributes of a class that say nothing of what it does, or how often it was used."""


def signature(function: Callable[..., Any], is_users: Callable[[Any], bool]) -> str:
    """16 hex digits that change when what a function does may have: with its bytecode, defaults, what it closes over, and the globals that it
    names, which are followed where they are the user's own (``is_users`` of an object) and else go by their names."""
    return hashlib.blake2b(_Teller(is_users).tell(function), digest_size=_DIGEST_BYTES).hexdigest()


class _Teller:
    """Tells what an object is in bytes that no address, order of a set, line or file has a part in."""

    def __init__(self, is_users: Callable[[Any], bool]) -> None:
        self._is_users = is_users
        # Objects that were told, by where they are; kept, so that no other can come to lie there.
        self._seen: dict[int, tuple[int, Any]] = {}

    def tell(self, value: Any) -> bytes:
        if isinstance(value, _PLAIN):
            return _framed(type(value).__name__, repr(value).encode())
        if isinstance(value, tuple | frozenset | types.CodeType):
            # Whether two of these are one object is the compiler's business.
            return _framed(type(value).__name__, *self._parts(value))
        if id(value) in self._seen:
            return _framed("again", str(self._seen[id(value)][0]).encode())
        self._seen[id(value)] = (len(self._seen), value)
        return _framed(type(value).__qualname__, *self._parts(value))

    def _parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, tuple | list):
            yield from map(self.tell, value)
        elif isinstance(value, frozenset | set):
            yield from sorted(_Teller(self._is_users).tell(one) for one in value)
        elif isinstance(value, Mapping):
            yield from (self.tell(part) for item in value.items() for part in item)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            yield repr((value.dtype.str, value.shape)).encode()
            yield hashlib.blake2b(np.ascontiguousarray(value).view(np.uint8).data).digest()
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif isinstance(value, functools.partial):
            yield from map(self.tell, (value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            yield from map(self.tell, (value.__func__, value.__self__))
        elif isinstance(value, property):
            yield from map(self.tell, (value.fget, value.fset, value.fdel))
        elif isinstance(value, staticmethod | classmethod):
            yield self.tell(value.__func__)
        elif isinstance(value, types.ModuleType):
            yield value.__name__.encode()
        elif isinstance(value, types.FunctionType) and self._is_users(value):
            yield from self._function(value)
        elif isinstance(value, type) and self._is_users(value):
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
        yield from map(self.tell, code.co_consts)

    def _function(self, function: types.FunctionType) -> Iterator[bytes]:
        yield self.tell(function.__code__)
        yield from map(self.tell, (function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield self.tell(cell.cell_contents)
            except ValueError:
                yield b"nothing yet"
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__:
                yield name.encode()
                yield self.tell(function.__globals__[name])

    def _class(self, kind: type) -> Iterator[bytes]:
        yield kind.__qualname__.encode()
        yield from map(self.tell, kind.__bases__)
        for name, value in sorted(vars(kind).items()):
            if name not in _UNTOLD and not isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
                yield name.encode()
                yield self.tell(value)

    def _object(self, value: Any) -> Iterator[bytes]:
        """As it would be copied. Cloudpickle sends what can be, so what cannot is not sent either."""
        try:
            registered = copyreg.dispatch_table.get(type(value))
            reduced = registered(value) if registered is not None else value.__reduce_ex__(4)
        except Exception:
            return
        if isinstance(reduced, str):
            yield reduced.encode()
            return
        for part in reduced:
            yield self.tell(list(part) if isinstance(part, Iterator) else part)


def _globals_of(code: types.CodeType) -> set[str]:
    """Names of globals that a function or those within it read."""
    read = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return read.union(*(_globals_of(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def _framed(kind: str, *parts: bytes) -> bytes:
    """Each part behind its length, so that no two tellings look alike."""
    told = [kind.encode(), *parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in told)
