"""Trainers with keys: in another namespace, while certificates expire, and while keys are renewed and rotated."""

import json
import threading
import time

import pytest
from harness import until
from nodes import data
from nodes.authority import Authority
from nodes.keys import changed_files, count_in_log, pretend_rotation, read_keys, run_renewal, run_rotation
from nodes.pods import KEYS, Received, Training
from nodes.release import FIXED, OPERATOR_NODE, NodeRelease
from nodes.results import record

VALID_S, RENEW_S, JOB_S = 120, 45, 360
TOKENS = {"worker.token", "client.token", "admin.token"}
CERTIFICATES = {"role.pem", "role-key.pem", "client.pem", "client-key.pem"}
# Time until changed files reach all pods, which read them every five seconds.
LOADED_S = 300
STALL_S = 5
WAIT_MS = 5


def test_trainer_in_another_namespace(release, reference):
    """A hook copies the CA, a client certificate and a token to the namespace of the trainer."""
    other = f"{release.namespace}-training"
    release.cluster.create_namespace(other)
    clients = {"namespaces": [other], "scopes": ["submit", "consume"]}
    release.install(FIXED | {"auth": {"mode": "generate"}, "workers": {"replicas": 2}, "clients": clients})
    names = release.cluster.kubectl_json("get", "secret", "feedline-client", "-n", other)["data"]
    assert "secret" not in names and "admin.token" not in names, sorted(names)

    training = Training(release.cluster, other, "training")
    training.start(release.url, data.pipeline(), epochs=2, secret="feedline-client", node=OPERATOR_NODE)
    training.until_end().check(reference)
    release.cluster.kubectl("delete", "namespace", other)


class Renewals:
    """Renews all certificates in the Secret `own-keys` again and again, in the background."""

    def __init__(self, release: NodeRelease) -> None:
        domain = f"{release.namespace}.svc"
        coordinator = f"{release.prefix}-coordinator"
        hosts = [f"{coordinator}-{ordinal}.{coordinator}.{domain}" for ordinal in range(3)]
        directory = release.cluster.state / release.namespace
        self.release = release
        self.authority = Authority(release.cluster, directory, [f"{release.prefix}.{domain}", *hosts])
        self.count = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._renew_regularly)
        self.renew()

    def __enter__(self) -> "Renewals":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def renew(self) -> None:
        self.authority.renew(VALID_S)
        metadata, files = {"name": "own-keys"}, self.authority.files()
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": files}
        self.release.cluster.apply(secret, namespace=self.release.namespace)
        self.count += 1

    def _renew_regularly(self) -> None:
        while not self.ended.wait(RENEW_S):
            self.renew()


@pytest.mark.long
def test_certificates_of_two_minutes(release, reference):
    """All certificates are valid for two minutes, and are renewed in the Secret under a job of six. No pod restarts."""
    renewals = Renewals(release)
    release.secret_name = "own-keys"
    auth = {"mode": "existingSecret", "existingSecret": "own-keys"}
    release.install(FIXED | {"auth": auth, "workers": {"replicas": 2}})
    training = release.train("training", data.pipeline(WAIT_MS), "--buffer", 4096, epochs=200)
    begun = training.until_first()
    with renewals:
        # New connections need the new certificates.
        until(lambda: time.time() > begun + JOB_S / 2, "half of the job", JOB_S)
        release.kill(release.workers()[0])
        release.until_ready()
        until(lambda: time.time() > begun + JOB_S, "the job is long enough", JOB_S)
        training.until_after(begun + JOB_S)
        expiry = release.certificate_expiry()
        received = training.stop()
    record(
        "certificates of two minutes under a job of six",
        stall_s=received.stall(),
        renewals=renewals.count,
        rows=received.rows,
        seconds=round(received.arrivals[-1] - received.arrivals[0]),
    )
    assert not restarts(release), "a pod restarted"
    assert min(expiry.values()) > begun + JOB_S, f"a role has an expired certificate: {json.dumps(expiry)}"
    check_long(received, reference)
    assert received.stall() <= STALL_S


