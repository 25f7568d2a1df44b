"""Releases of the chart on three nodes, with an operator's pod for commands."""

import json
import os
import time
from pathlib import Path

from harness import LIMIT_S, Cluster, CommandFailed, until
from harness.programs import TOOLS
from nodes import data
from nodes.pods import Audit, Pod, Training, environment, pod
from releases import Release

OPERATOR_NODE = "node-1"


def overrides() -> dict:
    """Values of the JSON file in FEEDLINE_CLUSTER_VALUES, which take precedence in all releases."""
    path = os.environ.get("FEEDLINE_CLUSTER_VALUES")
    return json.loads(Path(path).read_text()) if path else {}


def merge(*values: dict) -> dict:
    """Merges maps; later values take precedence."""
    result: dict = {}
    for value in values:
        for key, item in value.items():
            both = isinstance(item, dict) and isinstance(result.get(key), dict)
            result[key] = merge(result[key], item) if both else item
    return result


# Small enough for three nodes on one machine; everything else has the chart's defaults.
VALUES = {
    # Rows in caches would hide how long a job waits for the workers that compute them.
    "coordinators": {
        "extraArgs": ["--auto-cache=off"],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    },
    "workers": {
        "min": 1,
        "max": 4,
        "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        "cache": {"size": "1Gi"},
        "extraVolumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}],
        "extraVolumeMounts": [{"name": "data", "mountPath": data.MOUNT, "readOnly": True}],
    },
    "stores": {"allowUrls": [data.MOUNT]},
}
# A fixed number of workers, for tests that do not scale.
FIXED = {"autoscaling": {"mode": "none"}}


