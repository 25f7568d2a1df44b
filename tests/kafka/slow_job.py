"""A job that takes some time, so that faults happen while it reads."""

from pathlib import Path

from brokers import free_ports
from jobs import Jobs, wait_for
from metrics import read_metrics, total

# The number of rows that a job delivers between two faults.
ROWS_BETWEEN_FAULTS = 4_000


class SlowJob:
    """A job whose consumer takes some time for each batch. It runs in its own process, or on the cluster with the coordinator at an address."""

    def __init__(self, jobs: Jobs, pipeline: Path, step_ms: int, *flags: str, cluster: str | None = None, log: Path | None = None) -> None:
        [self.port] = free_ports(1)
        own = ("--audit", "--step-ms", str(step_ms), "--http", f"127.0.0.1:{self.port}")
        self.process = jobs.start(*jobs.arguments(pipeline, *own, *flags, cluster=cluster), log=log)

    def delivered(self) -> float:
        return total(read_metrics(self.port), "feedline_client_rows_total") or 0

    def wait_for_more_rows(self, rows: int = ROWS_BETWEEN_FAULTS) -> None:
        """Returns while the job reads."""
        wanted = self.delivered() + rows
        wait_for(lambda: self.delivered() >= wanted or self.process.poll() is not None, f"{wanted} rows")
        assert self.process.poll() is None, "the job has ended before the fault"
