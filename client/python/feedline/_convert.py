"""What batches are handed out as: NumPy arrays, or tensors of a framework that is imported once it is asked for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline._native import WrongUse
from feedline._plain import whole_if_any

if TYPE_CHECKING:
    from feedline import _native


class Converter:
    """Makes of a batch what the training loop wants, in two steps: what may run ahead, and what must wait."""

    is_ahead = False
    """Whether the batch after the present one is started as soon as it is here."""

    gpu: int | None = None
    """The GPU that it copies to, as CUDA counts: batches are received into pinned memory for it."""

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        """Begins; and the seconds that were spent on copying."""
        raise NotImplementedError

    def finish(self, started: Any) -> Any:
        """What is handed out."""
        return started

    def close(self) -> None:
        """Returns once nothing is read any more of batches that were started."""


class NumPy(Converter):
    """Dicts of NumPy arrays."""

    def __init__(self, gpu: int | None = None) -> None:
        self.gpu = whole_if_any("gpu", gpu)
        if self.gpu is not None and not 0 <= self.gpu < 2**31:
            raise WrongUse(f"gpu is {gpu}; give its number, as CUDA counts from 0")

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        return native.numpy(), 0.0


class Arrow(Converter):
    """Arrow record batches."""

    def __init__(self) -> None:
        self._record_batch = _imported("pyarrow", "arrow").record_batch

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        return self._record_batch(native), 0.0


class Torch(Converter):
    """Dicts of PyTorch tensors. Text, bytes and lists stay lists."""

    def __init__(self, device: Any, copy: bool) -> None:
        self._torch = torch = _imported("torch", "torch")
        try:
            self._device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError):
            raise WrongUse(f"device is {device!r}, which PyTorch does not know; give \"cuda\", \"cuda:0\" or \"cpu\"") from None
        self._copy = copy
        self._cuda: _CudaCopies | None = None
        if self._device.type == "cuda":
            if not torch.cuda.is_available():
                raise WrongUse(
                    f"device is {str(device)!r}, and PyTorch sees no CUDA device here; give device=\"cpu\", or install PyTorch with CUDA"
                )
            count = torch.cuda.device_count()
            if self._device.index is not None and self._device.index >= count:
                raise WrongUse(f"device is {str(device)!r}, and PyTorch sees {count} CUDA devices here, numbered from 0")
            self._cuda = _CudaCopies(torch, self._device)
            self.is_ahead = True
            if torch.version.cuda is not None:
                self.gpu = torch.cuda.current_device() if self._device.index is None else self._device.index

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        begun = time.perf_counter()
        arrays = native.numpy()
        if self._cuda is not None:
            return self._cuda.start(arrays), time.perf_counter() - begun
        columns = {name: self._tensor(name, array) for name, array in arrays.items()}
        return columns, time.perf_counter() - begun if self._copy else 0.0

    def finish(self, started: Any) -> Any:
        return started if self._cuda is None else self._cuda.finish(started)

    def close(self) -> None:
        if self._cuda is not None:
            self._cuda.close()

    def _tensor(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == object:
            return array.tolist()
        refuse_missing(name, array)
        tensor = self._torch.from_numpy(array.copy() if self._copy else _unlocked(array))
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


class _CudaCopies:
    """Copies to a GPU out of pinned memory, on a stream of their own, while the present step computes."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._stream = torch.cuda.Stream(device)
        # Of each batch that may still be copied, the oldest first: when it is over, where it was received, and where it was put for it.
        self._under_way: deque[tuple[Any, list[Any], list[Any]]] = deque()
        # Pinned buffers that wait for use, by type and shape.
        self._idle: dict[_Kind, list[Any]] = {}

    def start(self, arrays: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Begins to copy; gives the tensors, which are not there before the event."""
        self._forget_copied()
        columns: dict[str, Any] = {}
        received, staged = [], []
        for name, array in arrays.items():
            if array.dtype == object:
                columns[name] = array.tolist()
                continue
            refuse_missing(name, array)
            source = self._torch.from_numpy(_unlocked(array))
            # A batch that was joined from several pieces is not pinned, nor is one that came before the GPU was known.
            if source.is_pinned():
                received.append(source)
            else:
                source = self._stage(source)
                staged.append(source)
            with self._torch.cuda.stream(self._stream):
                columns[name] = source.to(self._device, non_blocking=True)
        event = self._torch.cuda.Event()
        event.record(self._stream)
        self._under_way.append((event, received, staged))
        return columns, event

    def finish(self, started: tuple[dict[str, Any], Any]) -> dict[str, Any]:
        """Makes the present stream wait for the copies; this thread does not."""
        columns, event = started
        present = self._torch.cuda.current_stream(self._device)
        present.wait_event(event)
        for column in columns.values():
            if hasattr(column, "record_stream"):
                column.record_stream(present)
        return columns

    def close(self) -> None:
        """Waits for all copies."""
        while self._under_way:
            self._under_way[0][0].synchronize()
            self._forget_copied()
        self._idle.clear()

    def _stage(self, tensor: Any) -> Any:
        """A copy in pinned memory."""
        idle = self._idle.get(_kind(tensor))
        pinned = idle.pop() if idle else self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor)

    def _forget_copied(self) -> None:
        """Lets go of what was copied from."""
        while self._under_way and self._under_way[0][0].query():
            _, _, staged = self._under_way.popleft()
            for pinned in staged:
                self._idle.setdefault(_kind(pinned), []).append(pinned)
        if len(self._idle) > _MOST_SHAPES:
            self._idle.clear()


_Kind = tuple[Any, tuple[int, ...]]


def _kind(tensor: Any) -> _Kind:
    return tensor.dtype, tuple(tensor.shape)


_MOST_SHAPES = 64
"""Shapes of which pinned buffers are kept: batches of ever new shapes must not pin ever more memory."""


class Jax(Converter):
    """Dicts of JAX arrays. Text and bytes stay NumPy arrays of objects."""

    def __init__(self, sharding: Any) -> None:
        self._jax = _imported("jax", "jax")
        self._sharding = sharding
        _register_batch(self._jax)

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        begun = time.perf_counter()
        columns = {name: self._array(name, array) for name, array in native.numpy().items()}
        return columns, time.perf_counter() - begun

    def _array(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == object:
            return array
        refuse_missing(name, array)
        if self._sharding is None:
            return self._jax.device_put(array)
        return self._jax.make_array_from_process_local_data(self._sharding, array)


class TensorFlow(Converter):
    """Dicts of TensorFlow tensors; text and bytes become string tensors, lists ragged ones."""

    def __init__(self) -> None:
        self._tf = _imported("tensorflow", "tensorflow")

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        begun = time.perf_counter()
        columns = {name: self._tensor(name, array) for name, array in native.numpy().items()}
        return columns, time.perf_counter() - begun

    def _tensor(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype != object:
            refuse_missing(name, array)
            return self._tf.convert_to_tensor(array)
        values = array.tolist()
        if any(isinstance(value, np.ndarray | list) for value in values):
            return self._tf.ragged.constant([list(value) for value in values])
        return self._tf.constant(["" if value is None else value for value in values])


def refuse_missing(name: str, array: np.ndarray[Any, Any]) -> None:
    """Raises where a column has missing values, which no tensor can hold."""
    if isinstance(array, np.ma.MaskedArray):
        count = int(np.ma.getmaskarray(array).sum())
        raise WrongUse(
            f"column {name!r} has {count} missing values in this batch, which a tensor cannot hold; leave such rows out with filter, "
            "or take NumPy arrays, which are masked there"
        )


def _unlocked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory for PyTorch, which knows no read-only tensors and would warn of each."""
    return np.asarray(_Unlocked(array))


class _Unlocked:
    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}
        self._kept = array


def _imported(name: str, extra: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise WrongUse(f"{name} cannot be imported ({error}); pip install 'feedline[{extra}]'") from None


def _register_batch(jax: Any, _known: list[Callable[..., Any]] = []) -> None:  # noqa: B006 - once for each process
    """Lets JAX see the columns of a batch, as those of a dict."""
    if _known:
        return
    from feedline._batch import Batch

    def flatten(batch: Batch) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        names = tuple(sorted(batch))
        return [(jax.tree_util.DictKey(name), batch[name]) for name in names], names

    def unflatten(names: tuple[str, ...], columns: Any) -> Batch:
        return Batch(zip(names, columns, strict=True))

    jax.tree_util.register_pytree_with_keys(Batch, flatten, unflatten)
    _known.append(unflatten)
