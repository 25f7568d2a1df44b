"""The credentials of machines and containers in docs/stores.md, at the fixed addresses of the metadata services."""

from collections.abc import Iterator

import pytest
from conftest import RotatingKeys, enforce, fill_large, s3_options
from metadata import CONTAINER, MACHINE, OF_THE_TASK, AwsMetadata, namespace, serve


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    """A network with the addresses of the metadata services. The servers of the test run in it."""
    with namespace():
        yield


def test_instance_credentials_at_the_fixed_address(cli, keys_of_role, iam):
    with serve(AwsMetadata, MACHINE, 80, lambda: keys_of_role) as metadata:
        cli.assert_reads(s3_options(iam.url))
        assert (MACHINE, "/latest/meta-data/iam/security-credentials/a-role") in metadata.requests


def test_container_credentials_at_the_fixed_address(cli, keys_of_role, iam):
    with serve(AwsMetadata, MACHINE, 80, lambda: {}) as machine_metadata, serve(AwsMetadata, CONTAINER, 80, lambda: keys_of_role) as metadata:
        uri = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": OF_THE_TASK}
        cli.assert_reads({**s3_options(iam.url), **uri})
        assert {path for _, path in metadata.requests} == {OF_THE_TASK}
        assert machine_metadata.requests == []


def test_instance_credentials_that_expire_during_a_job_are_renewed(cli, iam):
    rotating = RotatingKeys(iam.url)
    fill_large(iam.url)
    enforce(iam.url)
    with serve(AwsMetadata, MACHINE, 80, rotating):
        cli.read_large(s3_options(iam.url), rotating.issued)


def test_container_credentials_that_expire_during_a_job_are_renewed(cli, iam):
    rotating = RotatingKeys(iam.url)
    fill_large(iam.url)
    enforce(iam.url)
    with serve(AwsMetadata, CONTAINER, 80, rotating):
        cli.read_large({**s3_options(iam.url), "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": OF_THE_TASK}, rotating.issued)


def test_a_machine_without_a_role_is_one_sentence(cli, iam):
    enforce(iam.url)
    linted = cli.lint(environment=s3_options(iam.url))
    assert linted.status == 2
    [finding] = linted.report["findings"]
    assert "access denied: the options contain no credentials" in finding["message"], finding
    assert "set AWS_ACCESS_KEY_ID" in finding["message"], finding


def test_a_pipeline_cannot_read_the_metadata_service(cli, keys_of_role):
    with serve(AwsMetadata, MACHINE, 80, lambda: keys_of_role) as metadata:
        done = cli.run(url=f"http://{MACHINE}/latest/meta-data/iam/security-credentials/a-role")
        assert done.status == 2 and "is the address of a cloud metadata service" in done.stderr, done.stderr
        assert metadata.requests == []
