"""Converts batches to NumPy arrays, Arrow record batches, or tensors of a framework, which is imported on demand."""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline._arguments import to_optional_int
from feedline._batch import Batch
from feedline._native import WrongUse

if TYPE_CHECKING:
    from feedline import _native


class Converter:
    """Converts batches in two steps. :meth:`start` may run while the loop still uses the previous batch, but :meth:`finish` may not."""

    is_prefetching = False
    """Whether the conversion of the next batch starts as soon as the batch has arrived."""

    gpu: int | None = None
    """CUDA device number of the GPU to which batches are copied. If set, batches are received into pinned memory."""

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        """Starts the conversion. Returns its state, and the seconds that were spent on copying."""
        raise NotImplementedError

    def finish(self, started: Any) -> Any:
        """Returns the converted batch."""
        return started

    def close(self) -> None:
        """Waits until all copies have completed."""


class NumPy(Converter):
    """Converts to dicts of NumPy arrays."""

    def __init__(self, gpu: int | None = None) -> None:
        self.gpu = to_optional_int("gpu", gpu)
        if self.gpu is not None and not 0 <= self.gpu < 2**31:
            raise WrongUse(f"gpu is {gpu}; expected a CUDA device number, starting at 0")

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        return native.numpy(), 0.0


class Arrow(Converter):
    """Converts to Arrow record batches."""

    def __init__(self) -> None:
        self._record_batch = import_package("pyarrow", "arrow").record_batch

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        return self._record_batch(native), 0.0


