"""Reads and converts the batches of a session. Prefetches one batch if the converter copies batches to a device."""

from __future__ import annotations

from collections import deque
from typing import Any

from feedline import _native
from feedline._batch import Batch
from feedline._convert import Converter, NumPy
from feedline._native import WrongUse
from feedline._position import PositionTracker
from feedline._session import Session


class BatchReader:
    """Reads batches in order."""

    def __init__(self, session: Session, position: PositionTracker) -> None:
        self._session = session
        self._position = position
        self.converter: Converter = NumPy()
        self.is_ended = False
        """Whether the last batch of the job was read."""
        self.skipped: list[tuple[int, int]] = []
        """Ranges of batches to skip."""
        # Batches that were read but that the loop has not received: prefetched batches, and the first batch of the next epoch.
        self._pending: deque[tuple[_native.Batch, Any]] = deque()

    @property
    def has_pending(self) -> bool:
        """Whether there are batches that were read but that the loop has not received."""
        return bool(self._pending)

    def set_converter(self, converter: Converter) -> None:
        """Sets the type of the following batches."""
        if self._pending:
            raise WrongUse("batches of another type are already prefetched; choose the type of batches before the first loop")
        self.converter.close()
        self.converter = converter

    def clear(self) -> None:
        """Discards batches that the loop has not received."""
        self._pending.clear()

    def next_epoch(self) -> int:
        """Returns the epoch of the next batch. Waits for the batch if the job has no end."""
        if not self._position.has_end and not self._pending:
            self.wait_for_batch()
        return self._pending[0][0].epoch if self._pending else self._position.next_epoch()

    def read(self, epoch: int | None) -> tuple[_native.Batch, Any] | None:
        """Returns the next batch and its converted form. Returns ``None`` at the end of ``epoch``, or at the end of the job if ``epoch`` is
        ``None``."""
        while True:
            if epoch is not None and self._position.is_epoch_complete(epoch):
                return None
            if not self._pending and not self.wait_for_batch():
                return None
            native, started = self._pending[0]
            if epoch is not None and native.epoch > epoch:
                return None
            self._pending.popleft()
            self._position.add_batch(native)
            if any(first < self._position.batches <= last for first, last in self.skipped):
                continue
            if self.converter.is_prefetching and not self._pending:
                self._prefetch()
            return native, self._finish(native, started)

    def wait_for_batch(self) -> bool:
        """Waits for a batch. Returns ``False`` at the end of the job."""
        consumer = self._session.consumer
        if self.is_ended or consumer is None:
            return False
        native = consumer.next()
        if native is None:
            self.is_ended = True
            return False
        self._add_pending(consumer, native)
        return True

    def _prefetch(self) -> None:
        consumer = self._session.consumer
        native = consumer.try_next() if consumer is not None else None
        if consumer is not None and native is not None:
            self._add_pending(consumer, native)

    def _add_pending(self, consumer: _native.Consumer, native: _native.Batch) -> None:
        started, copy_seconds = self.converter.start(native)
        if copy_seconds:
            consumer.add_copy(copy_seconds)
        self._pending.append((native, started))

    def _finish(self, native: _native.Batch, started: Any) -> Any:
        columns = self.converter.finish(started)
        return Batch(columns, native, self._load_origins) if isinstance(columns, dict) else columns

    def _load_origins(self) -> None:
        if self._session.job is None:
            raise WrongUse("the job is closed, so the origins of its rows cannot be loaded; read them within the loop")
        self._session.job.load_origins()
