"""Feedline in the place of PyTorch's DataLoader.

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
    """A job as a dataset whose items are whole batches: give the DataLoader ``batch_size=None`` and ``num_workers=0``.

    Each iteration is one epoch. ``state_dict`` and ``load_state_dict`` are those of the job, so torchdata's ``StatefulDataLoader``
    stores and restores its place exactly.

    Args:
        job: a job, a pipeline or a pipeline file.
        options: those of :func:`feedline.open`, where it is not a job.
    """

    def __init__(self, job: Any, **options: Any) -> None:
        super().__init__()
        if isinstance(job, Job) and options:
            raise WrongUse(f"the job is open already, so {next(iter(options))}= comes too late; give it to feedline.open()")
        self.job = job if isinstance(job, Job) else open_job(job, **{"device": "cpu", **options})

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is not None:
            raise WrongUse(
                "a DataLoader with workers would read every batch once in each of them; set num_workers=0: Feedline's own workers do the work"
            )
        return iter(self.job)

    def __len__(self) -> int:
        return len(self.job)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop over the dataset stands."""
        return self.job.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on at ``state`` with the next iteration."""
        self.job.load_state_dict(state)


class _Loader(torch.utils.data.DataLoader[Any]):
    """A DataLoader that gives a job's batches as they are, and knows where it stands."""

    def __init__(self, dataset: IterableDataset) -> None:
        super().__init__(dataset, batch_size=None, num_workers=0)
        self.job = dataset.job

    def __iter__(self) -> Any:
        return iter(self.job)

    def __len__(self) -> int:
        return len(self.job)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop over the loader stands."""
        return self.job.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on at ``state`` with the next iteration."""
        self.job.load_state_dict(state)


def loader(job: Any, **options: Any) -> _Loader:
    """A ``torch.utils.data.DataLoader`` of a job: for libraries that ask for one. Arguments as for :class:`IterableDataset`."""
    return _Loader(IterableDataset(job, **options))
