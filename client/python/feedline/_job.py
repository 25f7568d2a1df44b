"""Jobs: a pipeline that runs for the ranks of a training job."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from feedline import _native, _state
from feedline._batch import Batch
from feedline._native import WrongUse
from feedline._plain import number, several, whole, whole_if_any
from feedline._progress import summary
from feedline._running import Running

_log = logging.getLogger("feedline")


class Job(Running):
    """A job of which this process takes batches. Made by :func:`feedline.open`.

    A ``for`` loop over it is one epoch, or what is left of it: ``for epoch in range(3): for batch in job: ...``. Leaving the loop
    early frees what the job holds; the next loop goes on with the batch behind the last one that the loop had. Where the pipeline says
    ``order: relaxed`` a loop is the whole job. One thread at a time.
    """

    # Batches.

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or what is left of it."""
        return self._loop(whole_job=False)

    def batches(self) -> Iterator[Any]:
        """All epochs that are left, one behind the other."""
        return self._loop(whole_job=True)

    def _loop(self, whole_job: bool) -> Generator[Any]:
        if self._ended:
            _log.warning("the %d epochs of job %s are over; open it with more epochs", self._epochs, self._run)
            return
        self._open()
        self._loops += 1
        loop = self._loops
        whole_job = whole_job or self._is_relaxed
        done = False
        try:
            if self._elastic and not self._ahead:
                # Which slots it has, and where they stand, is not known before.
                self._fetch()
            epoch = self._next_epoch()
            if self._standing.loop_steps is not None:
                self._standing.loop_steps.begin(None if whole_job else epoch)
                if self._converter.is_ahead and self._consumer is not None:
                    self._consumer.set_ahead()
            self._progress.begin(epoch, self._standing.steps_left(epoch))
            while (found := self._take(None if whole_job else epoch)) is not None:
                native, batch = found
                if native.epoch > epoch:
                    self._end_epoch(epoch)
                    epoch = native.epoch
                    self._progress.begin(epoch, self._standing.steps_left(epoch))
                self._progress.step()
                yield batch
                if loop != self._loops:
                    raise WrongUse("another loop over this job began meanwhile and has its batches now; use one loop at a time")
            self._end_epoch(epoch)
            if self._standing.loop_steps is not None:
                self._standing.loop_steps.end(None if whole_job else epoch)
            done = True
        finally:
            # What a later loop goes on with is not this one's to give back.
            if loop == self._loops:
                self._progress.end()
                if not done or self._ended:
                    self._release()

    def _take(self, epoch: int | None) -> tuple[_native.Batch, Any] | None:
        """The next batch, unless it belongs to another epoch than this one, or nothing is left. It counts as handed out."""
        with self._alone:
            return self._take_alone(epoch)

    def _take_alone(self, epoch: int | None) -> tuple[_native.Batch, Any] | None:
        while True:
            if epoch is not None and self._standing.is_at_end_of(epoch):
                return None
            if not self._ahead and not self._fetch():
                return None
            native, started = self._ahead[0]
            if epoch is not None and native.epoch > epoch:
                return None
            self._ahead.popleft()
            self._standing.had(native)
            if any(first < self._standing.taken <= last for first, last in self._skips):
                continue
            if self._converter.is_ahead and not self._ahead:
                self._fetch_if_here()
            return native, self._finish(native, started)

    def _fetch(self) -> bool:
        """Waits for a batch; whether there is one."""
        if self._ended or self._consumer is None:
            return False
        native = self._consumer.next()
        if native is None:
            self._ended = True
            return False
        self._ahead.append((native, self._start(native)))
        return True

    def _fetch_if_here(self) -> None:
        native = self._consumer.next_if_here() if self._consumer is not None else None
        if native is not None:
            self._ahead.append((native, self._start(native)))

    def _start(self, native: _native.Batch) -> Any:
        started, seconds = self._converter.start(native)
        if seconds and self._consumer is not None:
            self._consumer.add_copy(seconds)
        return started

    def _finish(self, native: _native.Batch, started: Any) -> Any:
        columns = self._converter.finish(started)
        return Batch(columns, native, self._learn_origins) if isinstance(columns, dict) else columns

    def _learn_origins(self) -> None:
        if self._job is None:
            raise WrongUse("the job is closed, so nobody can tell where its rows come from; ask while the loop runs")
        self._job.learn_origins()

    def _next_epoch(self) -> int:
        return self._ahead[0][0].epoch if self._ahead else self._standing.epoch()

    def __len__(self) -> int:
        """Batches that this rank gets in one epoch.

        Raises:
            TypeError: where operators change the number of rows, so that nobody knows before.
        """
        self._open()
        if self._standing.steps is None or self._is_relaxed or self._elastic:
            raise TypeError(
                "the number of batches of an epoch is not known, since operators change the number of rows, `remainder` is carry, `order` is relaxed or the job is elastic"
            )
        return self._standing.steps * len(self._standing.own_slots())

    # Where it stands.

    @property
    def step(self) -> int:
        """Batches that this rank has had so far, over all epochs, those before a loaded state included."""
        return self._standing.taken

    def state_dict(self, at: int | None = None) -> dict[str, Any]:
        """Where the training loop stands: behind the last batch that it had, whatever was fetched ahead of it.

        ``at`` is for loops that take batches ahead of their steps, as those of Accelerate and Lightning may: the state behind this
        rank's first ``at`` batches, counted as :attr:`step` does.

        Plain data for a checkpoint, less than 1 KiB as JSON for any number of ranks. The state of any one rank serves all of them, and any
        other number of them.

        Where operators change the number of rows it has a number for each slot, and the other ranks are asked, through their
        coordinator, where they stand at the same step; a rank that has not come there answers as soon as its batches are there. Where one has not
        within five seconds, or there is no coordinator, the state names the ranks that are ``missing``, and
        :func:`feedline.merge_states` makes one of the states of all.
        """
        at = whole_if_any("at", at)
        if at is not None and at != self._standing.taken:
            return self._standing.state_behind(at, self._mix_from)
        if self._standing.places is None and self._standing.loaded is not None:
            return dict(self._standing.loaded)
        if self._standing.places is not None:
            return self._standing.state(self._mix_from)
        self._open()
        assert self._job is not None and self._consumer is not None
        if self._elastic:
            raise WrongUse("this rank of an elastic job has had no batch, so it does not know where the job stands; ask a rank that has")
        if self._is_relaxed:
            self._ahead_is_empty()
            self._consumer.flush()
            return self._standing.relaxed_state(json.loads(self._job.status())["position"])
        return self._standing.state(self._mix_from)

    def _ahead_is_empty(self) -> None:
        if self._ahead:
            raise WrongUse(
                "a job with `order: relaxed` that copies batches ahead cannot tell where it stands; use order deterministic, or NumPy arrays"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on at ``state``, with the next loop; what is under way ends. On any number of ranks and workers.

        Raises:
            WrongUse: when the state belongs to another pipeline or to other data, with what changed.
        """
        state = _state.check(state)
        self._standing.check(state, self._asked_slots)
        self._release()
        self._standing.load(state)
        self._loads += 1
        self._ended = False

    def skip(self, first: int, last: int) -> None:
        """Leaves out the batches ``first`` to ``last - 1`` of this rank, counted as :attr:`step` does, when the loop comes there.

        For steps around a loss spike: load a state from before, skip, go on. All ranks skip the same. Their rows count as had.
        """
        first, last = whole("first", first), whole("last", last)
        if not 0 <= first < last:
            raise WrongUse(f"skip({first}, {last}) leaves out nothing; give the first batch and the one behind the last")
        if first < self._standing.taken:
            raise WrongUse(f"batch {first} has been had already ({self._standing.taken} were); load a state from before it, then skip")
        self._skips.append((first, last))

    def set_weights(self, weights: Sequence[float]) -> dict[str, int]:
        """Gives the datasets of the job's mix other weights while it runs: one for each, in the pipeline's order, relative to each other.

        They hold from behind the rows that were handed out to workers already, for all ranks: one of them says it. States of all ranks
        from then on have the change, and a job that goes on at one has it at the same place.

        Returns:
            ``pass``, counted over all epochs, and ``row`` of it from which the weights hold.

        Raises:
            WrongUse: when the job has no mix, one with ``stop="first"``, or has handed out all of its rows; or the weights are wrong.
        """
        self._open()
        assert self._job is not None
        wanted = [number(f"weights[{place}]", weight) for place, weight in enumerate(several("weights", weights))]
        first, row = self._job.set_weights(wanted)
        return {"pass": first, "row": row}

    # Elastic jobs.

    @property
    def slots(self) -> list[int]:
        """The slots whose batches this rank gets at present."""
        if self._elastic:
            return self._consumer.slots() if self._consumer is not None else []
        return list(self._standing.own_slots())

    def leave(self) -> None:
        """Leaves an elastic job between two steps: other ranks go on with this one's slots at once. The next loop joins it again."""
        if not self._elastic:
            raise WrongUse("only a rank of an elastic job can leave it while others go on; open the job with elastic=True")
        if self._ahead:
            raise WrongUse("batches are on their way to this rank's device; leave an elastic job from a loop over NumPy arrays or CPU tensors")
        self._release()

    def set_step_time(self, seconds: float) -> None:
        """Says how long this rank takes for the batch of one slot, where ranks of an elastic job wait for each other and so all look alike. It holds for
        the present loop."""
        if not self._elastic:
            raise WrongUse("only ranks of an elastic job get slots by their step times; open the job with elastic=True")
        if self._consumer is not None:
            self._consumer.set_slot_time(number("seconds", seconds))

    # How well it is fed.

    def stats(self) -> dict[str, Any]:
        """What this rank has had so far, and how long it waited.

        ``rows``, ``batches``, ``bytes``; ``step_seconds`` between getting a batch and asking for the next, ``copy_seconds`` of them for
        copying to a device, ``stall_seconds`` waiting; ``fed``, the share of the time in which it did not wait; ``bound``, what bounds
        the job at this moment as the service sees it, ``None`` where that is not known.
        """
        stats = self._tally.counts(self._consumer)
        time = stats["step_seconds"] + stats["stall_seconds"]
        return {**stats, "fed": 1.0 - stats["stall_seconds"] / time if time > 0 else 1.0, "bound": self._bound()}

    def _bound(self) -> str | None:
        if self._service is None or self._job is None:
            return None
        try:
            return self._service.bottleneck(self._job.id)
        except _native.FeedlineError:
            return None

    def _end_epoch(self, epoch: int) -> None:
        epoch_counts = self._tally.since_last(self._consumer)
        if epoch_counts["batches"] and (self._progress.is_on or _log.isEnabledFor(logging.INFO)):
            line = summary(epoch, epoch_counts, self._bound())
            self._progress.tell(line)
            _log.info("%s", line)
