"""Displays the progress of a job as a progress bar on a terminal, and prints one line after each epoch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from feedline import _native
from feedline._native import WrongUse


def format_summary(epoch: int, counts: Mapping[str, Any], bound: str | None) -> str:
    """Formats the line after an epoch: ``epoch 0: fed 99.8%: 1.2 s of 610 s waiting; 1281167 rows, 2100 rows/s; bound by consumer: ...``."""
    time = counts["step_seconds"] + counts["stall_seconds"]
    fed = 100.0 * (1.0 - counts["stall_seconds"] / time) if time > 0 else 100.0
    rate = counts["rows"] / time if time > 0 else 0.0
    line = (
        f"epoch {epoch}: fed {fed:.1f}%: {counts['stall_seconds']:.1f} s of {time:.1f} s waiting; "
        f"{counts['rows']} rows, {rate:.0f} rows/s"
    )
    return f"{line}; bound by {bound}" if bound else line


def column_differences(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how the columns of a dataset differ from its data: the names of ignored columns, the widened columns with their types, and
    the rounded columns."""
    widened = [
        {"column": column["column"], "from": _type_name(column["from"]), "to": _type_name(column["to"])} for column in dataset.get("widened", [])
    ]
    return {"ignored_columns": dataset.get("ignored", []), "widened_columns": widened, "rounded_columns": dataset.get("rounded", [])}


def _type_name(column_type: Any) -> str:
    """Formats a column type as messages of the service do, such as ``list of float64``."""
    if isinstance(column_type, str):
        return {"utf8": "text", "binary": "bytes"}.get(column_type, column_type)
    kind, value = next(iter(column_type.items()))
    if kind == "list":
        return f"list of {_type_name(value)}"
    return f"{value['scalar']} tensor {value['shape']}" if kind == "tensor" else value


class StatsTotals:
    """Sums the statistics of a job over its loops. Each loop has its own consumer."""

    def __init__(self) -> None:
        self._closed = _zero_stats()
        self._reported = _zero_stats()

    def total(self, consumer: _native.Consumer | None) -> dict[str, Any]:
        """Returns the sum over all closed consumers and the current consumer."""
        stats = _zero_stats() if consumer is None else consumer.stats()
        return {key: self._closed[key] + stats[key] for key in stats}

    def since_last(self, consumer: _native.Consumer | None) -> dict[str, Any]:
        """Returns the difference since the last call."""
        total = self.total(consumer)
        difference = {key: total[key] - self._reported[key] for key in total}
        self._reported = total
        return difference

    def add(self, consumer: _native.Consumer) -> None:
        """Adds the statistics of a consumer before it is closed."""
        self._closed = self.total(consumer)


def _zero_stats() -> dict[str, Any]:
    return {"rows": 0, "batches": 0, "bytes": 0, "skipped_rows": 0, "stall_seconds": 0.0, "step_seconds": 0.0, "copy_seconds": 0.0}


class Progress:
    """A progress bar on a terminal, and a line after each epoch. Displays nothing unless enabled."""

    def __init__(self, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._bar: Any = None
        self._bar_type: Any = None
        if is_enabled and sys.stderr.isatty():
            try:
                from tqdm.auto import tqdm
            except ImportError:
                raise WrongUse("progress=True requires tqdm, which is not installed; run pip install tqdm") from None
            self._bar_type = tqdm

    def begin(self, epoch: int, steps: int | None) -> None:
        """Starts the bar of an epoch with ``steps`` batches. ``None`` if the number is unknown."""
        self.end()
        if self._bar_type is not None:
            self._bar = self._bar_type(total=steps, desc=f"epoch {epoch}", unit="batch", leave=False)

    def step(self) -> None:
        """Advances the bar by one batch."""
        if self._bar is not None:
            self._bar.update(1)

    def print_line(self, line: str) -> None:
        """Removes the bar and prints a line."""
        self.end()
        if self.is_enabled:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