class Torch(Converter):
    """Converts to dicts of PyTorch tensors. Text, bytes and lists become lists."""

    def __init__(self, device: Any, copy: bool) -> None:
        self._torch = torch = import_package("torch", "torch")
        try:
            self._device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError):
            raise WrongUse(f"device is {device!r}, which is not a PyTorch device; expected \"cuda\", \"cuda:0\" or \"cpu\"") from None
        self._copy = copy
        self._cuda: _CudaCopies | None = None
        if self._device.type == "cuda":
            if not torch.cuda.is_available():
                raise WrongUse(
                    f"device is {str(device)!r}, and PyTorch finds no CUDA device; pass device=\"cpu\", or install PyTorch with CUDA"
                )
            count = torch.cuda.device_count()
            if self._device.index is not None and self._device.index >= count:
                raise WrongUse(f"device is {str(device)!r}, and PyTorch finds {count} CUDA devices; expected a number from 0 to {count - 1}")
            self._cuda = _CudaCopies(torch, self._device)
            self.is_prefetching = True
            if torch.version.cuda is not None:
                self.gpu = torch.cuda.current_device() if self._device.index is None else self._device.index

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        return self.start_arrays(native.numpy())

    def start_arrays(self, arrays: dict[str, Any]) -> tuple[Any, float]:
        """Starts the conversion of arrays."""
        started = time.perf_counter()
        if self._cuda is not None:
            return self._cuda.start(arrays), time.perf_counter() - started
        columns = {name: self._tensor(name, array) for name, array in arrays.items()}
        return columns, time.perf_counter() - started if self._copy else 0.0

    def finish(self, started: Any) -> Any:
        return started if self._cuda is None else self._cuda.finish(started)

    def close(self) -> None:
        if self._cuda is not None:
            self._cuda.close()

    def _tensor(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == object:
            return array.tolist()
        reject_missing(name, array)
        tensor = self._torch.from_numpy(array.copy() if self._copy else _as_writable(array))
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


class _CudaCopies:
    """Copies batches from pinned memory to a GPU, on a separate stream, during the current step."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._stream = torch.cuda.Stream(device)
        # Running copies, oldest first: the event at the end of the copy, the tensors in receive buffers, and the staging buffers.
        self._running: deque[tuple[Any, list[Any], list[Any]]] = deque()
        # Idle staging buffers, by size in bytes.
        self._idle: dict[int, list[Any]] = {}

    def start(self, arrays: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Starts copies. Returns the tensors, and the event after which they are complete."""
        self._release_completed()
        columns: dict[str, Any] = {}
        received, staged = [], []
        for name, array in arrays.items():
            if array.dtype == object:
                columns[name] = array.tolist()
                continue
            reject_missing(name, array)
            source = self._torch.from_numpy(_as_writable(array))
            # Batches that span several pieces, and batches that arrived before the device was set, are not pinned.
            if source.is_pinned():
                received.append(source)
            else:
                buffer = self._staging_buffer(source.nbytes)
                staged.append(buffer)
                source = buffer[: source.nbytes].view(source.dtype).view(source.shape).copy_(source)
            with self._torch.cuda.stream(self._stream):
                columns[name] = source.to(self._device, non_blocking=True)
        event = self._torch.cuda.Event()
        event.record(self._stream)
        self._running.append((event, received, staged))
        return columns, event

    def finish(self, started: tuple[dict[str, Any], Any]) -> dict[str, Any]:
        """Makes the current stream wait for the copies. Does not block this thread."""
        columns, event = started
        present = self._torch.cuda.current_stream(self._device)
        present.wait_event(event)
        for column in columns.values():
            if hasattr(column, "record_stream"):
                column.record_stream(present)
        return columns

    def close(self) -> None:
        """Waits until all copies have completed."""
        while self._running:
            self._running[0][0].synchronize()
            self._release_completed()
        self._idle.clear()

    def _staging_buffer(self, size: int) -> Any:
        """Returns pinned memory with at least ``size`` bytes. Sizes are rounded up, so that batches of similar sizes reuse the memory."""
        step = max(1 << max(size.bit_length() - 3, 0), _MIN_STAGING_BYTES)
        rounded = -(-size // step) * step
        idle = self._idle.get(rounded)
        return idle.pop() if idle else self._torch.empty(rounded, dtype=self._torch.uint8, pin_memory=True)

    def _release_completed(self) -> None:
        """Releases the buffers of completed copies."""
        while self._running and self._running[0][0].query():
            _, _, staged = self._running.popleft()
            for pinned in staged:
                self._idle.setdefault(pinned.nbytes, []).append(pinned)
        if sum(size * len(idle) for size, idle in self._idle.items()) > _MAX_IDLE_BYTES:
            self._idle.clear()


_MIN_STAGING_BYTES = 512
"""Minimum size of a staging buffer."""
_MAX_IDLE_BYTES = 1 << 30
"""Maximum size of all idle staging buffers. It limits the pinned memory of jobs whose batches have many sizes."""


class Jax(Converter):
    """Converts to dicts of JAX arrays. Text and bytes become NumPy arrays of objects."""

    def __init__(self, sharding: Any) -> None:
        self._jax = import_package("jax", "jax")
        self._sharding = sharding
        _register_batch(self._jax)

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        started = time.perf_counter()
        columns = {name: self._array(name, array) for name, array in native.numpy().items()}
        return columns, time.perf_counter() - started

    def _array(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == object:
            return array
        reject_missing(name, array)
        if self._sharding is None:
            converted = self._jax.device_put(array)
        else:
            converted = self._jax.make_array_from_process_local_data(self._sharding, array)
        reject_truncated(name, array, converted.dtype)
        return converted


class TensorFlow(Converter):
    """Converts to dicts of TensorFlow tensors. Text and bytes become string tensors, lists become ragged tensors."""

    def __init__(self) -> None:
        self._tf = import_package("tensorflow", "tensorflow")

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        started = time.perf_counter()
        columns = {name: self._tensor(name, array) for name, array in native.numpy().items()}
        return columns, time.perf_counter() - started

    def _tensor(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype != object:
            reject_missing(name, array)
            return self._tf.convert_to_tensor(array)
        reject_missing_objects(name, array)
        values = array.tolist()
        if any(isinstance(value, np.ndarray | list) for value in values):
            # If all lists are empty, TensorFlow does not find the type of their numbers.
            types = {value.dtype for value in values if isinstance(value, np.ndarray)}
            dtype = next(iter(types)) if len(types) == 1 else None
            is_number = dtype is not None and dtype.kind in "biuf"
            return self._tf.ragged.constant([list(value) for value in values], dtype=dtype if is_number else None)
        return self._tf.constant(values)


def reject_missing(name: str, array: np.ndarray[Any, Any]) -> None:
    """Raises ``WrongUse`` if a column has missing values, which tensors do not support."""
    if isinstance(array, np.ma.MaskedArray):
        count = int(np.ma.getmaskarray(array).sum())
        raise WrongUse(
            f"column {name!r} has {count} missing values in this batch, which tensors do not support; remove such rows with filter, "
            "or use NumPy arrays, which are masked arrays then"
        )


def reject_missing_objects(name: str, rows: np.ndarray[Any, Any]) -> None:
    """Raises ``WrongUse`` if text, bytes or lists are missing, or if lists have missing values."""
    for row in rows:
        if row is None:
            raise WrongUse(
                f"column {name!r} has missing values in this batch, which tensors do not support; remove such rows with filter, or use NumPy "
                "arrays, in which they are None"
            )
        if isinstance(row, np.ndarray):
            reject_missing(name, row)
            if row.dtype == object:
                reject_missing_objects(name, row)


def reject_truncated(name: str, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    """Raises ``WrongUse`` if JAX has converted a column of integers to a smaller type that cannot represent one of its values."""
    if array.dtype.kind not in "iu" or dtype.itemsize >= array.dtype.itemsize or array.size == 0:
        return
    limits = np.iinfo(dtype)
    for value in (int(array.min()), int(array.max())):
        if not limits.min <= value <= limits.max:
            raise WrongUse(
                f"column {name!r} contains {value}, but JAX converts {array.dtype} to {dtype}, which cannot represent this value; call "
                'jax.config.update("jax_enable_x64", True), or convert the column to another type with cast'
            )


def _as_writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a writable view, because PyTorch warns about read-only arrays."""
    return np.asarray(_WritableView(array))


class _WritableView:
    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}
        self._array = array


def import_package(name: str, extra: str) -> Any:
    """Imports an optional package. ``extra`` is the extra of this package that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WrongUse(f"{name} cannot be imported ({error}); pip install 'feedline[{extra}]'") from None


def _register_batch(jax: Any, _registered: list[Callable[..., Any]] = []) -> None:  # noqa: B006 - once for each process
    """Registers the batch type with JAX, so that JAX treats a batch as a tree of columns, like a dict."""
    if _registered:
        return

    def flatten(batch: Batch) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        names = tuple(sorted(batch))
        return [(jax.tree_util.DictKey(name), batch[name]) for name in names], names

    def unflatten(names: tuple[str, ...], columns: Any) -> Batch:
        return Batch(zip(names, columns, strict=True))

    jax.tree_util.register_pytree_with_keys(Batch, flatten, unflatten)
    _registered.append(unflatten)
