"""Jobs, which run a pipeline for the ranks of a training job."""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Self

from feedline import _native, _state
from feedline._arguments import to_float, to_int, to_list, to_optional_int
from feedline._config import JobConfig
from feedline._convert import Arrow, Converter, Jax, NumPy, TensorFlow, Torch
from feedline._graph_batch import Pyg
from feedline._native import WrongUse
from feedline._pipeline import Pipeline
from feedline._position import PositionTracker
from feedline._progress import Progress, format_summary
from feedline._ranks import Ranks
from feedline._reader import BatchReader
from feedline._session import Session

_log = logging.getLogger("feedline")
_open_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


class Job:
    """A job in which this process is one rank. Created by :func:`feedline.open`.

    Each ``for`` loop over the job is one epoch, or the rest of an epoch: ``for epoch in range(3): for batch in job: ...``. Leaving a loop
    early releases the resources of the job. The next loop continues after the last batch that the previous loop received. With
    ``order: relaxed``, one loop is the whole job. Only one thread may use a job at a time.
    """

    def __init__(self, config: JobConfig, *, progress: bool = False) -> None:
        self._config = config
        self._position = PositionTracker(config.ranks, config.checked, config.slots, config.is_elastic)
        self._session = Session(config, self._position)
        self._reader = BatchReader(self._session, self._position)
        self._progress = Progress(progress)
        # Number of loops so far. Only the last loop receives batches.
        self._loops = 0
        self._thread_guard = _ThreadGuard()

    # Types of batches.

    def numpy(self, gpu: int | None = None) -> Self:
        """Delivers batches as dicts of NumPy arrays. The arrays are read-only views of the receive buffers.

        Args:
            gpu: CUDA device number, for loops that copy batches to a GPU themselves, for example with CuPy or cuda-python. Batches that
                consist of one piece are then received into pinned memory. A copy must complete before the batch is released.
                :meth:`torch` does not need this argument.
        """
        return self._with_converter(NumPy(gpu))

    def torch(self, device: Any = None, *, copy: bool = True) -> Self:
        """Delivers batches as dicts of PyTorch tensors.

        Args:
            device: device of the tensors. With ``"cuda"``, one batch is prefetched and copied from pinned memory on a separate stream.
                With ``None`` or ``"cpu"``, tensors are in the memory of the process.
            copy: on the CPU, whether tensors own their memory. Without a copy, tensors are views that must not be written to, because
                other processes may use the memory.
        """
        return self._with_converter(Torch(device, copy))

    def jax(self, sharding: Any = None) -> Self:
        """Delivers batches as dicts of JAX arrays. A ``sharding`` makes them global arrays to which this process contributes its rows.

        Unless ``jax_enable_x64`` is set, JAX converts 64-bit numbers to 32 bits, and rounds floats.

        Raises:
            WrongUse: during iteration, if an integer does not fit into 32 bits and ``jax_enable_x64`` is not set.
        """
        return self._with_converter(Jax(sharding))

    def arrow(self) -> Self:
        """Delivers batches as ``pyarrow.RecordBatch`` objects, without a copy."""
        return self._with_converter(Arrow())

    def tf(self) -> Self:
        """Delivers batches as dicts of TensorFlow tensors. :func:`feedline.tensorflow.dataset` creates a ``tf.data.Dataset`` from a job."""
        return self._with_converter(TensorFlow())

    def pyg(self, device: Any = None, *, copy: bool = True) -> Self:
        """Delivers sampled graphs as ``Data``, or as ``HeteroData`` if the graph has several node types or relations, of PyG.

        The attributes are those of PyG's loaders, but labels such as ``y`` contain only the values of the seeds.

        Args:
            device: device of the tensors, as in :meth:`torch`. A graph is copied to a GPU at once, while the previous graph is in use.
            copy: on the CPU, whether tensors own their memory, as in :meth:`torch`.
        """
        return self._with_converter(Pyg(device, copy))

    def _with_converter(self, converter: Converter) -> Self:
        self._reader.set_converter(converter)
        return self

    # Configuration.

    @property
    def ranks(self) -> Ranks:
        """The rank of this process, which determines the part of the data that it receives."""
        return self._config.ranks

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that the job runs."""
        return self._config.pipeline

    # Batches.

    def __iter__(self) -> Iterator[Any]:
        """Iterates over one epoch, or the rest of an epoch."""
        return self._loop(is_whole_job=False)

    def batches(self) -> Iterator[Any]:
        """Iterates over all remaining epochs."""
        return self._loop(is_whole_job=True)

    def _loop(self, is_whole_job: bool) -> Generator[Any]:
        if self._reader.is_ended:
            _log.warning("all %d epochs of job %s are complete; open the job with more epochs", self._config.epochs, self._session.run)
            return
        self._open()
        self._loops += 1
        loop = self._loops
        is_complete = False
        try:
            if self._config.is_elastic and not self._reader.has_pending:
                # The first batch shows the slots of this rank and their positions.
                self._reader.wait_for_batch()
            yield from self._loop_epochs(loop, is_whole_job or self._config.is_relaxed)
            is_complete = True
        finally:
            # A later loop owns the session.
            if loop == self._loops:
                self._progress.end()
                if not is_complete or self._reader.is_ended:
                    self._release()

    def _loop_epochs(self, loop: int, is_whole_job: bool) -> Generator[Any]:
        epoch = self._reader.next_epoch()
        last_epoch = None if is_whole_job else epoch
        counter = self._position.step_counter
        if counter is not None:
            counter.begin_loop(last_epoch if self._position.has_end else None)
            if self._reader.converter.is_prefetching and self._session.consumer is not None:
                self._session.consumer.set_prefetching()
        self._progress.begin(epoch, self._position.steps_left(epoch))
        while (item := self._read(last_epoch)) is not None:
            native, batch = item
            if native.epoch > epoch:
                self._report_epoch(epoch)
                epoch = native.epoch
                self._progress.begin(epoch, self._position.steps_left(epoch))
            self._progress.step()
            yield batch
            if loop != self._loops:
                raise WrongUse("another loop over this job has started and receives its batches; use one loop at a time")
        self._report_epoch(epoch)
        if counter is not None and self._position.has_end:
            counter.end_loop(last_epoch)

    def _read(self, epoch: int | None) -> tuple[_native.Batch, Any] | None:
        with self._thread_guard:
            return self._reader.read(epoch)

    def _open(self) -> None:
        with self._thread_guard:
            if self._session.consumer is None:
                _open_jobs.add(self)
                self._session.open(self._reader.converter.gpu)

    def _release(self) -> None:
        """Releases the resources of the session. The next loop continues at the current position."""
        self._reader.clear()
        self._session.release(is_ended=self._reader.is_ended)

    def __len__(self) -> int:
        """Returns the number of batches of this rank in one epoch.

        Raises:
            TypeError: if the number is unknown, for example because operators change the number of rows.
        """
        self._open()
        steps = self._position.steps_per_epoch
        if steps is None or self._config.is_relaxed or self._config.is_elastic:
            raise TypeError(
                "the number of batches per epoch is unknown, because operators change the number of rows, `remainder` is carry, `order` is relaxed or the job is elastic"
            )
        return steps * len(self._position.own_slots())

    # State.

    @property
    def step(self) -> int:
        """Number of batches that this rank has received over all epochs, including the batches before a loaded state."""
        return self._position.batches

    def state_dict(self, at: int | None = None) -> dict[str, Any]:
        """Returns the state after the last batch that the loop received. Prefetched batches do not count as received.

        The state is plain data, and smaller than 1 KiB as JSON for any number of ranks. Any number of ranks can resume from the state of a
        single rank.

        If operators change the number of rows, the state contains a position for each slot. The other ranks report their positions at the
        same step through the coordinator, as soon as their batches of the step have arrived. The state lists ranks that have not reported
        after five seconds as ``missing``, or all other ranks if there is no coordinator. In this case, merge the states of all ranks with
        :func:`feedline.merge_states`.

        Args:
            at: returns the state after the first ``at`` batches of this rank, counted as :attr:`step`. Use this argument in loops that
                prefetch batches, such as the loops of Accelerate and Lightning.
        """
        at = to_optional_int("at", at)
        if at is not None and at != self._position.batches:
            return self._position.state_after(at, self._session.mix_from)
        if self._position.positions is not None:
            return self._position.state(self._session.mix_from)
        if self._position.loaded is not None:
            return dict(self._position.loaded)
        self._open()
        if self._config.is_elastic:
            raise WrongUse("this rank of an elastic job has received no batch, so it has no position; save the state of a rank that has received a batch")
        if self._config.is_relaxed:
            return self._relaxed_state()
        return self._position.state(self._session.mix_from)

    def _relaxed_state(self) -> dict[str, Any]:
        assert self._session.job is not None and self._session.consumer is not None
        if self._reader.has_pending:
            raise WrongUse(
                "a job with `order: relaxed` that prefetches batches has no exact position; use order deterministic, or NumPy arrays"
            )
        self._session.consumer.flush()
        return self._position.relaxed_state(json.loads(self._session.job.status())["position"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from ``state`` with the next loop, on any number of ranks and workers. Ends the current loop.

        Raises:
            WrongUse: if the state belongs to a different pipeline or different data. The message lists the differences.
        """
        state = _state.validate_state(state)
        self._position.check(state, self._config.virtual_consumers, accepts_changed_pipeline=self._config.accepts_changed_pipeline)
        self._release()
        self._position.load(state)
        self._session.loads += 1
        self._reader.is_ended = False

    def skip(self, first: int, last: int) -> None:
        """Skips the batches ``first`` to ``last - 1`` of this rank, counted as :attr:`step`, when the loop reaches them.

        Use this method to skip the batches that caused a loss spike: load an earlier state, skip the batches, and continue. All ranks must
        skip the same batches. The rows of skipped batches count as delivered.
        """
        first, last = to_int("first", first), to_int("last", last)
        if not 0 <= first < last:
            raise WrongUse(f"skip({first}, {last}) is an empty range; pass the first batch to skip and the batch after the last")
        if first < self._position.batches:
            raise WrongUse(f"this rank has already received batch {first} ({self._position.batches} batches so far); load an earlier state, then skip")
        self._reader.skipped.append((first, last))

    def set_weights(self, weights: Sequence[float]) -> dict[str, int]:
        """Changes the weights of the mix while the job runs. ``weights`` contains one relative weight per dataset, in the pipeline's order.

        The weights apply to all rows that no worker has leased, and to all ranks. Only one rank must call this method. Later states contain
        the change, and a job that resumes from such a state applies the change at the same row.

        Returns:
            The first row to which the weights apply: ``pass``, counted over all epochs, and ``row`` in the pass.

        Raises:
            WrongUse: if the job has no mix or a mix with ``stop="first"``, all rows are leased, or the weights are invalid.
        """
        self._open()
        assert self._session.job is not None
        numbers = [to_float(f"weights[{index}]", weight) for index, weight in enumerate(to_list("weights", weights))]
        pass_number, row = self._session.job.set_weights(numbers)
        return {"pass": pass_number, "row": row}

    # Elastic jobs.

    @property
    def slots(self) -> list[int]:
        """The slots whose batches this rank currently receives."""
        if self._config.is_elastic:
            return self._session.consumer.slots() if self._session.consumer is not None else []
        return list(self._position.own_slots())

    def leave(self) -> None:
        """Leaves an elastic job between two steps. Other ranks immediately receive the slots of this rank. The next loop joins the job again."""
        if not self._config.is_elastic:
            raise WrongUse("only ranks of an elastic job can leave; open the job with elastic=True")
        if self._reader.has_pending:
            raise WrongUse("a prefetched batch prevents leaving; use NumPy arrays or CPU tensors in an elastic job")
        self._release()

    def set_step_time(self, seconds: float) -> None:
        """Sets the time that this rank needs for the batch of one slot. Call this method if the ranks of an elastic job synchronize after
        each batch, because their measured times are then equal. The time applies to the current loop."""
        if not self._config.is_elastic:
            raise WrongUse("only ranks of an elastic job have a step time; open the job with elastic=True")
        if self._session.consumer is not None:
            self._session.consumer.set_batch_time(to_float("seconds", seconds))

    # Statistics.

    def stats(self) -> dict[str, Any]:
        """Returns the statistics of this rank.

        ``rows``, ``batches`` and ``bytes`` are the deliveries so far. ``step_seconds`` is the time from receiving a batch to requesting the
        next batch, and ``copy_seconds`` is the part of this time spent copying to a device. ``stall_seconds`` is the time spent waiting for
        batches. ``fed`` is the fraction of the time without stalls. ``bound`` is the current bottleneck of the job, or ``None`` while it is
        unknown.

        ``skipped_rows`` is the number of failed rows that were skipped or replaced. ``ignored_columns`` contains the names of columns in the
        data that ``source.features`` does not contain. ``widened_columns`` contains the columns in which values of several types have a
        common type, as dicts with ``column``, ``from`` and ``to``. ``rounded_columns`` contains the columns whose values are rounded, as dicts
        with ``column`` and ``reason``. ``defects`` contains the first 100 unreadable parts of the data, each as the shard, the byte from which
        its rest cannot be read, and the reason, and ``defect_count`` is the number of all. Their rows are not part of ``skipped_rows``, because
        their number is unknown.
        """
        stats = self._session.totals.total(self._session.consumer)
        time = stats["step_seconds"] + stats["stall_seconds"]
        fed = 1.0 - stats["stall_seconds"] / time if time > 0 else 1.0
        defects = {"defects": self._session.defects, "defect_count": self._session.defect_count}
        return {**stats, **self._session.columns, **defects, "fed": fed, "bound": self._session.bottleneck()}

    @property
    def skipped(self) -> list[tuple[str, int, str]]:
        """Rows that failed after the last batch, as shard, offset in the shard, and reason. Rows that failed before a batch are in its
        :attr:`Batch.skipped`."""
        return self._session.skipped

    def _report_epoch(self, epoch: int) -> None:
        counts = self._session.totals.since_last(self._session.consumer)
        if counts["batches"] and (self._progress.is_enabled or _log.isEnabledFor(logging.INFO)):
            line = format_summary(epoch, counts, self._session.bottleneck())
            self._progress.print_line(line)
            _log.info("%s", line)

    # End.

    def close(self) -> None:
        """Closes the job of this rank, and shuts down the service if it runs in this process. Later calls do nothing."""
        self._release()
        if self._session.is_own_process:
            self._reader.converter.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        session = getattr(self, "_session", None)
        if not _is_finalizing() and session is not None and session.service is not None:
            self.close()

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        raise WrongUse("a job cannot be sent to another process; open it there")

    def __repr__(self) -> str:
        name = self._session.run or self._config.checked["name"]
        return f"<feedline.Job {name!r}: rank {self.ranks.consumer} of {self.ranks.consumers}, {self._position.batches} batches received>"


class _ThreadGuard:
    """Rejects concurrent use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise WrongUse("another thread is waiting for the next batch of this job; use a job in one thread at a time")

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


@atexit.register
def _close_all() -> None:
    for job in list(_open_jobs):
        try:
            job.close()
        except (_native.FeedlineError, WrongUse) as error:
            _log.warning("%s", error)
