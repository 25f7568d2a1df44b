"""The recipes for Google Cloud Storage in docs/stores.md, with gcp-storage-emulator."""

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PROGRAMS, ROWS, Server, free_port, large_rows, shard, start
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google_xml import is_token_of, serve_storage
from metadata import MACHINE, GoogleMetadata, namespace, serve

ACCOUNT = "reader@project.iam.gserviceaccount.com"
TABLE = "gs://bucket/table/"


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Server]:
    """The emulator with the small dataset."""
    port = free_port()
    arguments = [PROGRAMS / "gcp-storage-emulator", "start", "--host=127.0.0.1", f"--port={port}", "--in-memory", "--default-bucket=bucket"]
    server = start(arguments, f"http://127.0.0.1:{port}/", tmp_path / "gcs.log")
    try:
        for number in range(2):
            upload(server.url, f"table/{number}.jsonl", shard(number * ROWS // 2, ROWS // 2))
        yield server
    finally:
        server.stop()


def upload(url: str, name: str, body: bytes) -> None:
    query = urllib.parse.urlencode({"uploadType": "media", "name": name})
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{url}upload/storage/v1/b/bucket/o?{query}", data=body, method="POST", headers=headers)
    urllib.request.urlopen(request, timeout=10).read()


def service_account(path: Path) -> rsa.RSAPublicKey:
    """Writes the key file of a service account, and returns the public key."""
    key = rsa.generate_private_key(65537, 2048)
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    fields = {"type": "service_account", "private_key": key.private_bytes(*encoding).decode(), "private_key_id": "1", "client_email": ACCOUNT}
    path.write_text(json.dumps(fields))
    return key.public_key()


def options(url: str, **more: object) -> dict:
    return {"GOOGLE_BASE_URL": url, "GOOGLE_ALLOW_HTTP": "true", **{name: str(value) for name, value in more.items()}}


def machine_options(url: str) -> dict:
    """The metadata service by its address, since the network of the test has no name server."""
    return options(url, GCE_METADATA_HOST=MACHINE)


def test_service_account(cli, emulator):
    file = cli.home / "account.json"
    key = service_account(file)
    with serve_storage(emulator.url.rstrip("/"), lambda token: is_token_of(ACCOUNT, key, token)) as url:
        cli.assert_reads(options(url, GOOGLE_SERVICE_ACCOUNT=file), url=TABLE)
        cli.assert_reads(options(url, GOOGLE_SERVICE_ACCOUNT_KEY=file.read_text()), url=TABLE)
        cli.assert_reads(options(url, GOOGLE_APPLICATION_CREDENTIALS=file), url=TABLE)
        named = {"google_base_url": url, "google_allow_http": "true", "google_service_account": str(file)}
        (cli.home / "credentials.yaml").write_text(json.dumps({"mine": named}))
        cli.assert_reads({}, "--credentials", "credentials.yaml", credentials="mine", url=TABLE)

        service_account(cli.home / "another.json")
        sentence = cli.denied(options(url, GOOGLE_SERVICE_ACCOUNT=cli.home / "another.json"), url=TABLE)
        assert f"service account {ACCOUNT}" in sentence and "PRIVATE KEY" not in sentence, sentence


@pytest.mark.parametrize(("granted", "missing"), [("read", "list"), ("list", "get")])
def test_a_service_account_without_a_right_is_denied(cli, emulator, granted, missing):
    file = cli.home / "account.json"
    key = service_account(file)
    with serve_storage(emulator.url.rstrip("/"), lambda token: is_token_of(ACCOUNT, key, token), rights=(granted,)) as url:
        sentence = cli.denied(options(url, GOOGLE_SERVICE_ACCOUNT=file), url=TABLE)
    right = f"the right storage.objects.{missing} on the bucket `bucket` is missing"
    assert f"access denied for service account {ACCOUNT} (AccessDenied): {right}" in sentence, sentence


def test_public_bucket(cli, emulator):
    with serve_storage(emulator.url.rstrip("/"), lambda token: not token) as url:
        cli.assert_reads(options(url, GOOGLE_SKIP_SIGNATURE="true"), url=TABLE)


def test_the_account_of_a_machine_is_renewed_during_a_job(cli, request):
    """The metadata service replaces its token every second, and the store accepts those of the last five seconds."""
    with namespace():
        emulator = request.getfixturevalue("emulator")
        for number in range(16):
            upload(emulator.url, f"large/{number}.jsonl", large_rows(number))
        started = time.monotonic()
        second = lambda: int(time.monotonic() - started)
        token = lambda: {"access_token": f"token-{second()}", "expires_in": 2, "token_type": "Bearer"}
        accepted = set()

        def is_current(given: str) -> bool:
            is_valid = given in [f"token-{second() - age}" for age in range(6)]
            accepted.update([given] if is_valid else [])
            return is_valid

        with serve(GoogleMetadata, MACHINE, 80, token), serve_storage(emulator.url.rstrip("/"), is_current) as url:
            cli.assert_reads(machine_options(url), url=TABLE)
            # The first of seven tokens has become invalid.
            cli.read_large(machine_options(url), lambda: len(accepted), more=7, url="gs://bucket/large/")


def test_an_object_that_was_replaced_after_the_listing_fails_the_job(cli, emulator):
    with serve_storage(emulator.url.rstrip("/"), lambda token: not token) as url:
        cli.assert_replaced_object_fails(
            options(url, GOOGLE_SKIP_SIGNATURE="true"), "gs://bucket/large/", lambda name, body: upload(emulator.url, f"large/{name}", body)
        )


def test_a_job_resumes_after_an_upload_of_the_same_bytes(cli, emulator):
    again = lambda name, body: upload(emulator.url, f"arrays/{name}", body)
    with serve_storage(emulator.url.rstrip("/"), lambda token: not token) as url:
        environment = options(url, GOOGLE_SKIP_SIGNATURE="true")
        cli.assert_resumes_after_an_upload_of_the_same_bytes(environment, "gs://bucket/arrays/", again, again)