@pytest.mark.long
def test_renewed_and_rotated_keys(release, reference):
    """The CronJob renews keys that are due, the secret is rotated, and new tokens replace those of the old secret."""
    soon = {"mode": "generate", "days": 5, "tokenExpiry": "5d"}
    release.install(FIXED | {"workers": {"replicas": 2}, "auth": soon})
    training = release.train("training", data.pipeline(WAIT_MS), "--buffer", 4096, epochs=200)
    training.until_steady()
    pods = {*release.coordinators(), *release.workers()}
    begun = time.time()
    renew_all(release)
    rotate(release, training)
    training.until_after(time.time() + 10)
    changed = time.time()
    assert {*release.coordinators(), *release.workers()} == pods and not restarts(release), "a pod restarted"

    # A previous secret is removed once its tokens have expired. A coordinator that then starts accepts only new tokens.
    pretend_rotation(release, 366 * 86_400)
    run_renewal(release, "remove-previous")
    assert len(read_keys(release)["secret"].split()) == 1
    until_logged(release.coordinators(), release, "the secret changed", 2)
    lost = release.workers()[0]
    for name in [*release.coordinators(), lost]:
        release.kill(name)
    until(lambda: lost not in release.workers(), f"{lost} ended")
    release.until_ready()
    release.until_voters(3)
    training.until_after(time.time() + 5)
    received = training.stop()
    stalls = {"renewal_stall_s": received.stall(begun, changed), "restart_stall_s": received.stall(changed)}
    record("keys renewed and secret rotated under a job", **stalls, rows=received.rows)
    check_long(received, reference)
    assert stalls["renewal_stall_s"] <= STALL_S


def renew_all(release: NodeRelease) -> None:
    """Renews certificates and tokens by the CronJob, and waits until all roles have the certificates."""
    old, expiry = read_keys(release), max(release.certificate_expiry().values())
    # A longer validity makes them due. The hooks of an upgrade would renew them.
    release.upgrade({"auth": {"days": 365, "tokenExpiry": "365d"}}, "--no-hooks")
    run_renewal(release, "renew-now")
    assert changed_files(old, read_keys(release)) == CERTIFICATES | TOKENS
    until(lambda: min(release.certificate_expiry().values()) > expiry, "all roles have the new certificates", LOADED_S)
    until_logged(release.workers(), release, "the token changed", 1)


def rotate(release: NodeRelease, training: Training) -> None:
    """Rotates the secret, and renews the tokens as if ten minutes had passed."""
    old = read_keys(release)
    run_rotation(release, "rotate-now")
    rotated = read_keys(release)
    assert changed_files(old, rotated) == {"secret"}
    assert rotated["secret"].split()[1:] == old["secret"].split(), "the second line is the previous secret"
    until_logged(release.coordinators(), release, "the secret changed", 1)
    pretend_rotation(release, 601)
    run_renewal(release, "renew-tokens")
    new = read_keys(release)
    assert changed_files(rotated, new) == TOKENS
    until_logged(release.workers(), release, "the token changed", 2)
    read = ["python3", "-c", f"print(open('{KEYS}/client.token').read())"]
    token = new["client.token"].strip()
    until(lambda: training.exec(*read).strip() == token, "the trainer has the new token", LOADED_S)


def until_logged(pods: list[str], release: NodeRelease, text: str, times: int) -> None:
    """Waits until each of the pods has logged a change this number of times."""
    for pod in pods:
        logged = lambda pod=pod: count_in_log(release, pod, text) >= times  # noqa: E731
        until(logged, f"{pod} has logged `{text}` {times} times", LOADED_S)


def restarts(release: NodeRelease) -> int:
    """Returns how often containers of the namespace restarted."""
    pods = release.get("pods")["items"]
    return sum(status["restartCount"] for pod in pods for status in pod["status"].get("containerStatuses", []))


def check_long(received: Received, reference: Received) -> None:
    """Compares a job that may have more epochs than the reference."""
    assert received.missing == received.repeated == 0
    shared = min(len(received.digests), len(reference.digests))
    assert received.digests[:shared] == reference.digests[:shared]
