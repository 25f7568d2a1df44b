"""Commands that the chart and the documentation print, executed as printed, and messages for mistakes."""

import json
import re

import pytest
from harness import CommandFailed, until
from harness.programs import REPOSITORY
from nodes.authority import Authority
from nodes.release import FIXED

# Helm 4 waits only for hooks then: the pods cannot become ready.
NO_WAIT = "--wait=hookOnly"
RUNBOOKS = REPOSITORY / "docs/runbooks/README.md"


def test_printed_commands(release):
    """The commands of the notes and the runbooks, `helm test`, and an uninstallation that keeps volumes and Secrets."""
    other = f"{release.namespace}-training"
    release.cluster.create_namespace(other)
    notes = release.install(FIXED | {"workers": {"replicas": 1}, "clients": {"namespaces": [other]}})
    token, test, *deletions = re.findall(r"^  ((?:kubectl|helm) .*)$", notes, re.MULTILINE)
    assert " get secret " in token and test.startswith("helm test ") and all(" delete " in line for line in deletions)
    assert release.cluster.shell(token).count(".") >= 1, "the first command prints no token"

    # The function assumes another namespace, and is defined in a shell of its own for each command.
    [function] = re.findall(r"^```bash\n(.*?)^```$", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    function = function.replace("--namespace ml", f"--namespace {release.namespace}")
    function = function.replace(".ml.svc", f".{release.namespace}.svc")
    runbook = lambda command: release.cluster.shell(f"{function}\n{command}")  # noqa: E731
    assert len(json.loads(runbook("feedline members list --json"))) == 3
    assert "worker" in runbook("feedline top --once")

    assert "Phase:" in release.cluster.shell(test)
    scale = ["scale", f"deployment/{release.prefix}-worker", "-n", release.namespace]
    release.cluster.kubectl(*scale, "--replicas=0")
    until(lambda: json.loads(runbook("feedline top --once --format=json"))["workers"] == [], "no worker reports")
    with pytest.raises(CommandFailed):
        release.cluster.shell(test)
    # Helm keeps the pod, whose log states the reason. A container that did not start has no log.
    logs = release.cluster.kubectl_result("logs", f"{release.prefix}-test", "--all-containers", "-n", release.namespace)
    assert "0 workers report, but --min-workers is 1" in logs.stdout, logs

    release.uninstall()
    until(lambda: not release.coordinators() and not release.workers(), "all pods ended")
    assert len(own(release, "pvc")) == 3 and own(release, "secret")
    for line in deletions:
        release.cluster.shell(line)
    assert not own(release, "pvc") and not own(release, "secret")
    secrets = release.cluster.kubectl_json("get", "secrets", "-n", other)["items"]
    assert not secrets, [item["metadata"]["name"] for item in secrets]
    release.cluster.kubectl("delete", "namespace", other, "--wait=false")


def own(release, kind: str) -> list[str]:
    """Returns the names of objects that the release has created."""
    names = [item["metadata"]["name"] for item in release.get(kind)["items"]]
    return [name for name in names if release.prefix in name]


def test_wrong_flag(release):
    release.install(FIXED | {"coordinators": {"extraArgs": ["--auto-cache=often"]}}, NO_WAIT)
    message = termination_message(release, f"{release.prefix}-coordinator-0")
    assert "--auto-cache" in message and "often" in message, message
    assert "\n" not in message and "Usage" not in message, message


def test_missing_secret(release):
    """Helm finds the mistake, because it can read the cluster."""
    with pytest.raises(CommandFailed) as failed:
        release.install({"auth": {"mode": "existingSecret", "existingSecret": "absent"}})
    assert f"the Secret absent does not exist in the namespace {release.namespace}" in failed.value.stderr


def test_certificate_of_another_name(release):
    authority = Authority(release.cluster, release.cluster.state / release.namespace, ["elsewhere.example.org"])
    metadata = {"name": "own-keys"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": authority.files()}
    release.cluster.apply(secret, namespace=release.namespace)
    release.install(FIXED | {"auth": {"mode": "existingSecret", "existingSecret": "own-keys"}}, NO_WAIT)
    name = f"{release.prefix}-coordinator-0"
    message = termination_message(release, name)
    assert f"{name}." in message and "elsewhere.example.org" in message, message


def termination_message(release, pod: str) -> str:
    """Waits until the only container of a pod has ended, and returns its message in `kubectl describe`."""

    def described() -> str | None:
        text = release.cluster.kubectl("describe", "pod", pod, "-n", release.namespace)
        found = re.search(r"Reason: +Error\n +Message: +(.*?)\n +Exit Code: +(\d+)", text, re.DOTALL)
        return found and found[1].strip()

    message = until(described, f"{pod} has ended with a message")
    print(f"termination message: {message}")
    log = release.cluster.kubectl_result("logs", pod, "-n", release.namespace, "--previous").stdout
    log += release.cluster.kubectl_result("logs", pod, "-n", release.namespace).stdout
    assert " ".join(message.split()) in " ".join(log.split()), log
    return message
