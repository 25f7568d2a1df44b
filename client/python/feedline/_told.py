"""What a job is told to be, and what it is called."""

from __future__ import annotations

import os
import secrets
import threading
import zlib
from collections import deque
from typing import Any, Self

from feedline import _native, _ranks
from feedline._convert import Arrow, Converter, Jax, NumPy, TensorFlow, Torch
from feedline._native import WrongUse
from feedline._pipeline import Pipeline
from feedline._progress import Progress, Tally
from feedline._standing import Standing

_ENDLESS = 1_000_000
"""Epochs of a job for which nobody says how many."""
_MOST_EPOCHS = 2**31


class Told:
    """What a job was told, and room for what it has once it runs."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        ranks: _ranks.Ranks,
        epochs: int | None,
        virtual_consumers: int | None,
        elastic: bool,
        name: str | None,
        progress: bool,
        buffer: int | None,
        weight: float,
        patience: float | None,
        flags: list[str],
    ) -> None:
        self._pipeline = pipeline
        self._checked = pipeline.check()
        self._ranks = ranks
        self._is_relaxed = self._checked["order"] == "relaxed"
        self._is_mixed = "mix" in self._checked["source"]
        # A relaxed job does not know which batch ends an epoch before it has the next one.
        self._epochs = (1 if self._is_relaxed else _ENDLESS) if epochs is None else epochs
        if not 0 < self._epochs <= _MOST_EPOCHS:
            raise WrongUse(f"a job of {epochs} epochs is none; set epochs to a number from 1 to {_MOST_EPOCHS}")
        self._asked_slots = virtual_consumers
        self._elastic = elastic
        slots = ranks.consumers if virtual_consumers is None else virtual_consumers
        self._standing = Standing(ranks, self._checked, slots, elastic)
        self._name = name
        self._flags = flags
        self._settings: dict[str, Any] = {
            "weight": weight,
            "buffer_bytes": buffer,
            "patience_ms": None if patience is None else round(patience * 1000),
        }
        self._converter: Converter = NumPy()
        self._progress = Progress(progress)
        self._service: _native.Service | None = None
        self._job: _native.Job | None = None
        self._consumer: _native.Consumer | None = None
        # How the weights of its mix have changed.
        self._mix: list[dict[str, Any]] = []
        self._run: str | None = None
        # Taken and not handed out yet: a batch that is on its way to a device, or one that proved that an epoch is over.
        self._ahead: deque[tuple[_native.Batch, Any]] = deque()
        self._skips: list[tuple[int, int]] = []
        self._ended = False
        self._loads = 0
        # Loops begun so far: the last one has the batches.
        self._loops = 0
        self._alone = _Alone()
        self._process = os.getpid()
        self._tally = Tally()

    # What batches are.

    def numpy(self, gpu: int | None = None) -> Self:
        """Batches are dicts of NumPy arrays: read-only views of the memory in which they came.

        Args:
            gpu: for loops that copy batches to a GPU themselves, as by CuPy or cuda-python: its number as CUDA counts. Batches are then
                received into memory that its driver has pinned, as far as they are one piece each. A copy must be over before the
                batch is let go. Not needed for :meth:`torch`.
        """
        return self._converted(NumPy(gpu))

    def torch(self, device: Any = None, *, copy: bool = True) -> Self:
        """Batches are dicts of PyTorch tensors.

        Args:
            device: such as ``"cuda"``: batches are copied there one ahead, through pinned memory and on a stream of their own.
                ``None`` or ``"cpu"``: tensors in the process's memory.
            copy: on the CPU, whether tensors have memory of their own. Without, they are views that must never be written to: the
                memory may be another process's.
        """
        return self._converted(Torch(device, copy))

    def jax(self, sharding: Any = None) -> Self:
        """Batches are dicts of JAX arrays; with a ``sharding``, global ones, of which this process gives its part of the rows."""
        return self._converted(Jax(sharding))

    def arrow(self) -> Self:
        """Batches are ``pyarrow.RecordBatch``, without a copy."""
        return self._converted(Arrow())

    def tf(self) -> Self:
        """Batches are dicts of TensorFlow tensors. :func:`feedline.tensorflow.dataset` makes a ``tf.data.Dataset`` of a job."""
        return self._converted(TensorFlow())

    def _converted(self, converter: Converter) -> Self:
        if self._ahead:
            raise WrongUse("batches are on their way already; choose what they shall be before the first loop")
        self._converter.close()
        self._converter = converter
        return self

    # What it is.

    @property
    def ranks(self) -> _ranks.Ranks:
        """Which part of the data this process gets."""
        return self._ranks

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that runs."""
        return self._pipeline

    def _job_name(self, start: str | None) -> str:
        """The same on all ranks, and another for each place to start at, since a job that runs cannot be rewound."""
        if self._run is None:
            is_remote = bool(os.environ.get("FEEDLINE_COORDINATOR")) or any(flag.startswith("--coordinator") for flag in self._flags)
            self._run = self._name or _ranks.run_name(self._checked["name"], self._ranks, is_remote)
        replica = f"-replica{self._ranks.replica}" if self._ranks.replica else ""
        place = f"@{zlib.crc32(start.encode()):08x}" if start is not None else ""
        # All ranks load alike, so the second time in a process is another job than the first.
        place += f".{self._loads}" if self._loads > 1 else ""
        again = f"-{secrets.token_hex(3)}" if self._ranks.consumers == 1 and self._name is None and not self._elastic else ""
        return f"{self._run}{replica}{place}{again}"

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<feedline.Job {self._run or self._checked['name']!r}: rank {self._ranks.consumer} of {self._ranks.consumers}, {self._standing.taken} batches had>"


class _Alone:
    """What one thread does at a time; another one that comes meanwhile is told."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise WrongUse("another thread is waiting for a batch of this job; use a job in one thread at a time")

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
