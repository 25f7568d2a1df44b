"""What the tests of scaling watch: the planner's metrics, and the replicas of a Deployment."""

import json
import subprocess
import threading
import time
from dataclasses import dataclass

from harness import LIMIT_S, CommandFailed, until
from nodes.pods import Pod, environment, pod
from nodes.release import OPERATOR_NODE, NodeRelease


@dataclass(frozen=True)
class Replicas:
    at: float
    wanted: int
    ready: int


class ReplicaWatch:
    """Watches the Deployment of workers in the background, also after an outage of the API server."""

    COLUMNS = "jsonpath={.spec.replicas}:{.status.readyReplicas}{'\\n'}"

    def __init__(self, release: NodeRelease) -> None:
        name = f"{release.prefix}-worker"
        flags = ["get", "deployment", name, "-n", release.namespace, "--watch", "--output", self.COLUMNS]
        self.command = release.cluster.control_plane.kubectl_command(*flags)
        self.changes: list[Replicas] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "ReplicaWatch":
        self.thread.start()
        until(lambda: self.changes, "the Deployment is known")
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.process.kill()
        self.thread.join()

    def wanted(self) -> int:
        return self.changes[-1].wanted

    def until_wanted(self, count: int, timeout: float = LIMIT_S) -> float:
        """Waits until the Deployment asks for this number of pods, and returns the time of this change."""
        until(lambda: self.wanted() == count, f"the Deployment wants {count} workers, not {self.counts()}", timeout)
        return next(change.at for change in self.changes if change.wanted == count)

    def until_wanted_after(self, begin: float, count: int, timeout: float = LIMIT_S) -> float:
        """Like `until_wanted`, for a change after a time."""
        found = lambda: next(
            (change.at for change in self.changes if change.at >= begin and change.wanted == count), None
        )  # noqa: E731
        return until(found, f"the Deployment wants {count} workers after {begin}, not {self.counts()}", timeout)

    def until_ready(self, count: int, timeout: float = LIMIT_S) -> None:
        until(lambda: self.changes[-1].ready == count, f"{count} workers are ready", timeout)

    def counts(self) -> list[int]:
        """The numbers of pods that the Deployment asked for, without repetitions."""
        counts = [change.wanted for change in self.changes]
        return [count for count, before in zip(counts, [None, *counts], strict=False) if count != before]

    def _watch(self) -> None:
        while not self.ended.is_set():
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for line in self.process.stdout:
                wanted, _, ready = line.strip().partition(":")
                if wanted:
                    self.changes.append(Replicas(time.time(), int(wanted), int(ready or 0)))
            self.ended.wait(0.2)


class Observer(Pod):
    """A pod with `observer.py`, whose log shows when which coordinator had which values."""

    def __init__(self, release: NodeRelease) -> None:
        super().__init__(release.cluster, release.namespace, "observer")
        service = f"{release.prefix}-coordinator.{release.namespace}.svc"
        command = ["python3", "-B", "/observer.py", service]
        variables = environment("", release.secret)
        self.cluster.apply(
            pod(self.name, self.namespace, command, variables, release.secret, OPERATOR_NODE), namespace=self.namespace
        )
        until(self.lines, "the observer has metrics")

    def first(self, metric: str, after: float, condition) -> float | None:
        """Returns the time of the first value after a time that meets a condition, summed over the metric's labels."""
        for line in self.lines():
            values = [value for name, value in line.items() if name.partition("{")[0] == metric]
            if line["at"] >= after and values and condition(sum(values)):
                return line["at"]
        return None

    def until(self, metric: str, after: float, condition, timeout: float = LIMIT_S) -> float:
        return until(lambda: self.first(metric, after, condition), f"{metric} has the expected value", timeout)


def until_fed(release: NodeRelease, fraction: float, timeout: float = LIMIT_S) -> float:
    """Waits until the fed fraction of the only job is large enough, and returns the time."""
    seen: list[float | None] = []

    def is_fed() -> bool:
        try:
            jobs = json.loads(release.feedline("top", "--once", "--format=json"))["jobs"]
        except CommandFailed:
            return False
        seen.extend(job["fed_fraction"] for job in jobs)
        return bool(seen) and (seen[-1] or 0) >= fraction

    try:
        until(is_fed, f"the fed fraction is {fraction}", timeout)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; it was {seen}") from None
    return time.time()
