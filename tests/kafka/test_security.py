"""Each security mechanism against a real broker, and wrong credentials for each. No secret appears in any output."""

import json
import time

import pytest
from brokers import Brokers, USERS
from certificates import KEY_PASSWORD
from tokens import TokenServer
from topics import Topics

SECRETS = ["alice-secret-1", "wrong-secret-2", "client-secret-3", KEY_PASSWORD]
(USER, PASSWORD) = next(iter(USERS.items()))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    server = TokenServer(tmp_path_factory.mktemp("tokens"), "client", "client-secret-3")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def secure(tmp_path_factory, tokens):
    brokers = Brokers(tmp_path_factory.mktemp("secure") / "kafka", secure=True, jwks=tokens.jwks)
    try:
        brokers.start()
        topics = Topics(brokers.servers())
        topics.create("events")
        topics.produce("events", 200)
        yield brokers
    finally:
        brokers.stop()


def sasl(mechanism, password=PASSWORD):
    return {"kafka_sasl_mechanism": mechanism, "kafka_username": USER, "kafka_password": password}


def key_lines(folder):
    """The lines of all private keys. The last line of a key may be short, so it is left out."""
    keys = [path.read_text().splitlines() for path in folder.glob("*.key")]
    assert len(keys) >= 4
    return [line for key in keys for line in key[1:-1] if len(line) >= 32]


def cases(secure, tokens):
    """Listener, options that are accepted, and options that are rejected with a part of the reason."""
    files = secure.certificates
    tls = {"kafka_ca_file": str(files.authority)}
    client = {"kafka_certificate_file": str(files.client), "kafka_key_file": str(files.client_key)}
    stranger = {"kafka_certificate_file": str(files.stranger), "kafka_key_file": str(files.stranger_key)}
    oauth = {
        "kafka_sasl_mechanism": "OAUTHBEARER",
        "kafka_oauth_token_url": tokens.url,
        "kafka_oauth_client_id": "client",
        "kafka_oauth_client_secret": "client-secret-3",
        "kafka_oauth_scope": "kafka",
    }
    yield "tls", "TLS", tls, {"kafka_ca_file": str(files.stranger)}
    yield "mutual", "MUTUAL", tls | client, tls | stranger
    inline = {
        "kafka_ca_pem": files.authority.read_text(),
        "kafka_certificate_pem": files.client.read_text(),
        "kafka_key_pem": files.encrypted_client_key.read_text(),
        "kafka_key_password": KEY_PASSWORD,
    }
    yield "mutual with inline PEM", "MUTUAL", inline, inline | {"kafka_key_password": "wrong-secret-2"}
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        yield mechanism, "SASL", sasl(mechanism), sasl(mechanism, "wrong-secret-2")
        yield f"{mechanism} with TLS", "SASLTLS", sasl(mechanism) | tls, sasl(mechanism, "wrong-secret-2") | tls
    yield "oauth", "OAUTH", oauth, oauth | {"kafka_oauth_client_secret": "wrong-secret-2"}


NAMES = ["tls", "mutual", "mutual with inline PEM", *[f"{name}{tls}" for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512") for tls in ("", " with TLS")], "oauth"]


@pytest.mark.parametrize("name", NAMES)
def test_mechanism(secure, tokens, jobs, monkeypatch, name):
    monkeypatch.setenv("FEEDLINE_LOG", "debug")
    _, listener, accepted, rejected = next(case for case in cases(secure, tokens) if case[0] == name)
    file = jobs.folder / "credentials.yaml"
    file.write_text(json.dumps({"right": accepted, "wrong": rejected}))
    results = {}
    for entry in ("right", "wrong"):
        pipeline = jobs.pipeline(secure.url(listener), "events", "payload: json", f"credentials: {entry}")
        started = time.monotonic()
        results[entry] = jobs.run(pipeline, "--credentials", str(file), "--store-retry-timeout", "20s")
        assert time.monotonic() - started < 40
    assert results["right"].report["rows"] == 200
    assert results["wrong"].code == 1 and "credentials" in results["wrong"].errors, results["wrong"].errors[-2000:]
    # The lines of the client and of librdkafka at this level contain the reasons of the brokers. A wrong password of a key needs no broker.
    assert "feedline_kafka" in results["wrong"].errors or "wrong password" in results["wrong"].errors, results["wrong"].errors[-2000:]
    secrets = {*SECRETS, *tokens.issued, *key_lines(secure.certificates.folder)}
    for result in results.values():
        assert not any(secret in result.output + result.errors for secret in secrets)


def test_tokens_are_renewed(secure, tokens, jobs):
    """The tokens of the server live for a few seconds, and a job that takes longer continues."""
    _, listener, accepted, _ = next(case for case in cases(secure, tokens) if case[0] == "oauth")
    file = jobs.folder / "credentials.yaml"
    file.write_text(json.dumps({"right": accepted}))
    before = len(tokens.issued)
    pipeline = jobs.pipeline(secure.url(listener), "events", "payload: json", "credentials: right", batch=2)
    report = jobs.run(pipeline, "--credentials", str(file), "--step-ms", "80", "--audit").report
    assert report["rows"] == 200 and report["seconds"] > 6
    assert len(tokens.issued) > before + 1


def test_the_wrong_protocol_of_a_port_is_one_sentence(secure, jobs):
    """A client without TLS at a port with TLS, and the other way round."""
    file = jobs.folder / "credentials.yaml"
    file.write_text(json.dumps({"tls": {"kafka_ca_file": str(secure.certificates.authority)}}))
    plain = "check the URL, the brokers and the network, and whether the brokers need TLS"
    for listener, settings, fix in [("TLS", [], plain), ("PLAINTEXT", ["credentials: tls"], "check `credentials` of the source")]:
        pipeline = jobs.pipeline(secure.url(listener), "events", "payload: json", *settings)
        started = time.monotonic()
        result = jobs.run(pipeline, "--credentials", str(file), "--store-retry-timeout", "10s")
        assert time.monotonic() - started < 40
        assert result.code == 1 and fix in result.errors.strip().splitlines()[-1], result.errors
