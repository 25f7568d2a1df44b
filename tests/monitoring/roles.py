"""Starts and stops real roles of Feedline."""

import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from preparation.ports import MONITORING, Ports  # noqa: E402

ROOT = Path(__file__).parents[2]


def find_binary() -> str | None:
    """Returns the program in FEEDLINE_BINARY, or of `make build`."""
    path = Path(os.environ.get("FEEDLINE_BINARY", ROOT / "target/debug/feedline"))
    return str(path) if path.exists() else None


_ports = Ports(MONITORING)


def free_port() -> int:
    """Returns a free port. No port is returned twice, so that a role that starts again finds its own free."""
    [port] = _ports.take(1)
    return port


class Role:
    """A running role with its addresses."""

    def __init__(self, flags: list[str], log: Path):
        self.flags, self.log = flags, log
        self.process: subprocess.Popen | None = None
        self.addresses: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen([find_binary(), *self.flags], stdout=subprocess.PIPE, stderr=log, text=True)
        expected = {"listening", "http"} if "--http" in self.flags else {"listening"}
        while not expected <= set(self.addresses):
            line = self.process.stdout.readline()
            assert line, f"{self.flags} ended; all of its log is in {self.log}:\n{self.last_lines()}"
            words = line.split()
            self.addresses[words[2]] = words[-1]

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text().splitlines()[-15:])

    @property
    def http(self) -> str:
        return self.addresses["http"]

    @property
    def address(self) -> str:
        return self.addresses["listening"]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def restart(self) -> None:
        """Kills the role and starts it at the same addresses."""
        self.kill()
        self.addresses.clear()
        self.start()


class Roles:
    """All roles and commands of the tests, with their directories."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.running: list[Role] = []
        self.commands: list[subprocess.Popen] = []

    def start(self, name: str, *flags: str) -> Role:
        role = Role([*flags, "--http", f"127.0.0.1:{free_port()}"], self.folder / f"{name}.log")
        self.running.append(role)
        return role

    def start_coordinators(self, name: str, count: int) -> tuple[list[Role], str]:
        """Starts coordinators of one cluster, and returns them with their URLs."""
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        urls = ",".join(f"http://{address}" for address in addresses)
        peers = ["--peers", urls] if count > 1 else []

        def start(number: int) -> Role:
            data_dir = str(self.folder / f"{name}-{number}")
            flags = ["--listen", addresses[number], "--data-dir", data_dir, *peers]
            return self.start(f"{name}-{number}", "coordinator", *flags)

        return [start(number) for number in range(count)], urls

    def start_worker(self, name: str, urls: str, *flags: str) -> Role:
        listen = f"127.0.0.1:{free_port()}"
        own = ["--listen", listen, "--coordinator", urls, "--cores", "1", "--memory", "256MiB"]
        return self.start(name, "worker", *own, *flags)

    def run_job(
        self, name: str, urls: str, source: str, operators: str, *flags: str, form: str = "jsonl", epochs: int = 100_000
    ) -> None:
        """Starts a job that continues until the end of the tests."""
        path = self.folder / f"{name}.yaml"
        path.write_text(f"name: {name}\nsource: {{ url: {source}, format: {form} }}\noperators:\n{operators}")
        log = (self.folder / f"{name}.log").open("w")
        own = ["--coordinator", urls, "--job", name, "--epochs", str(epochs)]
        command = [find_binary(), "run", str(path), *own, *flags]
        self.commands.append(subprocess.Popen(command, stdout=log, stderr=log))
        log.close()

    def create_table(self) -> str:
        """Creates a dataset and returns its URL."""
        folder = self.folder / "table"
        if not folder.exists():
            self.call("make-data", "table", str(folder), "--rows", "2000", "--format", "jsonl", "--shards", "2")
        return f'"{folder}/*"'

    def create_keys(self) -> Path:
        """Creates certificates that are valid for one day."""
        keys = self.folder / "keys"
        if not keys.exists():
            self.call("keys", "new", str(keys), "--days", "1")
        return keys

    def call(self, *arguments: str) -> str:
        result = subprocess.run([find_binary(), *arguments], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def check_commands(self) -> None:
        """Fails if a job ended."""
        ended = [command.args for command in self.commands if command.poll() is not None]
        assert not ended, f"jobs ended: {ended}; see the logs in {self.folder}"

    def stop(self, roles: int = 0, commands: int = 0) -> None:
        """Stops all roles and commands but the first ones."""
        for command in self.commands[commands:]:
            command.kill()
            command.wait()
        for role in self.running[roles:]:
            role.kill()
        del self.commands[commands:], self.running[roles:]
