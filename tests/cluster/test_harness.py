"""The harness without the programs of a cluster: dead programs fail a test at once, and killed runs do no harm."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import require
from harness import cgroups, cluster, commands, health
from harness.machine import Machine
from harness.probes import Probes
from harness.programs import missing_in_system

# Starts what a run has when it is killed: a machine with a program, and a locked directory.
RUN = """
import sys
from pathlib import Path
from harness import cluster
from harness.machine import Machine

directory = Path(sys.argv[1])
cluster.STATE = directory / "clusters"
with cluster._locked(cluster.STATE):
    state = cluster.STATE / "abcdef"
    state.mkdir()
    lock = cluster._lock(state)
machine = Machine("machine", state / "machine")
machine.start("program", "sleep", "1000")
print(machine.pid, flush=True)
sys.stdin.read()
"""


@dataclass
class FakeMachine:
    """A machine with one program, of which the test decides when it ends or hangs."""

    directory: Path
    name: str = "node-1"
    statuses: dict[str, int] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)

    def ended(self) -> dict[str, int]:
        return self.statuses

    def hung(self) -> dict[str, float]:
        return self.silent

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def all_logs(self) -> list[Path]:
        return [self.log("kubelet")]


@pytest.fixture
def machine(tmp_path, monkeypatch) -> FakeMachine:
    machine = FakeMachine(tmp_path)
    machine.log("kubelet").write_text("started\npanic\n")
    monkeypatch.setattr(health, "MACHINES", [machine])
    monkeypatch.setattr(health, "REPORTS", tmp_path / "reports")
    return machine


def test_a_program_that_ends_fails_a_condition_at_once(machine):
    machine.statuses["kubelet"] = 2
    with pytest.raises(
        health.ProgramFailed, match="(?s)node-1: kubelet ended with status 2\n.*started\npanic\nall logs: "
    ):
        commands.until(lambda: False, "never")


def test_a_program_that_ends_fails_a_running_command_at_once(machine):
    timer = threading.Timer(0.2, lambda: machine.statuses.update(kubelet=-9))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(health.ProgramFailed, match="kubelet ended with status -9"):
        commands.run(["sleep", "600"])
    assert time.monotonic() - begun < 60
    timer.join()


def test_a_program_that_hangs_fails_a_condition(machine):
    machine.silent["kubelet"] = 250
    with pytest.raises(health.ProgramFailed, match="(?s)node-1: kubelet has not answered for 250 s\n.*started\npanic"):
        commands.until(lambda: False, "never")


def test_a_program_hangs_if_its_probe_fails_for_long(tmp_path):
    answering = tmp_path / "answering"
    answering.touch()
    probes = Probes(pause=0.01, hung_after=1)
    probes.add("etcd", ["test", "-e", str(answering)])
    probes.add("dns", ["true"])
    answering.unlink()
    commands.until(probes.hung, "etcd does not answer")
    assert list(probes.hung()) == ["etcd"]
    answering.touch()
    commands.until(lambda: not probes.hung(), "etcd answers again")
    answering.unlink()
    probes.remove("etcd")  # as a test does before it stops the program
    assert "etcd" not in probes.hung()
    probes.stop()


def test_a_limit_names_the_file_with_all_logs(machine, tmp_path):
    for wait in [lambda: commands.until(lambda: 0, "never", 0.01), lambda: commands.run(["sleep", "9"], timeout=0.01)]:
        with pytest.raises(TimeoutError, match="all logs: ") as error:
            wait()
        report = Path(str(error.value).rpartition("all logs: ")[2])
        assert report.name.startswith("test_a_limit_names_the_file_with_all_logs-")
        assert "--- node-1 kubelet.log\nstarted\npanic\n" in report.read_text()


def test_a_slow_command_receives_all_of_its_input(machine):
    text = "line\n" * 100_000
    assert commands.run(["sh", "-c", "sleep 1.1; cat"], text) == text


def test_a_command_reads_no_standard_input_of_the_tests(machine):
    assert commands.run(["cat"]) == ""


def test_a_killed_run_leaves_no_process_and_its_files_are_removed(tmp_path, monkeypatch):
    require(missing_in_system(0))
    monkeypatch.setattr(cluster, "STATE", tmp_path / "clusters")
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": Path(__file__).parent}
    with subprocess.Popen([sys.executable, "-B", "-c", RUN, tmp_path], **options) as run:
        pid = int(run.stdout.readline())
        cluster.remove_leftovers()
        assert (tmp_path / "clusters/abcdef").exists(), "another run uses it"
        run.send_signal(signal.SIGKILL)
    commands.until(lambda: not Path(f"/proc/{pid}").exists(), "the machine ended")
    cluster.remove_leftovers()
    assert not (tmp_path / "clusters/abcdef").exists()


def test_a_machine_works_in_a_long_path_with_a_strict_umask(tmp_path):
    require(missing_in_system(0))
    before = os.umask(0o077)
    try:
        machine = Machine("machine", tmp_path / ("long" * 30))
        machine.start("program", "sleep", "1000")
        assert machine.run("cat", "/proc/1/comm") == "cat\n"
        machine.restart("program")
        assert machine.ended() == {}
        machine.crash()
    finally:
        os.umask(before)
    assert machine not in health.MACHINES


def test_the_clients_of_the_api_server_do_not_wait_long_after_an_outage(monkeypatch):
    """All but the kubelets, whose restart would disturb pods, are started again."""
    restarted = []

    class Programs:
        def __init__(self, *names: str) -> None:
            self.processes, self.machine = dict.fromkeys(names), self

        def signal(self, name: str) -> None:
            del self.processes[name]

        def start_api_server(self, unreachable_seconds: int) -> None:
            self.processes["apiserver"] = None

        def restart(self, name: str) -> None:
            restarted.append(name)

    stopped = cluster.Cluster.__new__(cluster.Cluster)
    stopped.unreachable_seconds = 10
    stopped.control_plane = Programs("etcd", "apiserver", "controllers", "scheduler", "dns")
    stopped.nodes = {"node-1": Programs("containerd", "kubelet", "proxy")}
    applied = []
    monkeypatch.setattr(cluster.Cluster, "apply", lambda self, *objects: applied.append(objects))
    monkeypatch.setattr(cluster.Cluster, "wait", lambda self, *arguments, **options: None)
    monkeypatch.setattr(cluster.Cluster, "kubectl", lambda self, *arguments: None)
    stopped.stop_api_server()
    assert list(stopped.control_plane.processes) == ["etcd", "dns"]
    stopped.start_api_server()
    assert restarted == ["controllers", "scheduler", "dns", "proxy"]
    for _ in range(2):
        stopped.until_recovered()
    assert applied == [(cluster.PROBE,)], "once for each outage"


def test_cgroups_of_processes_that_still_end_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "is_unified", lambda: True)
    (tmp_path / "feedline-test-1/pod").mkdir(parents=True)
    busy = tmp_path / "feedline-test-1/pod/process"  # A folder with a file cannot be removed.
    busy.touch()
    timer = threading.Timer(0.2, busy.unlink)
    timer.start()
    cgroups.remove("feedline-test-1")
    assert not list(tmp_path.iterdir())
    timer.join()
