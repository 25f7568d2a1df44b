"""Jobs: a pipeline that runs for the ranks of a training job."""

from __future__ import annotations

import atexit
import json
import logging
import os
import secrets
import sys
import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from feedline import _native, _ranks, _state
from feedline._batch import Batch
from feedline._convert import Arrow, Converter, Jax, NumPy, TensorFlow, Torch
from feedline._native import CoordinatorLost, JobFailed, WrongUse
from feedline._pipeline import Pipeline
from feedline._plain import number, several, whole, whole_if_any
from feedline._progress import Progress, Tally, summary
from feedline._standing import Standing

_ENDLESS = 1_000_000
"""Epochs of a job for which nobody says how many."""
_MOST_EPOCHS = 2**31
_LOOK_SECONDS = 600.0
_END_SECONDS = 5.0
"""How long an end waits for a coordinator that does not answer."""
_PLAN_SECONDS = 5.0
_RETRY_SECONDS = 0.5

_log = logging.getLogger("feedline")
_open_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


class Job:
    """A job of which this process takes batches. Made by :func:`feedline.open`.

    A ``for`` loop over it is one epoch, or what is left of it: ``for epoch in range(3): for batch in job: ...``. Leaving the loop
    early frees what the job holds; the next loop goes on with the batch behind the last one that the loop had. Where the pipeline says
    ``order: relaxed`` a loop is the whole job. One thread at a time.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        ranks: _ranks.Ranks,
        epochs: int | None,
        virtual_consumers: int | None,
        elastic: bool,
        name: str | None,
        progress: bool,
        buffer: int | None,
        weight: float,
        patience: float | None,
        flags: list[str],
    ) -> None:
        self._pipeline = pipeline
        self._checked = pipeline.check()
        self._ranks = ranks
        self._is_relaxed = self._checked["order"] == "relaxed"
        self._is_mixed = "mix" in self._checked["source"]
        # A relaxed job does not know which batch ends an epoch before it has the next one.
        self._epochs = (1 if self._is_relaxed else _ENDLESS) if epochs is None else epochs
        if not 0 < self._epochs <= _MOST_EPOCHS:
            raise WrongUse(f"a job of {epochs} epochs is none; set epochs to a number from 1 to {_MOST_EPOCHS}")
        self._asked_slots = virtual_consumers
        self._elastic = elastic
        slots = ranks.consumers if virtual_consumers is None else virtual_consumers
        self._standing = Standing(ranks, self._checked, slots, elastic)
        self._name = name
        self._flags = flags
        self._settings: dict[str, Any] = {
            "weight": weight,
            "buffer_bytes": buffer,
            "patience_ms": None if patience is None else round(patience * 1000),
        }
        self._converter: Converter = NumPy()
        self._progress = Progress(progress)
        self._service: _native.Service | None = None
        self._job: _native.Job | None = None
        self._consumer: _native.Consumer | None = None
        # How the weights of its mix have changed.
        self._mix: list[dict[str, Any]] = []
        self._run: str | None = None
        # Taken and not handed out yet: a batch that is on its way to a device, or one that proved that an epoch is over.
        self._ahead: deque[tuple[_native.Batch, Any]] = deque()
        self._skips: list[tuple[int, int]] = []
        self._ended = False
        self._loads = 0
        # Loops begun so far: the last one has the batches.
        self._loops = 0
        self._alone = _Alone()
        self._process = os.getpid()
        self._tally = Tally()
        _open_jobs.add(self)

    # What batches are.

    def numpy(self, gpu: int | None = None) -> Job:
        """Batches are dicts of NumPy arrays: read-only views of the memory in which they came.

        Args:
            gpu: for loops that copy batches to a GPU themselves, as by CuPy or cuda-python: its number as CUDA counts. Batches are then
                received into memory that its driver has pinned, as far as they are one piece each. A copy must be over before the
                batch is let go. Not needed for :meth:`torch`.
        """
        return self._converted(NumPy(gpu))

    def torch(self, device: Any = None, *, copy: bool = True) -> Job:
        """Batches are dicts of PyTorch tensors.

        Args:
            device: such as ``"cuda"``: batches are copied there one ahead, through pinned memory and on a stream of their own.
                ``None`` or ``"cpu"``: tensors in the process's memory.
            copy: on the CPU, whether tensors have memory of their own. Without, they are views that must never be written to: the
                memory may be another process's.
        """
        return self._converted(Torch(device, copy))

    def jax(self, sharding: Any = None) -> Job:
        """Batches are dicts of JAX arrays; with a ``sharding``, global ones, of which this process gives its part of the rows."""
        return self._converted(Jax(sharding))

    def arrow(self) -> Job:
        """Batches are ``pyarrow.RecordBatch``, without a copy."""
        return self._converted(Arrow())

    def tf(self) -> Job:
        """Batches are dicts of TensorFlow tensors. :func:`feedline.tensorflow.dataset` makes a ``tf.data.Dataset`` of a job."""
        return self._converted(TensorFlow())

    def _converted(self, converter: Converter) -> Job:
        if self._ahead:
            raise WrongUse("batches are on their way already; choose what they shall be before the first loop")
        self._converter.close()
        self._converter = converter
        return self

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

    def __bool__(self) -> bool:
        return True

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

    def _mix_from(self, epoch: int) -> list[dict[str, Any]]:
        """How the weights of the mix change, as far as it tells what comes from an epoch on."""
        if self._consumer is not None and self._is_mixed:
            self._mix = json.loads(self._consumer.mix_from(epoch))
        return self._mix

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

        They hold from behind the rows that were handed out to workers already, for all ranks: one of them says it. States from then on
        have the change, and a job that goes on at one has it at the same place.

        Returns:
            ``pass``, counted over all epochs, and ``row`` of it from which the weights hold.

        Raises:
            WrongUse: when the job has no mix, one with ``stop="first"``, or has handed out all of its rows; or the weights are wrong.
        """
        self._open()
        assert self._job is not None
        wanted = [number(f"weights[{place}]", weight) for place, weight in enumerate(several("weights", weights))]
        first, row = self._job.set_weights(wanted)
        change = {"pass": first, "place": row, "weights": wanted}
        # This rank's states have it as soon as its next plan does.
        until = time.monotonic() + _PLAN_SECONDS
        while change not in self._mix_from(0) and time.monotonic() < until:
            time.sleep(0.002)
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

    # Beginning and end.

    @property
    def ranks(self) -> _ranks.Ranks:
        """Which part of the data this process gets."""
        return self._ranks

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that runs."""
        return self._pipeline

    def _open(self) -> None:
        with self._alone:
            if self._consumer is None:
                self._open_alone()

    def _open_alone(self) -> None:
        self._process = os.getpid()
        state = self._standing.loaded
        # An elastic job goes on without this rank, which joins it as it was opened.
        if self._standing.places is not None and not self._elastic:
            state = self._standing.state(self._mix_from)
        if self._service is None:
            self._service = self._connect()
        begin = None if state is None else self._position_of(state)
        start = None if begin is None else json.dumps(begin)
        job = self._service.open_job(
            pipeline=self._pipeline._text(),
            file=self._pipeline._file,
            name=self._job_name(start),
            epochs=self._epochs,
            consumers=self._ranks.consumers,
            virtual_consumers=self._standing.slots,
            start=start,
            audit=False,
            elastic=self._elastic,
            gpu=self._converter.gpu,
            **self._settings,
        )
        self._job = job
        self._learn(job, state)
        self._consumer = job.consumer(self._ranks.consumer)
        self._settle(state)

    def _connect(self) -> _native.Service:
        """The service. Where no patience was asked for, a coordinator that cannot be reached is told at once: the address may be wrong."""
        until = time.monotonic() + (self._settings["patience_ms"] or 0) / 1000
        while True:
            try:
                return _native.Service(self._flags)
            except CoordinatorLost as error:
                if time.monotonic() >= until:
                    raise
                _log.warning("%s; it is tried again", error)
                time.sleep(_RETRY_SECONDS)

    def _position_of(self, state: dict[str, Any]) -> dict[str, Any]:
        """Where the service begins to go on at a state. One that this rank has alone needs its own slots only."""
        places = self._standing.places or []
        if self._service is not None and self._service.is_embedded and places and state is not self._standing.loaded:
            return _state.start_or_later(state, min(place[1:] for place in places))
        return _state.start_of(state)

    def _learn(self, job: _native.Job, state: dict[str, Any] | None) -> None:
        """Waits until the data is known."""
        while (text := job.prepared(_LOOK_SECONDS)) is None:
            _log.warning("still indexing the data of job %s", self._run)
        status = json.loads(text)
        failed = status["state"].get("failed") if isinstance(status["state"], dict) else None
        if failed is not None:
            saved = (state or {}).get("data")
            was = f"; the data had {saved['rows']} rows in {saved['shards']} shards" if saved else ""
            raise JobFailed(f"{failed}{was}" if "belongs to other data" in failed else failed)
        position, dataset = status["position"], status["dataset"]
        if position is None or status["layout"] is None:
            return
        self._mix = status["layout"].get("mix", [])
        self._standing.learn(position, status["layout"], dataset)

    def _settle(self, state: dict[str, Any] | None) -> None:
        """Where this rank stands before its first batch."""
        assert self._service is not None and self._job is not None and self._consumer is not None
        if self._elastic:
            return
        self._standing.taken = 0 if state is None else state.get("batches", 0)
        if self._is_relaxed:
            return
        places = self._consumer.begin()
        streams = None if state is None else self._position_of(state)["streams"]
        # An ended job has no places; its next batch tells why.
        if places and places != self._standing.begins_at(streams):
            run, self._standing.places = self._run, None
            self._job = None
            self._release()
            raise WrongUse(
                f"a job {run!r} is under way already and this rank of it stands elsewhere, so this may be another run of that name; "
                "give another name=, or cancel it with `feedline jobs --cancel`"
            )
        self._standing.settle(streams, self._job, is_shared=not self._service.is_embedded)

    def _job_name(self, start: str | None) -> str:
        """The same on all ranks, and another for each place to start at, since a job that runs cannot be rewound."""
        if self._run is None:
            is_remote = any(flag.startswith("--coordinator") for flag in self._flags)
            self._run = self._name or _ranks.run_name(self._checked["name"], self._ranks, is_remote)
        replica = f"-replica{self._ranks.replica}" if self._ranks.replica else ""
        place = f"@{zlib.crc32(start.encode()):08x}" if start is not None else ""
        # All ranks load alike, so the second time in a process is another job than the first.
        place += f".{self._loads}" if self._loads > 1 else ""
        again = f"-{secrets.token_hex(3)}" if self._ranks.consumers == 1 and self._name is None and not self._elastic else ""
        return f"{self._run}{replica}{place}{again}"

    def _release(self) -> None:
        """Gives back what the consumer holds. The next loop goes on where this one stood."""
        self._ahead.clear()
        consumer, self._consumer = self._consumer, None
        job, self._job = self._job, None
        if consumer is None or self._process != os.getpid():
            # What a forked child has belongs to its parent.
            return
        self._tally.keep(consumer)
        self._mix = json.loads(consumer.mix_from(0)) if self._is_mixed else []
        held = False
        try:
            self._tell_last(consumer, job)
        except _native.FeedlineError as error:
            # Whoever ends a loop has a reason of its own, which this must not hide.
            _log.warning("%s", error)
        finally:
            held = consumer.close(_END_SECONDS)
        # Others of a group may still be taking batches; what nobody asks for is given up by the service.
        if held and job is not None and self._ranks.consumers == 1 and not self._elastic:
            try:
                job.cancel()
            except _native.FeedlineError as error:
                _log.warning("%s", error)

    def _tell_last(self, consumer: _native.Consumer, job: _native.Job | None) -> None:
        if self._elastic and not self._ended:
            consumer.leave()
        if self._is_relaxed and not self._ended and job is not None:
            consumer.flush()
            self._standing.loaded = self._standing.relaxed_state(json.loads(job.status())["position"])

    def close(self) -> None:
        """Ends this rank's part; without a coordinator, everything that runs in this process for it. A second call does nothing."""
        self._release()
        if self._process == os.getpid():
            self._converter.close()
        service, self._service = self._service, None
        if service is not None:
            service.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing() and getattr(self, "_service", None) is not None:
            self.close()

    def __reduce__(self) -> Any:
        raise WrongUse("a job cannot be sent to another process; open it there")

    def __repr__(self) -> str:
        return f"<feedline.Job {self._run or self._checked['name']!r}: rank {self._ranks.consumer} of {self._ranks.consumers}, {self._standing.taken} batches had>"


class _Alone:
    """What one thread does at a time; another one that comes meanwhile is told."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise WrongUse("another thread is waiting for a batch of this job; use a job in one thread at a time")

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


@atexit.register
def _close_all() -> None:
    for job in list(_open_jobs):
        try:
            job.close()
        except (_native.FeedlineError, WrongUse) as error:
            _log.warning("%s", error)
