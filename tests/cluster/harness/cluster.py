"""The cluster: starts and ends it, and offers kubectl, Helm, waiting and faults to tests."""

import fcntl
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from harness import cgroups, health
from harness.commands import LIMIT_S, CommandFailed, complete, run, until
from harness.control_plane import ControlPlane
from harness.images import PAUSE, write_pause
from harness.node import Node
from harness.programs import REPOSITORY, TOOLS, search_path

STATE = REPOSITORY / "target/clusters"
CGROUP = "feedline-test"
# Programs that end during an outage of the API server, because they lose the election of a leader.
ELECTED = ["controllers", "scheduler"]
# Programs that reach the API server again only minutes after an outage, because they wait longer after each attempt.
SLOW_CLIENTS = ["dns", "proxy", "kwok"]

STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "WaitForFirstConsumer",
}
# One pod on each node, which needs the controllers, the scheduler and the kubelet.
PROBE = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "probe"},
    "spec": {
        "selector": {"matchLabels": {"app": "probe"}},
        "template": {
            "metadata": {"labels": {"app": "probe"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}],
            },
        },
    },
}
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ["enforce", "warn"]}


class Cluster:
    """A cluster that lives until `stop`, or until the process of the tests ends. Several may run at a time.

    `nodes`: real nodes, at most 9. `images`: archives that all nodes import, with fully qualified names of images.
    `fake_nodes`: nodes of kwok instead, on which pods become ready and jobs complete, but nothing runs.
    `unreachable_seconds`: the time after which pods of a lost node are deleted.
    """

    def __init__(
        self, nodes: int = 0, images: list[Path] = [], fake_nodes: int = 0, unreachable_seconds: int = 10
    ) -> None:
        assert nodes <= 9 and not (nodes and fake_nodes), "at most 9 real nodes, or fake nodes"
        self.unreachable_seconds = unreachable_seconds
        self.id = secrets.token_hex(3)
        self.state = STATE / self.id
        with _locked(STATE):
            remove_leftovers()
            self.state.mkdir()
            self._lock = _lock(self.state)
        self._had_outage = False
        self.control_plane: ControlPlane | None = None
        self.nodes: dict[str, Node] = {}
        try:
            self._start(nodes, images, fake_nodes)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all processes, and removes cgroups and files."""
        for node in self.nodes.values():
            node.machine.crash()
        if self.control_plane:
            self.control_plane.machine.crash()
        _remove(self.state)
        self._lock.close()

    # Commands.

    def kubectl(self, *arguments: object, input: str | None = None, timeout: float = LIMIT_S) -> str:
        """Returns the output of kubectl. Fails with its error message."""
        return run(self.control_plane.kubectl_command(*arguments), input, timeout=timeout)

    def kubectl_json(self, *arguments: object) -> dict:
        return json.loads(self.kubectl(*arguments, "--output=json"))

    def kubectl_result(self, *arguments: object, input: str | None = None) -> subprocess.CompletedProcess:
        """Returns the output and the exit status of a command that may fail."""
        return complete(self.control_plane.kubectl_command(*arguments), input)

    def kubectl_error(self, *arguments: object, input: str | None = None) -> str:
        """Returns the error message of a command that must fail."""
        result = self.kubectl_result(*arguments, input=input)
        assert result.returncode != 0, f"kubectl {' '.join(map(str, arguments))} succeeded: {result.stdout}"
        return result.stderr

    def apply(self, *objects: dict, namespace: str = "default", strict: bool = True) -> str:
        """Creates or changes objects. Unknown and repeated fields are errors."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        validate = "--validate=strict" if strict else "--validate=true"
        return self.kubectl("apply", "--namespace", namespace, validate, "--filename=-", input=text)

    def create_namespace(self, *names: str, labels: dict[str, str] = RESTRICTED) -> None:
        """Creates namespaces, and waits until they admit pods, which need the service account of the controllers."""
        metadata = [{"name": name, "labels": labels} for name in names]
        self.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": item} for item in metadata))
        for name in names:
            account = ["get", "serviceaccount", "default", "--namespace", name]
            until(lambda account=account: self.kubectl_result(*account).returncode == 0, f"{name} admits pods")

    def helm(self, major: int, *arguments: object, input: str | None = None, timeout: float = 2 * LIMIT_S) -> str:
        """Returns the output of Helm 3 or 4."""
        command = self.control_plane.machine.network_command(TOOLS / f"helm{major}", *arguments)
        return run(command, input, env=self._environment(major), timeout=timeout)

    def shell(self, script: str, major: int = 4, timeout: float = LIMIT_S) -> str:
        """Returns the output of a script as a user writes it, with `kubectl` and one of the Helms as `helm`."""
        command = self.control_plane.machine.network_command("bash", "-euo", "pipefail", "-c", script)
        return run(command, env=self._environment(major), timeout=timeout)

    def _environment(self, major: int) -> dict[str, str]:
        home = self.state / f"helm{major}"
        home.mkdir(exist_ok=True)
        if not (home / "helm").exists():
            (home / "helm").symlink_to(TOOLS / f"helm{major}")
        variables = {f"HELM_{kind}_HOME": str(home / kind) for kind in ["CACHE", "CONFIG", "DATA"]}
        path = f"{home}{os.pathsep}{search_path()}"
        return os.environ | variables | {"KUBECONFIG": str(self.control_plane.kubeconfig), "PATH": path}

    def helm_error(self, major: int, *arguments: object) -> str:
        """Returns the error message of a command that must fail."""
        try:
            output = self.helm(major, *arguments)
        except CommandFailed as error:
            return error.stderr
        raise AssertionError(f"helm {' '.join(map(str, arguments))} succeeded: {output}")

    # Waiting.

    def wait(
        self, what: str, condition: str, namespace: str = "default", timeout: float = LIMIT_S, selector: str = ""
    ) -> None:
        """Waits as `kubectl wait` does: for ("pod/a", "condition=Ready") or ("deploy/a", "jsonpath={.status.x}=1")."""
        flags = [f"--selector={selector}"] if selector else []
        command = ["wait", what, f"--for={condition}", "--namespace", namespace, f"--timeout={timeout}s", *flags]
        try:
            self.kubectl(*command, timeout=timeout + 30)
        except CommandFailed as error:
            raise AssertionError(f"{error}\n{self._explain(namespace)}") from None

    def watch(
        self,
        resource: str,
        predicate: Callable[[dict[str, dict]], object],
        namespace: str = "default",
        timeout: float = LIMIT_S,
        selector: str = "",
    ) -> dict[str, dict]:
        """Watches objects until the predicate is true for them. Its argument and the result are the objects by name."""
        flags = ["--namespace", namespace, *([f"--selector={selector}"] if selector else [])]
        end = time.monotonic() + timeout
        while (remaining := end - time.monotonic()) > 0:
            health.check()
            # An object that is deleted between the list and the watch has no event, so each watch is short.
            if (found := self._watch(resource, predicate, flags, min(remaining, 5))) is not None:
                return found
        names = sorted(item["metadata"]["name"] for item in self._list(resource, flags))
        raise AssertionError(f"{resource}: not true after {timeout} s: {names}\n{self._explain(namespace)}")

    def _watch(self, resource: str, predicate: Callable, flags: list[str], timeout: float) -> dict[str, dict] | None:
        found = {item["metadata"]["name"]: item for item in self._list(resource, flags)}
        if predicate(found):
            return found
        watch = ["get", resource, "--watch", "--output-watch-events", "--output=json"]
        command = self.control_plane.kubectl_command(*watch, f"--request-timeout={timeout:.1f}s", *flags)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            for event in _json_values(process.stdout):
                item = event["object"]
                found.pop(item["metadata"]["name"], None)
                if event["type"] != "DELETED":
                    found[item["metadata"]["name"]] = item
                if predicate(found):
                    process.kill()
                    return found
        return None

    def describe(self, namespace: str, lines: int = 100) -> str:
        """Returns pods and the last events of a namespace, for the message of a failed test."""
        request = ["--namespace", namespace, "--request-timeout=5s"]
        pods = self.kubectl_result("get", "pods", "--output=wide", *request).stdout.splitlines()[:lines]
        events = self.kubectl_result("events", *request).stdout.splitlines()[-lines:]
        return "\n".join([*pods, *events])

    def _explain(self, namespace: str) -> str:
        """Returns a short description of a namespace, and the file with a long one and all logs."""
        return f"{self.describe(namespace, 6)}\nall logs: {health.write_report(self.describe(namespace))}"

    # Faults.

    def cut(self, node: str) -> None:
        """Cuts the cable of a node. Its processes continue."""
        self.control_plane.machine.run("ip", "link", "set", self.nodes[node].link, "down")

    def restore(self, node: str) -> None:
        """Repairs the cable of a node."""
        self.control_plane.machine.run("ip", "link", "set", self.nodes[node].link, "up")

    def crash(self, node: str) -> None:
        """Ends all processes of a node at once. Its disk remains."""
        self.nodes[node].machine.crash()

    def boot(self, node: str) -> None:
        """Starts a crashed node again, and waits until it is ready."""
        self.nodes[node].machine.boot()
        self._connect([self.nodes[node]])
        self._start_node(self.nodes[node], [])
        self.wait(f"node/{node}", "condition=Ready")

    def stop_api_server(self) -> None:
        """Ends the API server and what cannot continue without it. Nodes and DNS continue."""
        self._had_outage = True
        for name in [*ELECTED, "apiserver"]:
            self.control_plane.machine.signal(name)

    def start_api_server(self) -> None:
        self.control_plane.start_api_server(self.unreachable_seconds)
        for name in ELECTED:
            self.control_plane.machine.restart(name)
        for machine in [self.control_plane.machine, *(node.machine for node in self.nodes.values())]:
            for name in SLOW_CLIENTS:
                if name in machine.processes:
                    machine.restart(name)

    def until_recovered(self) -> None:
        """Waits until controllers, the scheduler and all kubelets work again after an outage of the API server.

        A kubelet may notice pods only two minutes later, and a restart of it would disturb its pods.
        """
        if not self._had_outage:
            return
        self.apply(PROBE)
        counted = "jsonpath={.status.numberReady}"
        self.wait("daemonset/probe", f"{counted}={len(self.nodes)}", timeout=2 * LIMIT_S)
        self.kubectl("delete", "daemonset", "probe", "--cascade=foreground")
        self._had_outage = False

    # The start.

    def _start(self, nodes: int, images: list[Path], fake_nodes: int) -> None:
        self.control_plane = ControlPlane(self.state / "control-plane")
        for number in range(1, nodes + 1):
            name = f"node-{number}"
            cgroup = f"{CGROUP}-{self.id}-{number}"
            self.nodes[name] = Node(number, self.state / name, self.control_plane, cgroup)
        self._connect(list(self.nodes.values()))
        archives = [write_pause(self.state / "pause.tar", TOOLS / "pause"), *images] if nodes else []
        with ThreadPoolExecutor() as pool:
            # A short time until a lost node is noticed. Fake nodes report less often.
            grace = 50 if fake_nodes else 8
            starts = [pool.submit(self.control_plane.start, self.unreachable_seconds, grace)]
            starts += [pool.submit(self._start_node, node, archives) for node in self.nodes.values()]
            for start in starts:
                start.result()
        if fake_nodes:
            self._add_fake_nodes(fake_nodes)
        if nodes:
            self.control_plane.start_dns()
            volumes = [volume for node in self.nodes.values() for volume in node.volumes()]
            self.apply(STORAGE_CLASS, *volumes)
            for node in self.nodes:
                self.wait(f"node/{node}", "create")
                self.wait(f"node/{node}", "condition=Ready")

    def _connect(self, nodes: list[Node]) -> None:
        for node in nodes:
            node.connect()
            self.control_plane.machine.run("ip", "route", "replace", node.pods, "via", node.address)
            for other in self.nodes.values():
                if other is not node:
                    node.add_route(other)

    def _start_node(self, node: Node, archives: list[Path]) -> None:
        node.start_containerd()
        for archive in archives:
            node.import_image(archive)
        node.start_kubelet()
        node.start_proxy()

    def _add_fake_nodes(self, count: int) -> None:
        capacity = {"cpu": "256", "memory": "1Ti", "pods": "250", "ephemeral-storage": "1Ti"}
        nodes = [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": f"node-{number}",
                    "labels": {
                        "kubernetes.io/hostname": f"node-{number}",
                        "kubernetes.io/os": "linux",
                        "topology.kubernetes.io/zone": f"zone-{number % 3}",
                    },
                },
                "status": {"allocatable": capacity, "capacity": capacity},
            }
            for number in range(1, count + 1)
        ]
        self.apply(*nodes)
        self.control_plane.start_fake_nodes()
        self.wait("node", "condition=Ready", selector="kubernetes.io/os=linux")

    def _list(self, resource: str, flags: list[str]) -> list[dict]:
        listed = self.kubectl_json("get", resource, *flags)
        return listed["items"] if "items" in listed else [listed]


def remove_leftovers() -> None:
    """Removes what killed tests left: their processes end with them, but not their cgroups and files."""
    for state in [path for path in STATE.iterdir() if path.is_dir()]:
        if lock := _lock(state):
            _remove(state)
            lock.close()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks the directory of all clusters, so that nobody removes a new cluster before it has its own lock."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lock(state: Path):
    """Locks a state directory, or returns None if other tests use it or have removed it."""
    try:
        lock = open(state / "lock", "w")  # noqa: SIM115
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _remove(state: Path) -> None:
    cgroups.remove(f"{CGROUP}-{state.name}-")
    shutil.rmtree(state, ignore_errors=True)


def _json_values(stream) -> Iterator[dict]:
    """Yields the JSON values of a stream as soon as they are complete."""
    decoder, text = json.JSONDecoder(), ""
    while chunk := stream.read1(1 << 16):
        text += chunk.decode()
        while text := text.lstrip():
            try:
                value, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                break
            yield value
            text = text[end:]
