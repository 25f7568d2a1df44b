"""A batch as the training loop gets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline import _native


class Batch(dict[str, Any]):
    """The columns of one batch by name: a ``dict`` of arrays or tensors whose first axis is the batch's rows.

    What it is made of is beside them: :attr:`rows`, :attr:`epoch`, :attr:`slot`, :attr:`skipped`. A batch that a library made anew,
    such as one moved to another device, has the columns alone.
    """

    __slots__ = ("_find_rows", "_native")

    def __init__(
        self,
        columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        native: _native.Batch | None = None,
        find_rows: Any = None,
    ) -> None:
        super().__init__(columns)
        self._native = native
        self._find_rows = find_rows

    @property
    def size(self) -> int:
        """Rows of the batch."""
        return len(self._known)

    @property
    def epoch(self) -> int:
        """Epoch of its first row, from 0."""
        return self._known.epoch

    @property
    def slot(self) -> int:
        """Slot (virtual consumer) that it belongs to; 0 where the order is relaxed."""
        return self._known.slot

    @property
    def step(self) -> int | None:
        """Step of its epoch, from 0; ``None`` where only its rows tell."""
        return self._known.step

    @property
    def weight(self) -> float:
        """Its part of the rows of its step over all slots: what a rank scales the batch's mean loss by. The weights of a step sum to 1."""
        return self._known.weight

    @property
    def rows(self) -> list[tuple[str, int]]:
        """Where each row comes from: the URL of its shard and its place in it, from 0.

        The first call of a job asks the coordinator for the list of shards; later ones compute.
        """
        known = self._known
        found = known.rows()
        if found is None:
            self._find_rows()
            found = known.rows()
        return found or []

    @property
    def skipped(self) -> list[tuple[str, int, str]]:
        """Rows that failed since the batch before, under ``on_error: skip`` or ``replace``: shard, offset in it, reason."""
        return self._known.skipped

    @property
    def _known(self) -> _native.Batch:
        if self._native is None:
            raise AttributeError("this batch was made anew by another library and does not know what it is made of")
        return self._native

    def __reduce__(self) -> tuple[Any, ...]:
        return (Batch, (dict(self),))
