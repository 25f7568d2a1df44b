"""Whether the programs of a machine still answer. A program that hangs would make a test wait until its limit."""

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

PAUSE_S = 15
# A program has this time for each answer, and its test fails after this time without an answer. Both are far more than a busy
# machine needs.
ANSWER_S, HUNG_AFTER_S = 60, 240


@dataclass
class _Probe:
    command: list[str]
    answered: float


class Probes:
    """Runs the probes of a machine's programs in a thread. A probe is a command that succeeds if its program answers."""

    def __init__(self, pause: float = PAUSE_S, hung_after: float = HUNG_AFTER_S, clock: Callable = time.monotonic) -> None:
        self._pause, self._hung_after, self._clock = pause, hung_after, clock
        self._probes: dict[str, _Probe] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, command: list[str]) -> None:
        """Probes a program from now on. A program has the same time for its start as for an answer."""
        self._probes[name] = _Probe(command, self._clock())
        if not self._thread:
            self._thread = threading.Thread(target=self._run, name="probes", daemon=True)
            self._thread.start()

    def remove(self, name: str) -> None:
        """Stops probing a program, because a test stops it."""
        self._probes.pop(name, None)

    def stop(self) -> None:
        self._probes.clear()
        self._stopped.set()
        if self._thread:
            self._thread.join()

    def hung(self) -> dict[str, float]:
        """Returns the programs that do not answer, and the seconds since their last answer."""
        silent = {name: self._clock() - probe.answered for name, probe in self._probes.copy().items()}
        return {name: seconds for name, seconds in silent.items() if seconds > self._hung_after}

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            for probe in list(self._probes.values()):
                if not self._stopped.is_set() and _answers(probe.command):
                    probe.answered = self._clock()


def _answers(command: list[str]) -> bool:
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.run(command, timeout=ANSWER_S, **options).returncode == 0
    except subprocess.TimeoutExpired:
        return False
