"""Runs the feedline binary on pipelines that read Kafka topics."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from brokers import free_ports

ROOT = Path(__file__).parents[2]
BINARY = Path(os.environ.get("FEEDLINE_BINARY", ROOT / "target/debug/feedline"))


@dataclass
class Result:
    """The outcome of one command."""

    code: int
    output: str
    errors: str

    @property
    def report(self) -> dict:
        assert self.code == 0, self.errors
        return json.loads(self.output.strip().splitlines()[-1])


class Jobs:
    """Pipelines, saved indexes and positions in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen] = []

    def pipeline(self, url: str, topics: str, *settings: str, operators: str = "", batch: int = 64) -> Path:
        """Writes a pipeline. `settings` are further lines of the source."""
        lines = [f"url: {url}", "format: kafka", f"topics: {topics}", *settings]
        source = "".join(f"  {line}\n" for line in lines)
        path = self.folder / f"{len(list(self.folder.glob('*.yaml')))}.yaml"
        path.write_text(f"name: kafka\nsource:\n{source}operators:\n{operators}  - batch: {{ size: {batch} }}\n")
        return path

    def arguments(self, pipeline: Path, *flags: str, cluster: str | None = None) -> list[str]:
        """The command that runs a pipeline: in its own process, or on the cluster with the coordinator at an address."""
        where = ["--coordinator", cluster] if cluster else ["--index-dir", str(self.folder / "index")]
        return [str(BINARY), "run", str(pipeline), "--report", "json", *where, *flags]

    def run(self, pipeline: Path, *flags: str, timeout: float = 120, cluster: str | None = None) -> Result:
        return self.finish(self.start(*self.arguments(pipeline, *flags, cluster=cluster)), timeout)

    def run_with_peak(self, pipeline: Path, *flags: str, timeout: float = 120) -> tuple[Result, int]:
        """Runs a pipeline. Returns the peak of the resident memory of its process in bytes too."""
        log = self.folder / "peak.log"
        log.unlink(missing_ok=True)
        process = self.start(*self.arguments(pipeline, *flags), log=log)
        peaks = [0]

        def has_ended() -> bool:
            # The usage that `wait4` returns contains the memory of this process, which created the other one.
            status = Path(f"/proc/{process.pid}/status").read_text()
            peaks.extend(int(kilobytes) * 1024 for kilobytes in re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE))
            return process.poll() is not None

        wait_for(has_ended, "the job ends", timeout)
        return Result(process.returncode, process.stdout.read(), log.read_text()), max(peaks)

    def start_cluster(self, coordinator: tuple[str, ...] = (), worker: tuple[str, ...] = ()) -> str:
        """Starts a coordinator and a worker, with more arguments for each. Returns the address of the coordinator."""
        control, data = free_ports(2)
        address = f"http://127.0.0.1:{control}"
        folder = str(self.folder / "coordinator")
        self.start(str(BINARY), "coordinator", "--listen", f"127.0.0.1:{control}", "--data-dir", folder, *coordinator)
        self.start(str(BINARY), "worker", "--coordinator", address, "--listen", f"127.0.0.1:{data}", *worker)
        # A client does not wait for a coordinator that does not listen.
        wait_for(lambda: is_listening(control), "the coordinator listens")
        return address

    def call(self, command: str, pipeline: Path, *flags: str) -> Result:
        """Runs another command on a pipeline."""
        return self.finish(self.start(str(BINARY), command, str(pipeline), "--format", "json", *flags))

    def start(self, *arguments: str, env: dict[str, str] | None = None, log: Path | None = None) -> subprocess.Popen:
        """Starts a process. `log` is a file for its messages, which do not block a process that runs for long."""
        errors = log.open("a") if log else subprocess.PIPE
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
        self.started.append(process)
        return process

    @staticmethod
    def finish(process: subprocess.Popen, timeout: float = 120) -> Result:
        output, errors = process.communicate(timeout=timeout)
        return Result(process.returncode, output, errors)

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition, what: str, timeout: float = 300):
    """Returns the first true value of `condition`."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise TimeoutError(what)
