"""What a person sees of a job's epochs: a bar on a terminal, and one line at the end of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from feedline import _native
from feedline._native import WrongUse


def summary(epoch: int, counts: Mapping[str, Any], bound: str | None) -> str:
    """``epoch 0: fed 99.8%: 1.2 s of 610 s waiting; 1281167 rows, 2100 rows/s; bound by consumer: ...``."""
    time = counts["step_seconds"] + counts["stall_seconds"]
    fed = 100.0 * (1.0 - counts["stall_seconds"] / time) if time > 0 else 100.0
    rate = counts["rows"] / time if time > 0 else 0.0
    line = (
        f"epoch {epoch}: fed {fed:.1f}%: {counts['stall_seconds']:.1f} s of {time:.1f} s waiting; "
        f"{counts['rows']} rows, {rate:.0f} rows/s"
    )
    return f"{line}; bound by {bound}" if bound else line


class Tally:
    """What a job has had over all of its loops, each of which has a consumer of its own."""

    def __init__(self) -> None:
        self._earlier = _nothing()
        self._told = _nothing()

    def counts(self, present: _native.Consumer | None) -> dict[str, Any]:
        """All so far."""
        of_present = _nothing() if present is None else present.stats()
        return {key: self._earlier[key] + of_present[key] for key in of_present}

    def since_last(self, present: _native.Consumer | None) -> dict[str, Any]:
        """What came since this was asked last."""
        counts = self.counts(present)
        since = {key: counts[key] - self._told[key] for key in counts}
        self._told = counts
        return since

    def keep(self, ended: _native.Consumer) -> None:
        """Takes over what a consumer has had that ends."""
        self._earlier = self.counts(ended)


def _nothing() -> dict[str, Any]:
    return {"rows": 0, "batches": 0, "bytes": 0, "stall_seconds": 0.0, "step_seconds": 0.0, "copy_seconds": 0.0}


class Progress:
    """A bar, where one is wanted and there is a terminal; the lines of epochs where they are wanted."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._bar: Any = None
        self._make: Any = None
        if is_on and sys.stderr.isatty():
            try:
                from tqdm.auto import tqdm
            except ImportError:
                raise WrongUse("progress=True shows a bar by tqdm, which is not installed: pip install tqdm") from None
            self._make = tqdm

    def begin(self, epoch: int, steps: int | None) -> None:
        """An epoch begins, with so many batches if that is known."""
        self.end()
        if self._make is not None:
            self._bar = self._make(total=steps, desc=f"epoch {epoch}", unit="batch", leave=False)

    def step(self) -> None:
        """A batch was had."""
        if self._bar is not None:
            self._bar.update(1)

    def tell(self, line: str) -> None:
        """Prints a line, where lines are wanted."""
        self.end()
        if self.is_on:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
