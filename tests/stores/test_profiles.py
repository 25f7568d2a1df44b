"""The recipes for AWS profiles in docs/stores.md, with moto, and the renewal of their credentials."""

import json
import sys

from conftest import READ, RotatingKeys, client, create_role, enforce, fill_large, s3_options, user, write_profiles
from metadata import OF_THE_TASK, AwsMetadata, serve
from security_tokens import ROLE, serve_assume_role, serve_sts, sts_options


def test_default_profile(cli, iam):
    key, secret = user(iam.url, "reader", READ)
    enforce(iam.url)
    write_profiles(cli.home, credentials=f"[default]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")
    cli.assert_reads(s3_options(iam.url))


def test_named_profile_with_region_and_endpoint(cli, iam):
    key, secret = user(iam.url, "reader", READ)
    enforce(iam.url)
    write_profiles(
        cli.home,
        config=f"[profile data]\nregion = us-east-1\nendpoint_url = {iam.url}\n",
        credentials=f"[data]\naws_access_key_id={key}\naws_secret_access_key={secret}\n",
    )
    cli.assert_reads({"AWS_PROFILE": "data", "AWS_ALLOW_HTTP": "true"})
    (cli.home / "credentials.yaml").write_text("mine: {aws_profile: data, aws_allow_http: true}\n")
    cli.assert_reads({}, "--credentials", "credentials.yaml", credentials="mine")


def write_role(cli, iam, role: str, more: str = "") -> None:
    """Writes the profile `reader` of a role, with these further lines, and the profile `caller`, which may assume the role."""
    key, secret = user(iam.url, "caller", ["sts:AssumeRole"])
    write_profiles(
        cli.home,
        config=f"[profile reader]\nrole_arn = {role}\nsource_profile = caller\n{more}",
        credentials=f"[caller]\naws_access_key_id={key}\naws_secret_access_key={secret}\n",
    )


def test_profile_with_role(cli, iam):
    write_role(cli, iam, create_role(client("iam", iam.url), "reader"))
    enforce(iam.url)
    cli.assert_reads({**s3_options(iam.url), "AWS_PROFILE": "reader"})


def test_profile_with_a_role_that_needs_an_external_id(cli, iam):
    role = create_role(client("iam", iam.url), "reader", StringEquals={"sts:ExternalId": "id-of-the-customer"})
    write_role(cli, iam, role, "external_id = id-of-the-customer\n")
    enforce(iam.url)
    environment = {**s3_options(iam.url), "AWS_PROFILE": "reader"}
    cli.assert_reads(environment)
    config = cli.home / ".aws/config"
    config.write_text(config.read_text().replace("id-of-the-customer", "id-of-another"))
    sentence = cli.denied(environment)
    assert f"of the AWS profile `reader`: cannot assume the role {role}: STS responded with 403" in sentence, sentence
    assert "id-of-another" not in sentence


def test_profile_with_web_identity(cli, iam, keys_of_role):
    (cli.home / "token").write_text("token-of-the-pod")
    write_profiles(cli.home, config=f"[profile pod]\nrole_arn = {ROLE}\nweb_identity_token_file = {cli.home}/token\n")
    with serve_sts(cli.home, ROLE, lambda: "token-of-the-pod", lambda: keys_of_role) as sts:
        environment = {**s3_options(iam.url), **sts_options(sts), "AWS_PROFILE": "pod"}
        cli.assert_reads(environment)
        (cli.home / "token").write_text("token-of-another-pod")
        sentence = cli.denied(environment)
    assert f"role {ROLE}, from a web identity token, of the AWS profile `pod` (InvalidIdentityToken)" in sentence, sentence
    assert "token-of-another-pod" not in sentence


def test_profile_with_process(cli, iam):
    key, secret = user(iam.url, "reader", READ)
    enforce(iam.url)
    output = json.dumps({"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret})
    (cli.home / "keys.json").write_text(output)
    write_profiles(cli.home, config=f"[profile p]\ncredential_process = cat '{cli.home}/keys.json'\n")
    cli.assert_reads({**s3_options(iam.url), "AWS_PROFILE": "p"})


def test_errors_of_profiles_are_one_sentence(cli, iam):
    write_profiles(cli.home, credentials="[a]\naws_access_key_id=x\naws_secret_access_key=HUSH\n")
    linted = cli.lint(environment={**s3_options(iam.url), "AWS_PROFILE": "b"})
    assert linted.status == 2
    assert "the AWS profile `b` does not exist in" in linted.stdout and "known: a" in linted.stdout, linted.stdout
    write_profiles(cli.home, config="[profile p]\ncredential_process = false\n")
    sentence = cli.denied({**s3_options(iam.url), "AWS_PROFILE": "p"})
    assert "cannot get the credentials of the AWS profile `p`: credential_process `false` failed" in sentence


def test_an_assumed_role_that_expires_during_a_job_is_assumed_again(cli, iam):
    rotating = RotatingKeys(iam.url)
    role = create_role(client("iam", iam.url), "reader", StringEquals={"sts:ExternalId": "id-of-the-customer"})
    write_role(cli, iam, role, "external_id = id-of-the-customer\nrole_session_name = training\n")
    fill_large(iam.url)
    enforce(iam.url)
    with serve_assume_role(iam.url, rotating) as sts:
        cli.read_large({**s3_options(iam.url), "AWS_ENDPOINT_URL_STS": sts.url, "AWS_PROFILE": "reader"}, rotating.issued)
    expected = {"Action": "AssumeRole", "RoleArn": role, "RoleSessionName": "training", "ExternalId": "id-of-the-customer"}
    assert all(request.items() >= expected.items() for request in sts.requests), sts.requests


def test_credentials_of_a_process_that_expire_during_a_job_are_renewed(cli, iam):
    rotating = RotatingKeys(iam.url)
    fill_large(iam.url)
    enforce(iam.url)

    def output() -> dict:
        keys = rotating()
        return {**keys, "Version": 1, "SessionToken": keys["Token"]}

    with serve(AwsMetadata, "127.0.0.1", 0, output) as server:
        process = cli.home / "process.py"
        process.write_text(f"from urllib.request import urlopen\nprint(urlopen('{server.url}{OF_THE_TASK}').read().decode())\n")
        write_profiles(cli.home, config=f"[profile p]\ncredential_process = {sys.executable} {process}\n")
        cli.read_large({**s3_options(iam.url), "AWS_PROFILE": "p"}, rotating.issued)
