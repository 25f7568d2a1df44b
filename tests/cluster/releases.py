"""Releases of the chart in a cluster."""

import json
from pathlib import Path

from harness import Cluster
from harness.programs import REPOSITORY

CHART = REPOSITORY / "helm/feedline"


class Release:
    """The release `demo` of the chart in one namespace, by Helm 3 or 4."""

    name, chart = "demo", CHART

    def __init__(self, cluster: Cluster, namespace: str, major: int = 4) -> None:
        self.cluster, self.namespace, self.major = cluster, namespace, major

    def install(self, values: dict = {}, *flags: str) -> str:
        return self._run(["install", self.name, CHART, "--wait", "--timeout=5m", *flags], values)

    def upgrade(self, values: dict = {}, *flags: str, chart: Path = CHART) -> str:
        """Replaces all values."""
        return self._run(["upgrade", self.name, chart, "--wait", "--timeout=5m", *flags], values)

    def rollback(self, revision: int) -> str:
        return self._run(["rollback", self.name, str(revision), "--wait", "--timeout=5m"])

    def uninstall(self) -> str:
        return self._run(["uninstall", self.name, "--wait", "--timeout=5m"])

    def get(self, resource: str) -> dict:
        return self.cluster.kubectl_json("get", resource, "--namespace", self.namespace)

    def _run(self, command: list, values: dict | None = None) -> str:
        flags = ["--namespace", self.namespace]
        if values is not None:
            flags.append("--values=-")
        text = None if values is None else json.dumps(values)
        return self.cluster.helm(self.major, *command, *flags, input=text)


def template(cluster: Cluster, major: int, values: dict = {}, namespace: str = "ml", version: str = "1.37") -> str:
    """Returns the manifests of the chart for a version of Kubernetes, with hooks and tests."""
    command = ["template", Release.name, CHART, "--namespace", namespace, "--values=-", "--kube-version", version]
    return cluster.helm(major, *command, input=json.dumps(values))
