"""Feedline is an input-pipeline service: CPU workers read, decode and augment batches for accelerators, and training resumes exactly.

    import feedline

    job = feedline.open("imagenet.yaml", coordinator="http://feedline:7070", batch_size=256, device="cuda")
    for batch in job:
        train(batch["image"], batch["label"])

Without ``coordinator``, all roles run in this process. Each ``for`` loop over a job is one epoch.
"""

from feedline import _native
from feedline._batch import Batch
from feedline._job import Job
from feedline._native import CoordinatorLost, FeedlineError, JobFailed, Superseded, WrongUse
from feedline._open import open
from feedline._pipeline import Pipeline, load, mix, read
from feedline._ranks import Ranks
from feedline._state import merge_states

__version__: str = _native.__version__

__all__ = [
    "Batch",
    "CoordinatorLost",
    "FeedlineError",
    "Job",
    "JobFailed",
    "Pipeline",
    "Ranks",
    "Superseded",
    "WrongUse",
    "load",
    "merge_states",
    "mix",
    "open",
    "read",
]
