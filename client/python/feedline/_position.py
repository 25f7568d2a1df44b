"""Tracks the position of one rank of a job, and creates its state dicts."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline import _native, _state
from feedline._native import WrongUse
from feedline._ranks import Ranks

_RECENT_BATCHES = 64
"""Number of recent batches whose positions a rank stores, which is the maximum number of batches that a loop may prefetch."""
_GROUP_SECONDS = 5.0
"""Timeout of the request for the positions of other ranks, in seconds."""

_log = logging.getLogger("feedline")

MixFrom = Callable[[int], list[dict[str, Any]]]
"""Returns the changes of the mix that affect rows of an epoch and of later epochs."""

Step = tuple[int | None, int]
"""A step that all ranks of a job can identify. It consists of the number of complete epochs since the start of the rank, and the number of
batches in the next epoch. If the first number is ``None``, the second number counts the batches of all epochs."""


class StepCounter:
    """Counts the steps of a rank since the start of its job. Used if positions depend on the rows."""

    _START: Step = (None, 0)
    _END: Step = (2**32 - 1, 0)

    def __init__(self, positions: Sequence[_state.Position] = ()) -> None:
        self._first_epoch = min((position[1] for position in positions), default=0)
        self.step: Step | None = self._START
        """The current step. ``None`` if the rank has run loops over single epochs and loops over all epochs, because other ranks cannot
        identify such a step."""

    def begin_loop(self, epoch: int | None) -> None:
        """Begins a loop over one epoch, or over all remaining epochs."""
        if self.step is None:
            return
        epochs = None if epoch is None else epoch - self._first_epoch
        if self.step[1] == 0 and epochs is not None:
            self.step = (epochs, 0)
        elif self.step[0] != epochs:
            # Before the first batch, the step is the same for both kinds of loops.
            self.step = (epochs, 0) if self.step in (self._START, (0, 0)) else None

    def add_batch(self) -> None:
        """Counts a batch."""
        if self.step is not None:
            self.step = (self.step[0], self.step[1] + 1)

    def end_loop(self, epoch: int | None) -> None:
        """Ends a loop that received all batches of an epoch, or of all remaining epochs."""
        if epoch is None:
            self.step = self._END
        elif self.step is not None:
            self.step = (epoch - self._first_epoch + 1, 0)


@dataclass(frozen=True)
class _Snapshot:
    """The position of a rank after a number of batches."""

    batches: int
    positions: list[_state.Position]
    step: Step | None
    growth: _native.RecordedGrowth | None
    """The recorded segments of an unbounded job."""
    job: _native.Job | None
    """The job through which other ranks report their positions. ``None`` if it is not shared."""


class PositionTracker:
    """Tracks the position of a rank after the last batch that the loop received. Prefetched batches do not count."""

    def __init__(self, ranks: Ranks, checked: dict[str, Any], slots: int, is_elastic: bool) -> None:
        self._ranks = ranks
        self._is_elastic = is_elastic
        self._parts = _state.pipeline_parts(checked)
        self.slots = slots
        """Number of virtual consumers of the job."""
        self.batches = 0
        """Number of batches that the loop has received, over all epochs."""
        self.positions: list[_state.Position] | None = None
        """Positions of the rank's slots. ``None`` while unknown."""
        self.loaded: dict[str, Any] | None = None
        """The state from which the job resumes."""
        self.identity: dict[str, Any] = {}
        """The keys of states that identify the pipeline and the data."""
        self.layout: dict[str, Any] = {}
        self.steps_per_epoch: int | None = None
        """Number of steps per epoch. ``None`` if the number depends on the rows."""
        self.step_counter: StepCounter | None = None
        """Counts steps. ``None`` if other ranks do not report their positions by step."""
        self._shared_job: _native.Job | None = None
        # Recorded partitions and segments of an unbounded job: at its start, and after the last batch.
        self._start_growth: dict[str, Any] | None = None
        self._growth: _native.RecordedGrowth | None = None
        self._recent: deque[_Snapshot] = deque(maxlen=_RECENT_BATCHES)
        # Epoch and row of each slot at the start of the job. None if the job started at the beginning.
        self._start: list[tuple[int, int]] | None = None

    def own_slots(self) -> range:
        """Returns the slots of this rank. Not valid for elastic jobs."""
        return range(self._ranks.consumer, self.slots, self._ranks.consumers)

    # Start.

    def load(self, state: dict[str, Any]) -> None:
        """Resumes from a state that :meth:`check` has accepted."""
        position = _state.start_position(state)
        self.slots = position["virtual_consumers"]
        self.loaded = state
        self.batches = self._batches_before(state, position)
        self.positions = None
        self._recent.clear()

    def check(self, state: dict[str, Any], virtual_consumers: int | None, *, accepts_changed_pipeline: bool) -> None:
        """Checks whether the job can resume from a state.

        Raises:
            WrongUse: if the state belongs to a different pipeline, or has the wrong number of virtual consumers.
        """
        if not accepts_changed_pipeline:
            _state.check_pipeline(state, self._parts)
        position = _state.start_position(state)
        slots, consumers = position["virtual_consumers"], self._ranks.consumers
        if virtual_consumers is not None and virtual_consumers != slots:
            raise WrongUse(
                f"the state has {slots} virtual consumers, but the job has {virtual_consumers}; open the job with virtual_consumers={slots}"
            )
        if slots < consumers:
            raise WrongUse(
                f"the state has {slots} virtual consumers, too few for {consumers} ranks with different data; "
                f"start with at most {slots} ranks, or save with more virtual_consumers next time"
            )
        different = {(stream["epoch"], stream["row"]) for stream in position["streams"]}
        if self._is_elastic and len(different) > 1:
            raise WrongUse("the state was saved within a step, but an elastic job must start between steps; load a state that was saved between steps")

    def set_dataset(self, position: Mapping[str, Any], layout: Mapping[str, Any], dataset: dict[str, Any]) -> None:
        """Sets the layout and the identity of the job when the dataset is indexed."""
        self.layout = {key: value for key, value in layout.items() if key != "mix"}
        self.steps_per_epoch = _native.steps_per_epoch(json.dumps(self.layout))
        self._start_growth, self._growth = position.get("growth"), None
        self.identity = {
            "pipeline": position["pipeline"],
            "dataset": position["dataset"],
            **{key: position[key] for key in ("content", "ranges") if position.get(key)},
            "parts": self._parts,
            "data": _state.data_summary(dataset),
        }

    def positions_at_start(self, streams: Sequence[Mapping[str, int]] | None) -> list[_state.Position]:
        """Returns the positions of the rank's slots in a job that starts at ``streams``. ``None`` means the beginning of the job."""
        if not streams:
            return [(slot, 0, 0) for slot in self.own_slots()]
        return [(slot, streams[slot]["epoch"], streams[slot]["row"]) for slot in self.own_slots()]

    def start(self, streams: Sequence[Mapping[str, int]] | None, job: _native.Job, is_shared: bool) -> None:
        """Starts at ``streams``. Other ranks report their positions through ``job``, if they share it."""
        self._start = [(stream["epoch"], stream["row"]) for stream in streams] if streams else None
        self.positions = self.positions_at_start(streams)
        if self.steps_per_epoch is not None:
            self.batches = sum(_state.steps_before(self.layout, self.steps_per_epoch, position) for position in self.positions)
        needs_counter = self._ranks.consumers > 1 and self.steps_per_epoch is None and not self.layout.get("coordinated")
        self.step_counter = StepCounter(self.positions) if needs_counter else None
        self._shared_job = job if needs_counter and is_shared else None
        self._record()

    def add_batch(self, native: _native.Batch) -> None:
        """Records that the loop receives a batch."""
        self.batches += 1
        self.positions = native.positions or None
        self._growth = native.growth
        if self.step_counter is not None:
            self.step_counter.add_batch()
        self._record()

    def _record(self) -> None:
        if self.positions is not None:
            self._recent.append(self._snapshot(self.positions))

    def _snapshot(self, positions: list[_state.Position]) -> _Snapshot:
        step = None if self.step_counter is None else self.step_counter.step
        return _Snapshot(self.batches, positions, step, self._growth, self._shared_job)

    def _batches_before(self, state: Mapping[str, Any], position: Mapping[str, Any]) -> int:
        """Returns the number of batches that this rank has received before a state."""
        steps = _native.steps_per_epoch(json.dumps(state["layout"])) if "layout" in state else None
        if steps is None:
            return int(state.get("batches", 0))
        own = ((slot, position["streams"][slot]) for slot in self.own_slots())
        return sum(_state.steps_before(state["layout"], steps, (slot, stream["epoch"], stream["row"])) for slot, stream in own)

    # Epochs.

    @property
    def has_end(self) -> bool:
        """Whether the job is bounded. The epochs of an unbounded job are known only from its batches."""
        return not self.layout.get("unbounded", False)

    def next_epoch(self) -> int:
        """Returns the epoch of the next batch."""
        return min((position[1] for position in self.positions or []), default=0)

    def is_epoch_complete(self, epoch: int) -> bool:
        """Whether the loop has received the last batch of an epoch. Returns ``False`` if the number of batches depends on the rows."""
        if self.steps_per_epoch is None or self.positions is None:
            return False
        return all(position[1] > epoch for position in self.positions)

    def steps_left(self, epoch: int) -> int | None:
        """Returns the number of remaining batches of an epoch. ``None`` if it is unknown."""
        if self.steps_per_epoch is None or not self.positions or self._is_elastic:
            return None
        done = sum(-(-row // self.layout["batch_rows"]) for _, slot_epoch, row in self.positions if slot_epoch == epoch)
        return self.steps_per_epoch * len(self.positions) - done

    # States.

    def state(self, mix_from: MixFrom) -> dict[str, Any]:
        """Returns the state after the last batch."""
        return self._state_of(self._snapshot(self.positions or []), mix_from)

    def state_after(self, batches: int, mix_from: MixFrom) -> dict[str, Any]:
        """Returns the state after the first ``batches`` batches."""
        for snapshot in self._recent:
            if snapshot.batches == batches:
                return self._state_of(snapshot, mix_from)
        raise WrongUse(
            f"the position after batch {batches} is unknown: this rank has received {self.batches} batches, and stores the positions after "
            f"the last {len(self._recent)} batches; request one of these positions"
        )

    def relaxed_state(self, position: Any) -> dict[str, Any]:
        """Returns the state of a relaxed job at a position."""
        return {"version": _state.VERSION, "order": "relaxed", **self.identity, "batches": self.batches, "position": position}

    def _state_of(self, snapshot: _Snapshot, mix_from: MixFrom) -> dict[str, Any]:
        positions: Sequence[_state.Position] = snapshot.positions
        if self._is_elastic and self.steps_per_epoch is not None:
            steps = {_state.steps_before(self.layout, self.steps_per_epoch, position) for position in positions}
            if len(steps) > 1:
                raise WrongUse(
                    "this rank has received the batches of the current step for only some of its slots; save the state of an elastic job "
                    "between steps"
                )
        missing: list[int] = []
        if self.step_counter is not None and len(positions) < self.slots:
            positions, missing = self._group_positions(snapshot)
        return _state.build_state(
            identity=self.identity,
            layout=self.layout,
            ranks=self._ranks.consumers,
            positions=positions,
            batches=snapshot.batches,
            missing=missing,
            mix=mix_from(min((position[1] for position in positions), default=0)),
            start=self._start,
            growth=self._growth_of(snapshot, positions),
        )

    def _growth_of(self, snapshot: _Snapshot, positions: Sequence[_state.Position]) -> dict[str, Any] | None:
        """Returns the recorded partitions and segments that a state at these positions contains."""
        if self._start_growth is None or snapshot.growth is None:
            return self._start_growth
        first_round = min((row // self.layout["split_rows"] for _, _, row in positions), default=0)
        return {**self._start_growth, **json.loads(snapshot.growth.json(first_round))}

    def _group_positions(self, snapshot: _Snapshot) -> tuple[Sequence[_state.Position], list[int]]:
        """Returns the positions of all slots at the step of a snapshot, and the ranks whose positions are unknown."""
        positions, job = snapshot.positions, snapshot.job
        own, consumers = self._ranks.consumer, self._ranks.consumers
        others = [rank for rank in range(consumers) if rank != own]
        if snapshot.step is None or job is None:
            return positions, others
        epochs, batches = snapshot.step
        rounds, rest = divmod(batches, len(positions))
        try:
            reported, unanswered = job.positions_at(epochs, rounds, rest, _GROUP_SECONDS)
        except (_native.FeedlineError, WrongUse) as error:
            _log.warning("cannot request the positions of the other ranks of job %s: %s", job.id, error)
            return positions, others
        missing = [rank for rank in unanswered if rank != own]
        if own not in unanswered and sorted(positions) != [position for position in reported if position[0] % consumers == own]:
            # Another process was this rank before, and its step count differs.
            missing = others
        if missing:
            _log.warning("the state of job %s does not contain the positions of ranks %s; merge the states of all ranks", job.id, missing)
            return positions, missing
        return [*positions, *(position for position in reported if position[0] % consumers != own)], []
