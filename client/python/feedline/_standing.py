"""Where one rank of a job stands, and the states that tell of it."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedline import _native, _state
from feedline._native import WrongUse
from feedline._ranks import Ranks
from feedline._steps import Step, Steps

_LATELY = 64
"""Batches behind which a rank still knows where it stood: as many as loops may be ahead of their steps."""
_GROUP_SECONDS = 5.0
"""Longest that a state is waited for because other ranks have not come to its step."""

_log = logging.getLogger("feedline")

MixFrom = Callable[[int], list[dict[str, Any]]]
"""How the weights of the mix change, as far as it tells what comes from an epoch on."""


class Standing:
    """What a rank has had. The batches behind the last one that it was handed are what comes next, whatever was fetched."""

    def __init__(self, ranks: Ranks, checked: dict[str, Any], slots: int, is_elastic: bool) -> None:
        self._ranks = ranks
        self._is_elastic = is_elastic
        self._parts = _state.parts_of(checked)
        self.slots = slots
        """Virtual consumers of the job."""
        self.taken = 0
        """Batches that the loop has had, over all epochs."""
        self.places: list[_state.Place] | None = None
        """Its slots, where that is known."""
        self.loaded: dict[str, Any] | None = None
        """The state that it goes on at."""
        self.about: dict[str, Any] = {}
        """What states belong to."""
        self.layout: dict[str, Any] = {}
        self.steps: int | None = None
        """Steps of an epoch; ``None`` where only rows tell."""
        self.loop_steps: Steps | None = None
        """Steps had, where other ranks are asked about them."""
        # Who can be asked, also when the loop is over.
        self._asked: _native.Job | None = None
        # Batches had, where this rank stood behind them, which step that was, and the job that knows where others stood.
        self._lately: deque[tuple[int, list[_state.Place], Step | None, _native.Job | None]] = deque(maxlen=_LATELY)
        # Where all slots stood when the job was opened, where that was not the beginning.
        self._began_at: list[tuple[int, int]] | None = None

    def own_slots(self) -> range:
        """The slots of this rank, unless the job is elastic."""
        return range(self._ranks.consumer, self.slots, self._ranks.consumers)

    # How it comes to stand there.

    def load(self, state: dict[str, Any]) -> None:
        """Goes on at a state that :meth:`check` has let pass."""
        position = _state.start_of(state)
        self.slots = position["virtual_consumers"]
        self.loaded = state
        self.taken = self._batches_before(state, position)
        self.places = None
        self._lately.clear()

    def check(self, state: dict[str, Any], asked_slots: int | None) -> None:
        """Whether the job can go on at a state.

        Raises:
            WrongUse: when it belongs to another pipeline, or fits neither the ranks nor the slots that were asked for.
        """
        _state.check_parts(state, self._parts)
        position = _state.start_of(state)
        slots, consumers = position["virtual_consumers"], self._ranks.consumers
        if asked_slots is not None and asked_slots != slots:
            raise WrongUse(f"the state has {slots} virtual consumers and the job {asked_slots}; open the job with virtual_consumers={slots}")
        if slots < consumers:
            raise WrongUse(
                f"the state has {slots} virtual consumers, too few for {consumers} ranks with different data; "
                f"start with at most {slots}, or save with more virtual_consumers next time"
            )
        stands = {(place["epoch"], place["row"]) for place in position["streams"]}
        if self._is_elastic and len(stands) > 1:
            raise WrongUse("the state was saved within a step, and an elastic job begins between steps; take one at which all slots stood alike")

    def learn(self, position: Mapping[str, Any], layout: Mapping[str, Any], dataset: dict[str, Any]) -> None:
        """The data is known."""
        self.layout = {key: value for key, value in layout.items() if key != "mix"}
        self.steps = _native.steps_of_epoch(json.dumps(self.layout))
        self.about = {
            "pipeline": position["pipeline"],
            "dataset": position["dataset"],
            "parts": self._parts,
            "data": _state.data_of(dataset),
        }

    def begins_at(self, streams: Sequence[Mapping[str, int]] | None) -> list[_state.Place]:
        """Its slots in a job that begins there, or at the beginning."""
        if not streams:
            return [(slot, 0, 0) for slot in self.own_slots()]
        return [(slot, streams[slot]["epoch"], streams[slot]["row"]) for slot in self.own_slots()]

    def settle(self, streams: Sequence[Mapping[str, int]] | None, job: _native.Job, is_shared: bool) -> None:
        """A job begins there; other ranks are asked by it where they stand, if it is shared with them."""
        self._began_at = [(place["epoch"], place["row"]) for place in streams] if streams else None
        self.places = self.begins_at(streams)
        if self.steps is not None:
            self.taken = sum(_state.steps_before(self.layout, self.steps, place) for place in self.places)
        counts = self._ranks.consumers > 1 and self.steps is None and not self.layout.get("coordinated")
        self.loop_steps, self._asked = (Steps(self.places), job if is_shared else None) if counts else (None, None)
        self._note()

    def had(self, native: _native.Batch) -> None:
        """The loop has a batch."""
        self.taken += 1
        self.places = native.places or None
        if self.loop_steps is not None:
            self.loop_steps.count()
        self._note()

    def _note(self) -> None:
        if self.places is not None:
            self._lately.append((self.taken, self.places, self._step(), self._asked))

    def _step(self) -> Step | None:
        return None if self.loop_steps is None else self.loop_steps.at

    def _batches_before(self, state: Mapping[str, Any], position: Mapping[str, Any]) -> int:
        """Batches that this rank counts as had at a state."""
        steps = _native.steps_of_epoch(json.dumps(state["layout"])) if "layout" in state else None
        if steps is None:
            return int(state.get("batches", 0))
        stands = ((slot, position["streams"][slot]) for slot in self.own_slots())
        return sum(_state.steps_before(state["layout"], steps, (slot, at["epoch"], at["row"])) for slot, at in stands)

    # Epochs.

    def epoch(self) -> int:
        """The epoch of the next batch."""
        return min((place[1] for place in self.places or []), default=0)

    def is_at_end_of(self, epoch: int) -> bool:
        """Whether the epoch's last batch was handed out, where the layout knows how many there are."""
        if self.steps is None or self.places is None:
            return False
        return all(place[1] > epoch for place in self.places)

    def steps_left(self, epoch: int) -> int | None:
        """Batches that are left of an epoch, where that is known."""
        if self.steps is None or not self.places or self._is_elastic:
            return None
        done = sum(-(-row // self.layout["batch_rows"]) for _, at, row in self.places if at == epoch)
        return self.steps * len(self.places) - done

    # States.

    def state(self, mix_from: MixFrom) -> dict[str, Any]:
        """The state behind the last batch."""
        return self._state_of(self.places or [], self.taken, self._step(), self._asked, mix_from)

    def state_behind(self, at: int, mix_from: MixFrom) -> dict[str, Any]:
        """The state behind the first ``at`` batches."""
        for taken, places, step, job in self._lately:
            if taken == at:
                return self._state_of(places, taken, step, job, mix_from)
        raise WrongUse(
            f"this rank has had {self.taken} batches and knows where it stood behind the last {len(self._lately)} of them alone, "
            f"not behind batch {at}"
        )

    def relaxed_state(self, position: Any) -> dict[str, Any]:
        """The state of a relaxed job that stands at a position."""
        return {"version": _state.VERSION, "order": "relaxed", **self.about, "batches": self.taken, "position": position}

    def _state_of(
        self, places: Sequence[_state.Place], taken: int, step: Step | None, job: _native.Job | None, mix_from: MixFrom
    ) -> dict[str, Any]:
        if self._is_elastic and self.steps is not None:
            steps = {_state.steps_before(self.layout, self.steps, place) for place in places}
            if len(steps) > 1:
                raise WrongUse(
                    "this rank has had some batches of the present step and not those of its other slots; ask for the state of an elastic job "
                    "between steps"
                )
        missing: list[int] = []
        if self.loop_steps is not None and len(places) < self.slots:
            places, missing = self._group_places(places, step, job)
        return _state.build(
            about=self.about,
            layout=self.layout,
            ranks=self._ranks.consumers,
            places=places,
            taken=taken,
            missing=missing,
            mix=mix_from(min((place[1] for place in places), default=0)),
            start=self._began_at,
        )

    def _group_places(
        self, places: Sequence[_state.Place], step: Step | None, job: _native.Job | None
    ) -> tuple[Sequence[_state.Place], list[int]]:
        """Where all slots stand when this rank's stand at ``places``, and the ranks of which that is not known."""
        own, consumers = self._ranks.consumer, self._ranks.consumers
        others = [rank for rank in range(consumers) if rank != own]
        if step is None or job is None:
            return places, others
        epochs, batches = step
        rounds, rest = divmod(batches, len(places))
        try:
            found, silent = job.places(epochs, rounds, rest, _GROUP_SECONDS)
        except (_native.FeedlineError, WrongUse) as error:
            _log.warning("the other ranks of job %s cannot be asked where they stand: %s", job.id, error)
            return places, others
        missing = [rank for rank in silent if rank != own]
        if own not in silent and sorted(places) != [place for place in found if place[0] % consumers == own]:
            # Somebody else has been this rank before, so the steps that were counted are not the same.
            missing = others
        if missing:
            _log.warning("the state of job %s does not tell where ranks %s stand; it takes the states of all ranks", job.id, missing)
            return places, missing
        return [*places, *(place for place in found if place[0] % consumers != own)], []
