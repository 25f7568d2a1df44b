"""The Secret with the keys of a release, and Jobs that change it as the CronJob of the chart does."""

import base64
import json
import time

from nodes.release import NodeRelease

ROTATED_AT = "feedline/secret-rotated-at"


def read_keys(release: NodeRelease) -> dict[str, str]:
    """Returns the files of the Secret."""
    files = release.get(f"secret/{release.secret}")["data"]
    return {name: base64.b64decode(content).decode() for name, content in files.items()}


def changed_files(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def run_renewal(release: NodeRelease, name: str) -> None:
    """Runs the CronJob now, as docs/kubernetes.md describes."""
    release.cluster.kubectl("create", "job", f"--from=cronjob/{release.prefix}-keys", name, "-n", release.namespace)
    release.cluster.wait(f"job/{name}", "condition=Complete", release.namespace)


def run_rotation(release: NodeRelease, name: str) -> None:
    """Replaces the secret of the cluster, with the permissions of the CronJob."""
    create = ["create", "job", f"--from=cronjob/{release.prefix}-keys", name, "-n", release.namespace]
    job = json.loads(release.cluster.kubectl(*create, "--dry-run=client", "--output=json"))
    [container] = job["spec"]["template"]["spec"]["containers"]
    names = [f"--namespace={release.namespace}", f"--secret={release.secret}"]
    container["args"] = ["keys", "apply", *names, "--rotate-secret"]
    release.cluster.apply(job, namespace=release.namespace)
    release.cluster.wait(f"job/{name}", "condition=Complete", release.namespace)


def pretend_rotation(release: NodeRelease, seconds: int) -> None:
    """Changes the time of the last rotation to this number of seconds ago."""
    annotation = f"{ROTATED_AT}={int(time.time()) - seconds}"
    release.cluster.kubectl("annotate", "secret", release.secret, annotation, "--overwrite", "-n", release.namespace)


def count_in_log(release: NodeRelease, pod: str, text: str) -> int:
    return release.cluster.kubectl("logs", pod, "-n", release.namespace).count(text)
