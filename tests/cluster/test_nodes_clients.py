"""Trainers with keys: in another namespace, and while all certificates expire and are renewed."""

import json
import threading
import time

import pytest
from harness import until
from nodes import data
from nodes.authority import Authority
from nodes.pods import Training
from nodes.release import FIXED, OPERATOR_NODE
from nodes.results import record

VALID_S, RENEW_S, JOB_S = 120, 45, 360
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


@pytest.mark.long
def test_certificates_of_two_minutes(release, reference):
    """All certificates are valid for two minutes, and are renewed in the Secret under a job of six. No pod restarts."""
    service, headless = (
        f"{release.prefix}.{release.namespace}.svc",
        f"{release.prefix}-coordinator.{release.namespace}.svc",
    )
    hosts = [service, *(f"{release.prefix}-coordinator-{ordinal}.{headless}" for ordinal in range(3))]
    authority = Authority(release.cluster, release.cluster.state / release.namespace, hosts)
    renewals: list[float] = []

    def renew() -> None:
        authority.renew(VALID_S)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "own-keys"},
            "stringData": authority.files(),
        }
        release.cluster.apply(secret, namespace=release.namespace)
        renewals.append(time.time())

    renew()
    release.secret_name = "own-keys"
    release.install(
        FIXED | {"auth": {"mode": "existingSecret", "existingSecret": "own-keys"}, "workers": {"replicas": 2}}
    )
    training = release.train("training", data.pipeline(WAIT_MS), "--buffer", 4096, epochs=200)
    begun = training.until_first()
    ended = threading.Event()

    def renew_regularly() -> None:
        while not ended.wait(RENEW_S):
            renew()

    thread = threading.Thread(target=renew_regularly)
    thread.start()
    try:
        # New connections need the new certificates.
        until(lambda: time.time() > begun + JOB_S / 2, "half of the job", JOB_S)
        release.kill(release.workers()[0])
        release.until_ready()
        until(lambda: time.time() > begun + JOB_S, "the job is long enough", JOB_S)
        training.until_after(begun + JOB_S, 30)
        expiry = release.certificate_expiry()
        received = training.stop()
    finally:
        ended.set()
        thread.join()
    restarts = [
        status["restartCount"]
        for pod in release.get("pods")["items"]
        for status in pod["status"].get("containerStatuses", [])
    ]
    record(
        "certificates of two minutes under a job of six",
        stall_s=received.stall(),
        renewals=len(renewals),
        rows=received.rows,
        seconds=round(received.arrivals[-1] - received.arrivals[0]),
    )
    assert not any(restarts), "a pod restarted"
    assert min(expiry.values()) > begun + JOB_S, f"a role has an expired certificate: {json.dumps(expiry)}"
    assert received.missing == received.repeated == 0
    shared = min(len(received.digests), len(reference.digests))
    assert received.digests[:shared] == reference.digests[:shared]
    assert received.stall() <= STALL_S
