"""Installs, upgrades, rolls back and uninstalls the chart with Helm 3 and 4."""

import shutil
from pathlib import Path

import pytest

from harness import Cluster
from releases import Release

POOL = "demo-feedline-worker"


@pytest.fixture(params=[3, 4], ids=["helm3", "helm4"])
def release(request, control_plane: Cluster, namespace: str) -> Release:
    return Release(control_plane, namespace, request.param)


def image_of(release: Release, workload: str) -> str:
    return release.get(workload)["spec"]["template"]["spec"]["containers"][0]["image"]


def test_pods_are_ready_after_an_installation(release):
    release.install()
    assert release.get("statefulset/demo-feedline-coordinator")["status"]["readyReplicas"] == 3
    assert release.get(f"deployment/{POOL}")["status"]["readyReplicas"] == 1
    # The hook that creates keys has run, and its permission has ended with it.
    assert job_completions(release) == {"demo-feedline-keys-hook"}
    assert not [item for item in release.get("roles,jobs")["items"] if item["metadata"]["name"].endswith("-hook")]


def test_an_upgrade_and_a_rollback_change_pods_but_not_the_number_of_workers(release):
    release.install({"image": {"tag": "1"}})
    release.cluster.kubectl("scale", f"deployment/{POOL}", "--replicas=4", "--namespace", release.namespace)
    release.upgrade({"image": {"tag": "2"}})
    assert image_of(release, f"deployment/{POOL}") == "feedline:2"
    assert image_of(release, "statefulset/demo-feedline-coordinator") == "feedline:2"
    assert release.get(f"deployment/{POOL}")["status"]["readyReplicas"] == 4
    release.rollback(1)
    assert image_of(release, f"deployment/{POOL}") == "feedline:1"
    assert image_of(release, "statefulset/demo-feedline-coordinator") == "feedline:1"
    assert release.get(f"deployment/{POOL}")["status"]["readyReplicas"] == 4


def test_a_change_of_the_version_of_the_chart_alone_restarts_no_pod(release, tmp_path):
    release.install()
    before = pod_names(release)
    chart = copy_of_chart(tmp_path, release)
    release.upgrade({}, chart=chart)
    assert pod_names(release) == before


def test_an_uninstallation_leaves_only_the_volumes_of_coordinators(release):
    release.install({"tenants": {"default": {"jobs": 4}}})
    before = objects_in(release)
    assert {"StatefulSet", "Deployment", "ConfigMap", "Role", "PodDisruptionBudget"} <= {kind for kind, _ in before}
    release.uninstall()
    release.cluster.watch("pods", lambda pods: not pods, release.namespace)
    assert objects_in(release) == {("PersistentVolumeClaim", f"data-demo-feedline-coordinator-{n}") for n in range(3)}


def test_a_value_with_a_wrong_name_is_refused(release):
    install = ["install", "demo", release.chart, "--namespace", release.namespace]
    error = release.cluster.helm_error(release.major, *install, "--set", "coordinators.replica=1")
    assert "replica" in error and "coordinators" in error, error


def test_a_missing_secret_is_refused(release):
    """Helm reads the Secret in the cluster, once the ConfigMap of each namespace exists."""
    release.cluster.wait("configmap/kube-root-ca.crt", "create", release.namespace)
    values = "auth.mode=existingSecret,auth.existingSecret=my-keys"
    install = ["install", "demo", release.chart, "--namespace", release.namespace, "--set", values]
    error = release.cluster.helm_error(release.major, *install)
    assert f"the Secret my-keys does not exist in the namespace {release.namespace}: create it from" in error, error
    create = ["create", "secret", "generic", "my-keys", "--from-literal=ca.pem=x", "--namespace", release.namespace]
    release.cluster.kubectl(*create)
    error = release.cluster.helm_error(release.major, *install)
    message = f"the Secret my-keys in the namespace {release.namespace} has no key role.pem: create it from"
    assert message in error, error


def job_completions(release: Release) -> set[str]:
    """Names of the jobs that completed, also of deleted ones."""
    events = release.get("events")["items"]
    return {
        event["involvedObject"]["name"]
        for event in events
        if event["reason"] == "Completed" and event["involvedObject"]["kind"] == "Job"
    }


def pod_names(release: Release) -> set[tuple[str, str]]:
    return {(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in release.get("pods")["items"]}


def objects_in(release: Release) -> set[tuple[str, str]]:
    """Returns the kinds and names of all objects in the namespace but those that each namespace has."""
    resources = release.cluster.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    ignored = {"events", "events.events.k8s.io", "pods", "controllerrevisions.apps", "endpoints"}
    found = release.get(",".join(sorted(set(resources) - ignored)))["items"]
    own = {"kube-root-ca.crt", "default"}
    return {
        (item["kind"], item["metadata"]["name"])
        for item in found
        if item["metadata"]["name"] not in own and item["kind"] not in {"EndpointSlice", "ReplicaSet"}
    }


def copy_of_chart(directory: Path, release: Release) -> Path:
    """Copies the chart with another version."""
    copy = directory / "feedline"
    shutil.copytree(release.chart, copy)
    path = copy / "Chart.yaml"
    lines = ["version: 0.99.0" if line.startswith("version:") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    return copy
