"""Pods of the tests: training programs, an operator's shell, and jobs with an audit."""

import json
import statistics
from dataclasses import dataclass, field

from harness import LIMIT_S, Cluster, until
from nodes import data
from nodes.images import TRAINER

SECURITY = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
KEYS = "/etc/feedline/keys"
# More epochs than a training program of a test needs.
EPOCHS = 60


def pod(
    name: str,
    namespace: str,
    command: list,
    env: dict[str, str],
    secret: str = "",
    node: str = "",
    pipeline: dict | None = None,
) -> dict:
    """A pod of the training image. `secret` has the keys of a client, and `node` is where it must run."""
    volumes = [{"name": "tmp", "emptyDir": {}}]
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    if secret:
        volumes.append({"name": "keys", "secret": {"secretName": secret}})
        mounts.append({"name": "keys", "mountPath": KEYS, "readOnly": True})
    if pipeline is not None:
        volumes.append({"name": "pipeline", "configMap": {"name": name}})
        mounts.append({"name": "pipeline", "mountPath": "/pipeline", "readOnly": True})
    container = {
        "name": "main",
        "image": TRAINER,
        "command": [str(part) for part in command],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "securityContext": SECURITY,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"role": "test"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": POD_SECURITY,
            "containers": [container],
            "volumes": volumes,
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        },
    }


def pipeline_file(name: str, namespace: str, pipeline: dict) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"pipeline.yaml": json.dumps(pipeline)},
    }


