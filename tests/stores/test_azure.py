"""The recipes for Azure in docs/stores.md, with azurite."""

import base64
import hashlib
import hmac
import os
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import formatdate

import pytest
from conftest import ROWS, Server, free_port, require, shard, start

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
TABLE = "az://bucket/table/"


@pytest.fixture(scope="module")
def azurite(tmp_path_factory) -> Iterator[Server]:
    """The emulator with the small dataset."""
    program = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    require(None if program else "Azure needs azurite: npm install azurite, and AZURITE=node_modules/.bin/azurite-blob")
    folder, port = tmp_path_factory.mktemp("azurite"), free_port()
    arguments = [program, "--blobHost", "127.0.0.1", "--blobPort", port, "--location", folder, "--skipApiVersionCheck"]
    server = start(arguments, f"http://127.0.0.1:{port}", folder / "log")
    try:
        server.url = f"{server.url}/{ACCOUNT}"
        put(server.url, "/bucket?restype=container", b"", {})
        for number in range(2):
            upload(server.url, f"table/{number}.jsonl", shard(number * ROWS // 2, ROWS // 2))
        yield server
    finally:
        server.stop()


def sign(text: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()


def put(account: str, path: str, body: bytes, headers: dict) -> None:
    """Sends a request with the shared key, as described in Azure's documentation of the signature."""
    parts = urllib.parse.urlsplit(f"{account}{path}")
    content = "application/octet-stream"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", "Content-Type": content, **headers}
    canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-"))
    query = "".join(f"\n{name}:{value}" for name, value in sorted(urllib.parse.parse_qsl(parts.query)))
    length = str(len(body)) if body else ""
    text = f"PUT\n\n\n{length}\n\n{content}\n\n\n\n\n\n\n{canonical}/{ACCOUNT}{parts.path}{query}"
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{sign(text)}"
    request = urllib.request.Request(parts.geturl(), data=body, method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=10).read()


def upload(account: str, name: str, body: bytes) -> None:
    put(account, f"/bucket/{name}", body, {"x-ms-blob-type": "BlockBlob"})


def sas_token(permissions: str = "rl") -> str:
    """A token of the account with the letters of its permissions, such as `r` to read and `l` to list, for an hour."""
    expiry = (datetime.now(timezone.utc) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"sp": permissions, "ss": "b", "srt": "sco", "st": "", "se": expiry, "sip": "", "spr": "https,http", "sv": "2020-12-06", "ses": ""}
    signature = sign("\n".join([ACCOUNT, *fields.values(), ""]))
    return urllib.parse.urlencode({**{key: value for key, value in fields.items() if value}, "sig": signature})


def options(server: Server, **more: str) -> dict:
    return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_ENDPOINT": server.url, "AZURE_ALLOW_HTTP": "true", **more}


def test_account_key(cli, azurite):
    cli.assert_reads(options(azurite, AZURE_STORAGE_ACCOUNT_KEY=KEY), url=TABLE)
    named = {name.lower(): value for name, value in options(azurite, AZURE_STORAGE_ACCOUNT_KEY=KEY).items()}
    lines = "".join(f"  {name}: '{value}'\n" for name, value in named.items())
    (cli.home / "credentials.yaml").write_text(f"mine:\n{lines}")
    cli.assert_reads({}, "--credentials", "credentials.yaml", credentials="mine", url=TABLE)


def test_sas_token(cli, azurite):
    token = sas_token()
    cli.assert_reads(options(azurite, AZURE_STORAGE_SAS_KEY=token), url=TABLE)
    wrong = token[: token.index("sig=")] + "sig=c2VjcmV0"
    sentence = cli.denied(options(azurite, AZURE_STORAGE_SAS_KEY=wrong), url=TABLE)
    assert f"the SAS token of storage account {ACCOUNT}" in sentence and "c2VjcmV0" not in sentence, sentence


@pytest.mark.parametrize("permissions", ["r", "l"])
def test_a_sas_token_without_the_right_to_list_or_to_read_is_denied(cli, azurite, permissions):
    token = sas_token(permissions)
    sentence = cli.denied(options(azurite, AZURE_STORAGE_SAS_KEY=token), url=TABLE)
    right = "the right Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read on `az://bucket` is missing"
    assert f"the SAS token of storage account {ACCOUNT} (AuthorizationPermissionMismatch): {right}" in sentence, sentence
    assert token[token.index("sig=") + 4 :] not in sentence


def test_a_wrong_key_is_denied(cli, azurite):
    sentence = cli.denied(options(azurite, AZURE_STORAGE_ACCOUNT_KEY="c2VjcmV0"), url=TABLE)
    assert f"the key of storage account {ACCOUNT}" in sentence and "c2VjcmV0" not in sentence


def test_an_object_that_was_replaced_after_the_listing_fails_the_job(cli, azurite):
    environment = options(azurite, AZURE_STORAGE_ACCOUNT_KEY=KEY)
    cli.assert_replaced_object_fails(environment, "az://bucket/large/", lambda name, body: upload(azurite.url, f"large/{name}", body))


def test_a_job_resumes_after_an_upload_of_the_same_bytes(cli, azurite):
    environment = options(azurite, AZURE_STORAGE_ACCOUNT_KEY=KEY)
    again = lambda name, body: upload(azurite.url, f"arrays/{name}", body)
    cli.assert_resumes_after_an_upload_of_the_same_bytes(environment, "az://bucket/arrays/", again, again)
