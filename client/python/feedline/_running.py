"""How a job begins and ends in this process."""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Self

from feedline import _native, _state
from feedline._native import CoordinatorLost, JobFailed, WrongUse
from feedline._told import Told

_LOOK_SECONDS = 600.0
_END_SECONDS = 5.0
"""How long an end waits for a coordinator that does not answer."""
_RETRY_SECONDS = 0.5
_MIX_SECONDS = 2.0

_log = logging.getLogger("feedline")
_open_jobs: weakref.WeakSet[Running] = weakref.WeakSet()


class Running(Told):
    """A job that is opened where batches of it are asked for, and gives back what it holds."""

    # Beginning.

    def _open(self) -> None:
        with self._alone:
            if self._consumer is None:
                _open_jobs.add(self)
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
                "give another name=, or cancel it with `feedline job cancel`"
            )
        self._standing.settle(streams, self._job, is_shared=not self._service.is_embedded)

    def _mix_from(self, epoch: int) -> list[dict[str, Any]]:
        """How the weights of the mix change, as far as it tells what comes from an epoch on, also where somebody else has changed them and
        this rank's consumer was not told yet."""
        if self._consumer is not None and self._job is not None and self._is_mixed:
            self._mix = json.loads(self._mix_as_told(self._job, epoch) or self._consumer.mix_from(epoch))
        return self._mix

    def _mix_as_told(self, job: _native.Job, epoch: int) -> str | None:
        try:
            told = job.mix_from(epoch, _MIX_SECONDS)
        except _native.FeedlineError as error:
            _log.warning("whether the weights of job %s have changed cannot be asked: %s", self._run, error)
            return None
        if told is None:
            _log.warning(
                "no coordinator said within %d s whether the weights of job %s have changed; a change of the last moments may be missing",
                _MIX_SECONDS,
                self._run,
            )
        return told

    # End.

    def _release(self) -> None:
        """Gives back what the consumer holds. The next loop goes on where this one stood."""
        self._ahead.clear()
        consumer, self._consumer = self._consumer, None
        job, self._job = self._job, None
        if consumer is None or self._process != os.getpid():
            # What a forked child has belongs to its parent.
            return
        self._tally.keep(consumer)
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
        if self._is_mixed and job is not None:
            self._mix = json.loads(self._mix_as_told(job, 0) or consumer.mix_from(0))
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _is_finalizing() and getattr(self, "_service", None) is not None:
            self.close()

    def __reduce__(self) -> Any:
        raise WrongUse("a job cannot be sent to another process; open it there")


@atexit.register
def _close_all() -> None:
    for job in list(_open_jobs):
        try:
            job.close()
        except (_native.FeedlineError, WrongUse) as error:
            _log.warning("%s", error)
