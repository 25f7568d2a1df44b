"""The batches that training loops receive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline import _native


class Batch(dict[str, Any]):
    """A ``dict`` of the columns of one batch. The values are arrays or tensors whose first axis is rows. A sampled graph is a ``dict`` of its
    arrays, and its rows are its seeds.

    The attributes :attr:`rows`, :attr:`epoch`, :attr:`slot` and :attr:`skipped` describe the origin of the rows. A copy that a library
    creates, for example on another device, has only the columns.
    """

    __slots__ = ("_load_origins", "_native")

    def __init__(
        self,
        columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        native: _native.Batch | None = None,
        load_origins: Any = None,
    ) -> None:
        super().__init__(columns)
        self._native = native
        self._load_origins = load_origins

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._origin)

    @property
    def epoch(self) -> int:
        """Epoch of the first row, from 0."""
        return self._origin.epoch

    @property
    def slot(self) -> int:
        """Slot (virtual consumer) of the batch. 0 in a relaxed job."""
        return self._origin.slot

    @property
    def step(self) -> int | None:
        """Step within the epoch, from 0. ``None`` if the step depends on the rows."""
        return self._origin.step

    @property
    def weight(self) -> float:
        """Share of the rows of all slots in this step. The weights of a step sum to 1. Multiply the mean loss of the batch by this weight."""
        return self._origin.weight

    @property
    def rows(self) -> list[tuple[str, int]]:
        """Origin of each row, as the URL of its shard and its index in the shard.

        The first access in a job requests the list of shards from the coordinator. Later accesses send no request.
        """
        rows = self._origin.rows()
        if rows is None:
            self._load_origins()
            rows = self._origin.rows()
        return rows or []

    @property
    def skipped(self) -> list[tuple[str, int, str]]:
        """Rows that failed since the previous batch, as shard, offset in the shard, and reason. Empty with ``on_error: fail``."""
        return self._origin.skipped

    @property
    def _origin(self) -> _native.Batch:
        if self._native is None:
            raise AttributeError("this batch is a copy by another library and has only the columns")
        return self._native

    def __reduce__(self) -> tuple[Any, ...]:
        return (Batch, (dict(self),))
