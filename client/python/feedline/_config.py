"""The configuration of a job: the arguments of :func:`feedline.open`, validated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feedline._native import WrongUse
from feedline._pipeline import Pipeline
from feedline._ranks import Ranks

_UNLIMITED_EPOCHS = 1_000_000
"""Number of epochs of a job without the argument ``epochs``."""
_MAX_EPOCHS = 2**31


@dataclass(frozen=True)
class JobConfig:
    """The configuration of a job."""

    pipeline: Pipeline
    ranks: Ranks
    epochs_argument: int | None = None
    virtual_consumers: int | None = None
    is_elastic: bool = False
    name: str | None = None
    buffer_bytes: int | None = None
    feature_cache: int | str | None = None
    """Size of the cache of features, as a number of bytes or text with a unit."""
    weight: float = 1.0
    patience_seconds: float | None = None
    """Time without a coordinator after which the job fails. ``None`` selects the default time and does not retry the first connection."""
    accepts_reuploaded: bool = False
    """Whether the job resumes from a state if shards were written again, and the parts of them that indexing reads are equal."""
    accepts_changed_pipeline: bool = False
    """Whether the job resumes from a state of another pipeline."""
    service: dict[str, Any] = field(default_factory=dict)
    """Settings of the service that runs the job."""
    checked: dict[str, Any] = field(init=False)
    """The validated pipeline, with all defaults."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "checked", self.pipeline.check())
        if not 0 < self.epochs <= _MAX_EPOCHS:
            raise WrongUse(f"epochs is {self.epochs_argument}; expected a number from 1 to {_MAX_EPOCHS}")

    @property
    def epochs(self) -> int:
        """Number of epochs. The default for a relaxed job is 1, because a relaxed job detects the end of an epoch only at the next batch. The default for
        an unbounded job is 1, because its source defines its epochs."""
        if self.epochs_argument is not None:
            return self.epochs_argument
        return 1 if self.is_relaxed or self.checked["source"].get("until") == "none" else _UNLIMITED_EPOCHS

    @property
    def slots(self) -> int:
        """Number of virtual consumers of a job that does not resume from a state."""
        return self.ranks.consumers if self.virtual_consumers is None else self.virtual_consumers

    @property
    def is_relaxed(self) -> bool:
        return self.checked["order"] == "relaxed"

    @property
    def is_mixed(self) -> bool:
        return "mix" in self.checked["source"]
