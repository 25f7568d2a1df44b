"""Steps of a loop, in words that mean the same on all ranks of a job: where operators change the number of rows, only what each rank has
had tells where it stands, so ranks ask each other by these."""

from __future__ import annotations

from collections.abc import Sequence

Step = tuple[int | None, int]
"""Whole epochs before, counted from the one in which the rank began, and batches in the next one; with ``None``, batches over all
epochs."""
START: Step = (None, 0)
END: Step = (2**32 - 1, 0)


class Steps:
    """Counts the steps of a rank since its job began."""

    def __init__(self, places: Sequence[tuple[int, int, int]] = ()) -> None:
        self._first = min((place[1] for place in places), default=0)
        self.at: Step | None = START
        """Where the loop is; ``None`` once loops over epochs and over all of them were mixed, so that other ranks cannot know it."""

    def begin(self, epoch: int | None) -> None:
        """A loop begins: over one epoch, or over all that are left."""
        if self.at is None:
            return
        epochs = None if epoch is None else epoch - self._first
        if self.at[1] == 0 and epochs is not None:
            self.at = (epochs, 0)
        elif self.at[0] != epochs:
            # At the beginning nothing was counted in either way.
            self.at = (epochs, 0) if self.at in (START, (0, 0)) else None

    def count(self) -> None:
        """The loop has a batch."""
        if self.at is not None:
            self.at = (self.at[0], self.at[1] + 1)

    def end(self, epoch: int | None) -> None:
        """The loop has had all batches of an epoch, or of all that were left."""
        if epoch is None:
            self.at = END
        elif self.at is not None:
            self.at = (epoch - self._first + 1, 0)
