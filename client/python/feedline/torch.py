"""A replacement for PyTorch's DataLoader.

    loader = feedline.torch.loader("imagenet.yaml", batch_size=256, device="cuda")
    for batch in loader:
        ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from feedline._job import Job
from feedline._native import WrongUse
from feedline._open import open as open_job


class IterableDataset(torch.utils.data.IterableDataset[Any]):
    """A job as a dataset whose items are batches. Use a DataLoader with ``batch_size=None`` and ``num_workers=0``.

    Each iteration is one epoch. ``state_dict`` and ``load_state_dict`` are those of the job, so torchdata's ``StatefulDataLoader``
    saves and restores the exact position.

    Args:
        job: a job, a pipeline or a pipeline file.
        options: options of :func:`feedline.open`, if ``job`` is not a job.
    """

    def __init__(self, job: Any, **options: Any) -> None:
        super().__init__()
        if isinstance(job, Job) and options:
            raise WrongUse(f"the job is already open, so {next(iter(options))}= has no effect; pass it to feedline.open()")
        self.job = job if isinstance(job, Job) else open_job(job, **{"device": "cpu", **options})

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is not None:
            raise WrongUse(
                "each worker of a DataLoader would read every batch; set num_workers=0, because Feedline has its own workers"
            )
        return iter(self.job)

    def __len__(self) -> int:
        return len(self.job)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the loop over the dataset."""
        return self.job.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from ``state`` with the next iteration."""
        self.job.load_state_dict(state)


class _Loader(torch.utils.data.DataLoader[Any]):
    """A DataLoader that returns the batches of a job without changes, and supports state dicts."""

    def __init__(self, dataset: IterableDataset) -> None:
        super().__init__(dataset, batch_size=None, num_workers=0)
        self.job = dataset.job

    def __iter__(self) -> Any:
        return iter(self.job)

    def __len__(self) -> int:
        return len(self.job)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the loop over the loader."""
        return self.job.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from ``state`` with the next iteration."""
        self.job.load_state_dict(state)


def loader(job: Any, **options: Any) -> _Loader:
    """Creates a ``torch.utils.data.DataLoader`` of a job, for libraries that require one. The arguments are the same as in :class:`IterableDataset`."""
    return _Loader(IterableDataset(job, **options))
