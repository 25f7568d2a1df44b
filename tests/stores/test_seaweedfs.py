"""The recipe for SeaweedFS in docs/stores.md, datasets that change in a store, and formats whose files are found by an index."""

import json
from pathlib import Path

import pytest
from conftest import ROOT, SEAWEED_KEYS, client

TESTDATA = ROOT / "worker/sources/src/formats/testdata"


@pytest.fixture
def options(seaweed) -> dict:
    return {"AWS_ENDPOINT": seaweed.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", **SEAWEED_KEYS}


@pytest.fixture
def s3(seaweed):
    return client("s3", seaweed.url, SEAWEED_KEYS["AWS_ACCESS_KEY_ID"], SEAWEED_KEYS["AWS_SECRET_ACCESS_KEY"])


def test_seaweedfs(cli, options):
    cli.assert_reads(options)
    sentence = cli.denied({**options, "AWS_SECRET_ACCESS_KEY": "another-secret"})
    assert "access key keyo...ests" in sentence and "check the credentials" in sentence


LACKING = [("keyofareader", "s3:ListBucket on arn:aws:s3:::bucket"), ("keyofalister", "s3:GetObject on arn:aws:s3:::bucket/table/0.jsonl")]


@pytest.mark.parametrize(("key", "right"), LACKING)
def test_an_identity_without_a_right_is_denied(cli, options, key, right):
    sentence = cli.denied({**options, "AWS_ACCESS_KEY_ID": key})
    assert f"access denied for access key {key[:4]}...{key[-4:]} (AccessDenied): the right {right} is missing" in sentence, sentence


def test_an_object_that_was_replaced_after_the_listing_fails_the_job(cli, options, s3):
    cli.assert_replaced_object_fails(
        options, "s3://bucket/replaced/", lambda name, body: s3.put_object(Bucket="bucket", Key=f"replaced/{name}", Body=body)
    )


def digest(cli, folder: str, format: str, environment: dict | None = None) -> tuple:
    """Returns the number of rows and the digest of the batches of a dataset."""
    path = cli.home / "pipeline.yaml"
    source = json.dumps({"url": folder, "format": format})
    path.write_text(f"name: table\nsource: {source}\noperators:\n  - batch: {{ size: 2 }}\n")
    done = cli.call("run", path, "--report", "json", "--index-dir", cli.home / "index", environment=environment)
    assert done.status == 0, done.stderr
    return done.report["rows"], done.report["digest"]


@pytest.mark.parametrize("folder", ["mds/zstd", "mds/gz", "mds/hashed", "litdata/plain", "litdata/every"])
def test_a_format_with_an_index_reads_the_same_rows_from_a_store(cli, options, s3, folder):
    files = [path for path in (TESTDATA / folder).rglob("*") if path.is_file()]
    for path in files:
        s3.put_object(Bucket="bucket", Key=f"{folder}/{path.relative_to(TESTDATA / folder)}", Body=path.read_bytes())
    format = Path(folder).parts[0]
    stored = digest(cli, f"s3://bucket/{folder}/", format, options)
    assert stored == digest(cli, f"{TESTDATA / folder}/", format) and stored[0] > 0
