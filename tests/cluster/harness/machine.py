"""A machine: a network, mount and PID namespace.

The kernel ends all of its processes and mounts when its first process ends. The first process reads a pipe from the
tests, so a machine also ends when the tests are killed. Nothing of it listens outside of its namespaces. /run is empty
at each boot. /var/lib and /var/log are directories of the machine that survive a crash.
"""

import os
import signal
import subprocess
from pathlib import Path

from harness import health
from harness.commands import run
from harness.probes import Probes
from harness.programs import search_path

# PID 1 ignores SIGCHLD, so that the kernel reaps orphans, and ends at the end of its input.
FIRST_PROCESS = """
set -e
mount -t tmpfs tmpfs /run
mount --bind "$1/log" /var/log
mount --bind "$1/lib" /var/lib
echo ready
trap '' CHLD
exec cat
"""


class Machine:
    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        self.processes: dict[str, subprocess.Popen] = {}
        self.commands: dict[str, tuple[object, ...]] = {}
        self.probe_commands: dict[str, list[str]] = {}
        for part in ["log", "lib", "output"]:
            (directory / part).mkdir(parents=True, exist_ok=True)
        self.boot()

    def boot(self) -> None:
        """Starts the first process, also again after a crash."""
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command += ["sh", "-c", FIRST_PROCESS, "sh", str(self.directory)]
        self.unshare = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.unshare.stdout.readline() != "ready\n":
            raise RuntimeError("cannot create namespaces: the tests on a cluster need all capabilities of root")
        [self.pid] = _children(self.unshare.pid)
        self.run("ip", "link", "set", "lo", "up")
        # The path leads to the network of the process that writes.
        self.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.probes = Probes()
        health.MACHINES.append(self)

    def crash(self) -> None:
        """Ends all processes at once, as a loss of power does. Waits until they have ended."""
        if self in health.MACHINES:
            health.MACHINES.remove(self)
        self.probes.stop()
        self.unshare.stdin.close()
        self.unshare.wait()
        self.unshare.stdout.close()
        for process in self.processes.values():
            process.wait()
        self.processes.clear()

    def command(self, *command: object) -> list[str]:
        """A command with all namespaces of the machine."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--", *map(str, command)]

    def network_command(self, *command: object) -> list[str]:
        """A command with the network of the machine, but with the files and processes of the caller."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *map(str, command)]

    def run(self, *command: object, input: str | None = None) -> str:
        return run(self.command(*command), input, env=os.environ | {"PATH": search_path()})

    def start(self, name: str, *command: object, probe: list[str] | None = None) -> None:
        """Starts a program in the background. Its output is in `output/NAME.log`. `probe` succeeds if the program answers."""
        self.commands[name] = command
        if probe:
            self.probe_commands[name] = probe
        with open(self.log(name), "ab") as log:
            self.processes[name] = subprocess.Popen(
                self.command(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"PATH": search_path()},
            )
        self._probe(name)

    def log(self, name: str) -> Path:
        return self.directory / "output" / f"{name}.log"

    def signal(self, name: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a program, such as SIGSTOP. SIGKILL also waits until the program has ended."""
        process = self.processes[name]
        if number in (signal.SIGKILL, signal.SIGSTOP):
            self.probes.remove(name)
        if number == signal.SIGKILL:
            del self.processes[name]
        # Before nsenter has started the program, the signal is for nsenter.
        for pid in _children(process.pid) or [process.pid]:
            os.kill(pid, number)
        if number == signal.SIGKILL:
            process.wait()
        if number == signal.SIGCONT:
            self._probe(name)

    def restart(self, name: str) -> None:
        """Starts a program again with the same command, after its end."""
        if name in self.processes:
            self.signal(name)
        self.start(name, *self.commands[name])

    def ended(self) -> dict[str, int]:
        """Returns the programs that have ended, and their exit status. Those that a test stopped are not among them."""
        statuses = {name: process.poll() for name, process in self.processes.copy().items()}
        return {name: status for name, status in statuses.items() if status is not None}

    def hung(self) -> dict[str, float]:
        """Returns the programs that do not answer, and the seconds since their last answer."""
        return self.probes.hung()

    def all_logs(self) -> list[Path]:
        return sorted((self.directory / "output").glob("*.log"))

    def _probe(self, name: str) -> None:
        if command := self.probe_commands.get(name):
            self.probes.add(name, command)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