@dataclass
class Pod:
    """A pod that prints JSON lines."""

    cluster: Cluster
    namespace: str
    name: str

    def create(self, spec: dict, pipeline: dict, reads_rows: bool) -> None:
        """Creates the pod and the file of its pipeline. A pod that computes its rows itself also mounts the data."""
        if reads_rows:
            spec["spec"]["volumes"].append(
                {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}
            )
            spec["spec"]["containers"][0]["volumeMounts"].append(
                {"name": "data", "mountPath": data.MOUNT, "readOnly": True}
            )
        self.cluster.apply(pipeline_file(self.name, self.namespace, pipeline), spec, namespace=self.namespace)

    def lines(self) -> list[dict]:
        """Reads the log from the disk of its node: also without the API server, and without a process for each call."""
        directories = [node.machine.directory / "log/pods" for node in self.cluster.nodes.values()]
        logs = f"{self.namespace}_{self.name}_*/main/*.log"
        files = [file for directory in directories for file in directory.glob(logs)]
        # Each line begins with its time, its stream and a mark.
        lines = [line.split(" ", 3)[-1] for file in files for line in file.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def phase(self) -> str:
        return self.cluster.kubectl_json("get", "pod", self.name, "--namespace", self.namespace)["status"]["phase"]

    def until_ended(self, timeout: float) -> None:
        """Waits for the end of the pod, and fails with its log unless it succeeded."""
        phase = until(
            lambda: (phase := self.phase()) in ("Succeeded", "Failed") and phase, f"{self.name} ended", timeout
        )
        log = self.cluster.kubectl("logs", self.name, "--namespace", self.namespace, "--tail=30")
        assert phase == "Succeeded", f"{self.name} failed:\n{log}"

    def exec(self, *command: object) -> str:
        return self.cluster.kubectl("exec", self.name, "--namespace", self.namespace, "--", *command)

    def delete(self) -> None:
        self.cluster.kubectl("delete", "pod", self.name, "--namespace", self.namespace, "--now", "--wait=false")


@dataclass
class Received:
    """What a training program received. `digests` has one of all batches up to the end of each epoch."""

    rows: int
    missing: int
    repeated: int
    digests: list[str] = field(repr=False)
    arrivals: list[float] = field(repr=False)

    def waits(self, begin: float = 0, end: float = float("inf")) -> list[float]:
        """Seconds between two batches, of the pairs that overlap with an interval of Unix times."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [after - before for before, after in pairs if after >= begin and before <= end]

    def stall(self, begin: float = 0, end: float = float("inf")) -> float:
        """The longest wait between two batches in an interval minus the median of the whole job."""
        return round(max(self.waits(begin, end)) - statistics.median(self.waits()), 2)

    def check(self, reference: "Received") -> None:
        """Compares with an undisturbed run: the same batches in the same order, and each row once in each epoch."""
        assert (self.missing, self.repeated) == (0, 0), self
        assert self.rows == data.ROWS * len(self.digests), self
        assert self.digests == reference.digests[: len(self.digests)], (
            "the batches differ from those of an undisturbed run"
        )


class Training(Pod):
    """A pod with `trainer.py`. With an empty `url`, all roles run in its process."""

    def start(
        self, url: str, pipeline: dict, *flags: object, epochs: int = EPOCHS, secret: str = "", node: str = ""
    ) -> "Training":
        command = [
            "python3",
            "-B",
            "/trainer.py",
            "/pipeline/pipeline.yaml",
            "--rows",
            data.ROWS,
            "--epochs",
            epochs,
            *flags,
        ]
        spec = pod(self.name, self.namespace, command, environment(url, secret), secret, node, pipeline)
        self.create(spec, pipeline, reads_rows=not url)
        return self

    def until_first(self, timeout: float = LIMIT_S) -> float:
        """Waits for the first batch, and returns its time."""

        def first() -> float | None:
            if found := [line["at"] for line in self.lines() if line.get("event") == "first"]:
                return found[0]
            assert self.phase() != "Failed", self.cluster.kubectl("logs", self.name, "-n", self.namespace)
            return None

        return until(first, f"{self.name} has the first batch", timeout)

    def until_step(self, ms: float, timeout: float = LIMIT_S) -> float:
        """Waits for a change of the time of a step, and returns its time."""

        def first() -> float | None:
            steps = (line for line in self.lines() if line.get("event") == "step")
            return next((line["at"] for line in steps if line["ms"] == ms), None)

        return until(first, f"{self.name} has steps of {ms} ms", timeout)

    def arrivals(self) -> list[float]:
        return [at for line in self.lines() for at in line.get("arrivals", [])]

    def until_steady(self, batches: int = 60, timeout: float = LIMIT_S) -> None:
        """Waits for this number of batches, so that a fault is not one of a job that starts."""
        until(lambda: len(self.arrivals()) >= batches, f"{self.name} has {batches} batches", timeout)

    def until_after(self, at: float, timeout: float = LIMIT_S) -> None:
        """Waits for a batch after a Unix time."""
        until(lambda: max(self.arrivals(), default=0) > at, f"{self.name} has later batches", timeout)

    def stop(self) -> Received:
        """Ends the program at the end of an epoch, and returns what it received."""
        assert self.phase() == "Running", f"{self.name} ended before the end of the test: give it more epochs"
        self.exec("python3", "-c", "open('/tmp/stop', 'w')")
        return self.until_end()

    def until_end(self, timeout: float = 2 * LIMIT_S) -> Received:
        self.until_ended(timeout)
        lines = self.lines()
        end = lines[-1]
        digests = [line["digest"] for line in lines if line.get("event") == "epoch"]
        return Received(end["rows"], end["missing"], end["repeated"], digests, self.arrivals())


class Audit(Pod):
    """A pod with `feedline run --audit`. With an empty `url`, all roles run in its process."""

    def start(
        self, url: str, pipeline: dict, *flags: object, epochs: int = 1, secret: str = "", node: str = ""
    ) -> "Audit":
        command = ["feedline", "run", "/pipeline/pipeline.yaml", "--audit", "--report=json", "--epochs", epochs, *flags]
        spec = pod(self.name, self.namespace, command, environment(url, secret), secret, node, pipeline)
        self.create(spec, pipeline, reads_rows=not url)
        return self

    def until_end(self, timeout: float = 2 * LIMIT_S) -> dict:
        """Returns the report, after a check that each row was delivered once."""
        self.until_ended(timeout)
        report = self.lines()[-1]
        assert report["audit"]["missing"] == report["audit"]["repeated"] == report["audit"]["unexpected"] == 0, report[
            "audit"
        ]
        return report


def environment(url: str, secret: str, token: str = "client.token") -> dict[str, str]:
    """The variables with which commands reach a cluster."""
    keys = (
        {"TLS_CA": "ca.pem", "TLS_CERT": "client.pem", "TLS_KEY": "client-key.pem", "TOKEN_FILE": token}
        if secret
        else {}
    )
    variables = {f"FEEDLINE_{name}": f"{KEYS}/{file}" for name, file in keys.items()}
    return variables | ({"FEEDLINE_COORDINATOR": url} if url else {}) | {"HOME": "/tmp"}