class NodeRelease(Release):
    """A release on real nodes, in a namespace of its own with the Pod Security Standard `restricted`."""

    prefix = "demo-feedline"  # of the names of all objects

    def __init__(self, cluster: Cluster, namespace: str, major: int = 4) -> None:
        super().__init__(cluster, namespace, major)
        self.values: dict = {}
        self.secret_name = ""  # of the user's own keys
        self.operator: Pod | None = None
        self.jobs: list[Training] = []
        cluster.create_namespace(namespace)
        cluster.apply(*data.volume(cluster, namespace), namespace=namespace)

    # Helm.

    def install(self, values: dict = {}, *flags: str) -> str:
        self.values = merge(VALUES, values, overrides())
        return super().install(self.values, *flags)

    def upgrade(self, values: dict = {}, *flags: str) -> str:
        """Changes some of the values."""
        self.values = merge(self.values, values)
        return super().upgrade(self.values, *flags)

    @property
    def is_secure(self) -> bool:
        return self.values.get("auth", {}).get("mode") != "insecure"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://{self.prefix}.{self.namespace}.svc:7070"

    @property
    def secret(self) -> str:
        """The Secret with the keys, or nothing without keys."""
        return (self.secret_name or f"{self.prefix}-keys") if self.is_secure else ""

    # Jobs.

    def train(self, name: str, pipeline: dict, *flags: object, **options: object) -> Training:
        options = {"secret": self.secret, "node": OPERATOR_NODE} | options
        return Training(self.cluster, self.namespace, name).start(self.url, pipeline, *flags, **options)

    def audit(self, name: str, pipeline: dict, *flags: object, **options: object) -> Audit:
        options = {"secret": self.secret, "node": OPERATOR_NODE} | options
        return Audit(self.cluster, self.namespace, name).start(self.url, pipeline, *flags, **options)

    # The state.

    def feedline(self, *command: object) -> str:
        return self.operator_exec("feedline", *command)

    def operator_exec(self, *command: object) -> str:
        """Runs a command of an operator, in a pod that the first call starts."""
        if not self.operator:
            idle = ["python3", "-c", "import signal; signal.pause()"]
            variables = environment(self.url, self.secret, "admin.token")
            self.cluster.apply(
                pod("operator", self.namespace, idle, variables, self.secret, OPERATOR_NODE), namespace=self.namespace
            )
            self.cluster.wait("pod/operator", "condition=Ready", self.namespace)
            self.operator = Pod(self.cluster, self.namespace, "operator")
        return self.operator.exec(*command)

    def members(self) -> list[dict]:
        return json.loads(self.feedline("members", "list", "--json"))

    def top(self) -> dict:
        return json.loads(self.feedline("top", "--once", "--format=json"))

    def leader(self) -> str:
        """Returns the pod of the leader."""
        [url] = [member["url"] for member in self.members() if member["leads"]]
        return url.partition("://")[2].partition(".")[0]

    def certificate_expiry(self) -> dict[str, float]:
        """Returns the Unix time at which the certificate of each pod expires, from its metrics."""
        metric, expiry = "feedline_tls_certificate_expiry_timestamp_seconds", {}
        for role, port in [("coordinator", 7170), ("worker", 7171)]:
            for name in self._pods(role):
                address = self.get(f"pod/{name}")["status"]["podIP"]
                text = self.operator_exec("python3", "-B", "/observer.py", "--once", f"{address}:{port}")
                expiry[name] = next(
                    float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{metric} ")
                )
        return expiry

    def node_of(self, name: str) -> str:
        return self.get(f"pod/{name}")["spec"]["nodeName"]

    def move_leader(self, avoid: str) -> str:
        """Moves leadership away from a node, and returns the pod of the leader."""
        leader = self.leader()
        if self.node_of(leader) != avoid:
            return leader
        for member in self.members():
            name = member["url"].partition("://")[2].partition(".")[0]
            if self.node_of(name) != avoid and member["votes"]:
                self.feedline("members", "transfer-leader", member["id"])
                until(lambda name=name: self.leader() == name, f"{name} leads")
                return name
        raise AssertionError(f"all coordinators run on {avoid}")

    def until_voters(self, count: int, timeout: float = LIMIT_S) -> float:
        """Waits until the leader hears all of this number of voters, and returns the seconds that it took."""
        begun = time.monotonic()

        def done() -> bool:
            members = self.members()
            return len(members) == count and all(member["votes"] and member["is_heard"] for member in members)

        until(tolerant(done), f"{count} voters", timeout)
        return round(time.monotonic() - begun, 1)

    def workers(self) -> list[str]:
        return self._pods("worker")

    def coordinators(self) -> list[str]:
        return self._pods("coordinator")

    def kill(self, name: str) -> None:
        """Ends a pod at once, as a crash does."""
        self.cluster.kubectl(
            "delete", "pod", name, "--namespace", self.namespace, "--grace-period=0", "--force", "--wait=false"
        )

    def container_of(self, name: str) -> tuple[str, str]:
        """Returns the node of a pod, and the id of its first container there."""
        pod = self.get(f"pod/{name}")
        return pod["spec"]["nodeName"], pod["status"]["containerStatuses"][0]["containerID"].removeprefix(
            "containerd://"
        )

    def kill_container(self, node: str, container: str) -> None:
        """Ends a container without the API server, as a crash does. The kubelet starts it again."""
        ctr = [TOOLS / "ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", container]
        self.cluster.nodes[node].machine.run(*ctr)

    def until_ready(self, timeout: float = LIMIT_S) -> None:
        """Waits until both roles have all their pods."""
        for kind, role in [("statefulset", "coordinator"), ("deployment", "worker")]:
            self.cluster.kubectl(
                "rollout",
                "status",
                f"{kind}/{self.prefix}-{role}",
                "-n",
                self.namespace,
                f"--timeout={timeout}s",
                timeout=timeout + 30,
            )

    def delete_claims(self, count: int) -> None:
        """Deletes the claims of coordinators that were removed, as the procedure for growing again demands."""
        for claim in self.get("pvc")["items"]:
            name = claim["metadata"]["name"]
            if name.startswith(f"data-{self.prefix}-coordinator-") and int(name.rpartition("-")[2]) >= count:
                self.cluster.kubectl("delete", "pvc", name, "-n", self.namespace)
        recycle_volumes(self.cluster)

    def logs(self) -> str:
        """Returns the last log lines of all pods of the release, for the message of a failed test."""
        flags = [f"--selector=app.kubernetes.io/instance={self.name}", "--tail=25", "--prefix", "--max-log-requests=20"]
        # It fails if one of the containers has not started.
        return self.cluster.kubectl_result("logs", *flags, "-n", self.namespace).stdout

    def _bound_volumes(self) -> list[str]:
        volumes = self.cluster.kubectl_json("get", "persistentvolumes")["items"]
        bound = [item for item in volumes if item["status"]["phase"] == "Bound"]
        return [item["metadata"]["name"] for item in bound if item["spec"]["claimRef"]["namespace"] == self.namespace]

    def _pods(self, component: str) -> list[str]:
        selector = f"--selector=app.kubernetes.io/component={component}"
        listed = self.cluster.kubectl_json("get", "pods", selector, "--namespace", self.namespace)
        return sorted(
            item["metadata"]["name"] for item in listed["items"] if "deletionTimestamp" not in item["metadata"]
        )

    def remove(self) -> None:
        """Ends all pods and empties the volumes. The namespace disappears in the background, after many seconds."""
        own = ["--all", "-n", self.namespace]
        # Without the objects that would create the pods again.
        owners = "statefulsets,deployments,jobs,cronjobs"
        self.cluster.kubectl("delete", owners, *own, "--cascade=background", "--wait=false")
        self.cluster.kubectl("delete", "pods", *own, "--force", "--grace-period=0")
        self.cluster.kubectl("delete", "pvc", *own, f"--timeout={LIMIT_S}s", timeout=LIMIT_S + 30)
        until(lambda: not self._bound_volumes(), "the volumes are released")
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")
        recycle_volumes(self.cluster)


def recycle_volumes(cluster: Cluster) -> None:
    """Makes the volumes of deleted claims available again, without their files."""
    volumes = cluster.kubectl_json("get", "persistentvolumes")["items"]
    released = {item["metadata"]["name"] for item in volumes if item["status"]["phase"] == "Released"}
    if not released:
        return
    cluster.kubectl("delete", "persistentvolumes", *sorted(released))
    own = [
        volume for node in cluster.nodes.values() for volume in node.volumes() if volume["metadata"]["name"] in released
    ]
    for volume in own:
        node = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"][0]
        wipe(cluster, node, volume["spec"]["local"]["path"])
    if own:
        cluster.apply(*own)


def wipe(cluster: Cluster, node: str, path: str) -> None:
    """Deletes all files of a volume, also while a pod uses it."""
    cluster.nodes[node].machine.run("find", path, "-mindepth", "1", "-delete")


def tolerant(condition):
    """A condition that is false while its commands fail, as they do without a leader."""

    def check() -> object:
        try:
            return condition()
        except CommandFailed:
            return False

    return check
