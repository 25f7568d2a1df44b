"""The session of one rank, which opens the job, creates the consumer, and releases both."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
import zlib
from typing import Any

from feedline import _native, _state
from feedline._config import JobConfig
from feedline._native import CoordinatorLost, JobFailed, WrongUse
from feedline._position import PositionTracker
from feedline._progress import StatsTotals, column_differences
from feedline._ranks import run_name

_INDEXING_LOG_SECONDS = 600.0
"""Interval of log messages while the dataset is indexed."""
_CLOSE_SECONDS = 5.0
"""Timeout for closing a consumer if the coordinator does not respond."""
_MAX_DEFECTS = 100
"""Number of unreadable parts of the data that the statistics list."""
_RETRY_SECONDS = 0.5
"""Pause between attempts to connect."""
_MIX_SECONDS = 2.0
"""Timeout for requesting the mix weights."""

_log = logging.getLogger("feedline")


class Session:
    """The connection of a rank to its job. Opens on demand, and can be released and opened again."""

    def __init__(self, config: JobConfig, position: PositionTracker) -> None:
        self._config = config
        self._position = position
        self.service: _native.Service | None = None
        self.job: _native.Job | None = None
        self.consumer: _native.Consumer | None = None
        self.run: str | None = None
        """Name of the run. ``None`` before the first job is opened."""
        self.loads = 0
        """Number of loaded states."""
        self.totals = StatsTotals()
        self.columns = column_differences({})
        self.defects: list[tuple[str, int, str]] = []
        """The first unreadable parts of the data: shard, offset, reason."""
        self.defect_count = 0
        # Rows that failed after the last batch of the last loop.
        self._skipped: list[tuple[str, int, str]] = []
        # Changes of the mix's weights.
        self._mix: list[dict[str, Any]] = []
        self._process = os.getpid()

    @property
    def is_own_process(self) -> bool:
        """Whether this process opened the session; ``False`` in a forked child."""
        return self._process == os.getpid()

    # Open.

    def open(self, gpu: int | None) -> None:
        """Opens the job and creates the consumer. If ``gpu`` is set, the consumer receives batches into pinned memory."""
        self._process = os.getpid()
        config, state = self._config, self._position.loaded
        # An elastic job continues without this rank, so this rank joins the job again with the original settings.
        if self._position.positions is not None and not config.is_elastic:
            state = self._position.state(self.mix_from)
        if self.service is None:
            self.service = self._connect()
        start = None if state is None else json.dumps(self._start_position(self.service, state))
        self.job = self.service.open_job(
            pipeline=config.pipeline._to_json(),
            file=config.pipeline._file,
            name=self._job_name(start),
            epochs=config.epochs,
            consumers=config.ranks.consumers,
            virtual_consumers=self._position.slots,
            start=start,
            audit=False,
            elastic=config.is_elastic,
            weight=config.weight,
            accept_reuploaded=config.accepts_reuploaded,
            accept_changed_pipeline=config.accepts_changed_pipeline,
            buffer_bytes=config.buffer_bytes,
            feature_cache=None if config.feature_cache is None else str(config.feature_cache),
            patience_ms=None if config.patience_seconds is None else round(config.patience_seconds * 1000),
            gpu=gpu,
        )
        self._wait_until_indexed(self.job, state)
        self.consumer = self.job.consumer(config.ranks.consumer)
        self._set_start(self.service, self.job, self.consumer, state)

    def _connect(self) -> _native.Service:
        """Connects to the service. Retries only with an explicit ``patience``, because a failure may be due to a wrong address."""
        deadline = time.monotonic() + (self._config.patience_seconds or 0)
        while True:
            try:
                return _native.Service(json.dumps(self._config.service))
            except CoordinatorLost as error:
                if time.monotonic() >= deadline:
                    raise
                _log.warning("%s; retrying", error)
                time.sleep(_RETRY_SECONDS)

    def _start_position(self, service: _native.Service, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the position from which the service resumes. An embedded service requires only the positions of this rank's slots."""
        positions = self._position.positions or []
        if service.is_embedded and positions and state is not self._position.loaded:
            return _state.start_position_with_default(state, min(position[1:] for position in positions))
        return _state.start_position(state)

    def _job_name(self, start: str | None) -> str:
        """Returns the name of the job. It is equal on all ranks, and differs between start positions, because a running job cannot be
        rewound."""
        config = self._config
        if self.run is None:
            is_remote = bool(os.environ.get("FEEDLINE_COORDINATOR") or config.service.get("coordinator"))
            self.run = config.name or run_name(config.checked["name"], config.ranks, is_remote)
        replica = f"-replica{config.ranks.replica}" if config.ranks.replica else ""
        position = f"@{zlib.crc32(start.encode()):08x}" if start is not None else ""
        # All ranks load the same states in the same order, so the number of loads distinguishes repeated loads of the same state.
        position += f".{self.loads}" if self.loads > 1 else ""
        is_private = config.ranks.consumers == 1 and config.name is None and not config.is_elastic
        suffix = f"-{secrets.token_hex(3)}" if is_private else ""
        return f"{self.run}{replica}{position}{suffix}"

    def _wait_until_indexed(self, job: _native.Job, state: dict[str, Any] | None) -> None:
        while (text := job.wait_until_indexed(_INDEXING_LOG_SECONDS)) is None:
            _log.warning("still indexing the data of job %s", self.run)
        status = json.loads(text)
        failed = status["state"].get("failed") if isinstance(status["state"], dict) else None
        if failed is not None:
            saved = (state or {}).get("data")
            before = f"; the data had {saved['rows']} rows in {saved['shards']} shards" if saved else ""
            # Without the index of the saved dataset, the service knows only its content id.
            is_unnamed = "saved with a different dataset" in failed or "not available to name the shards" in failed
            raise JobFailed(f"{failed}{before}" if is_unnamed else failed)
        if status["position"] is None or status["layout"] is None:
            return
        changes = status["dataset"].get("changes")
        if changes:
            _log.info("%s", _native.describe_changes(json.dumps(changes), status["dataset"]["shards"]))
        self._mix = status["layout"].get("mix", [])
        self._position.set_dataset(status["position"], status["layout"], status["dataset"])
        self.columns = column_differences(status["dataset"])
        self._set_defects(job, status["dataset"]["defects"])

    def _set_defects(self, job: _native.Job, count: int) -> None:
        if count != self.defect_count:
            self.defects = job.defects(_MAX_DEFECTS) if count else []
            if self.defects:
                shard, offset, reason = self.defects[0]
                others = f"; and {count - 1} others: see stats()['defects']" if count > 1 else ""
                _log.warning("%s at byte %d: %s; the rest of the shard is skipped%s", shard, offset, reason, others)
        self.defect_count = count

    @property
    def skipped(self) -> list[tuple[str, int, str]]:
        """Rows that failed after the last batch."""
        return self._skipped if self.consumer is None else self.consumer.skipped()

    def _set_start(
        self, service: _native.Service, job: _native.Job, consumer: _native.Consumer, state: dict[str, Any] | None
    ) -> None:
        """Sets the position of this rank before its first batch."""
        if self._config.is_elastic:
            return
        self._position.batches = 0 if state is None else state.get("batches", 0)
        if self._config.is_relaxed:
            return
        positions = consumer.start_position()
        streams = None if state is None else self._start_position(service, state)["streams"]
        # The consumer of an ended job has no positions. Its next batch raises the error.
        if positions and positions != self._position.positions_at_start(streams):
            # Do not cancel the job, because it may belong to another run.
            self._position.positions, self.job = None, None
            self.release(is_ended=False)
            raise WrongUse(
                f"a job with the name {self.run!r} is already running, and this rank is at another position in it, so the job may belong to "
                "another run; pass a different name=, or cancel the job with `feedline job cancel`"
            )
        self._position.start(streams, job, is_shared=not service.is_embedded)

    # Mix.

    def mix_from(self, epoch: int) -> list[dict[str, Any]]:
        """Returns the changes of the mix weights that affect rows of ``epoch`` and later epochs, including changes by other processes."""
        if self.consumer is not None and self.job is not None and self._config.is_mixed:
            self._mix = json.loads(self._requested_mix(self.job, epoch) or self.consumer.mix_from(epoch))
        return self._mix

    def _requested_mix(self, job: _native.Job, epoch: int) -> str | None:
        try:
            mix = job.mix_from(epoch, _MIX_SECONDS)
        except _native.FeedlineError as error:
            _log.warning("cannot request the weights of job %s: %s", self.run, error)
            return None
        if mix is None:
            _log.warning(
                "no coordinator returned the weights of job %s within %d s; the state may lack a recent change of weights",
                self.run,
                _MIX_SECONDS,
            )
        return mix

    # Release.

    def release(self, *, is_ended: bool) -> None:
        """Closes the consumer, and cancels the job if no other rank uses it. ``is_ended`` is whether all batches were delivered."""
        consumer, self.consumer = self.consumer, None
        job, self.job = self.job, None
        if consumer is None or not self.is_own_process:
            # In a forked child, the objects belong to the parent process.
            return
        self.totals.add(consumer)
        self._skipped = consumer.skipped()
        if is_ended and self._skipped:
            shard, offset, reason = self._skipped[0]
            _log.warning("%d rows after the last batch were skipped; the first is at offset %d of %s: %s", len(self._skipped), offset, shard, reason)
        is_acknowledged = False
        try:
            self._send_last_requests(consumer, job, is_ended)
        except _native.FeedlineError as error:
            # Only log errors while closing, because they must not hide an error of the loop.
            _log.warning("%s", error)
        finally:
            is_acknowledged = consumer.close(_CLOSE_SECONDS)
        # Do not cancel a job that other ranks may still use. The service ends a job without consumers.
        if is_acknowledged and job is not None and self._config.ranks.consumers == 1 and not self._config.is_elastic:
            try:
                job.cancel()
            except _native.FeedlineError as error:
                _log.warning("%s", error)

    def _send_last_requests(self, consumer: _native.Consumer, job: _native.Job | None, is_ended: bool) -> None:
        if self._config.is_mixed and job is not None:
            self._mix = json.loads(self._requested_mix(job, 0) or consumer.mix_from(0))
        if self._config.is_elastic and not is_ended:
            consumer.leave()
        if self._config.is_relaxed and not is_ended and job is not None:
            consumer.flush()
            self._position.loaded = self._position.relaxed_state(json.loads(job.status())["position"])

    def close(self) -> None:
        """Shuts down the service, if it runs in this process."""
        service, self.service = self.service, None
        if service is not None:
            service.close()

    # Observability.

    def bottleneck(self) -> str | None:
        """Returns the current bottleneck of the job. ``None`` while it is unknown."""
        if self.service is None or self.job is None:
            return None
        try:
            return self.service.bottleneck(self.job.id)
        except _native.FeedlineError:
            return None
