"""The recipes for S3 without a profile in docs/stores.md, with moto: each finds its credentials, and denied access names the identity."""

from conftest import READ, RotatingKeys, client, enforce, fill_large, keys, s3_options, user
from metadata import AwsMetadata, serve
from security_tokens import ROLE, serve_sts, sts_options


def test_environment(cli, iam):
    key, secret = user(iam.url, "reader", READ)
    enforce(iam.url)
    cli.assert_reads({**s3_options(iam.url), **keys(key, secret)})


def test_credentials_file(cli, iam):
    key, secret = user(iam.url, "reader", READ)
    enforce(iam.url)
    options = "".join(f"  {name.lower()}: '{value}'\n" for name, value in {**s3_options(iam.url), **keys(key, secret)}.items())
    (cli.home / "credentials.yaml").write_text(f"mine:\n{options}")
    cli.assert_reads({}, "--credentials", "credentials.yaml", credentials="mine")


def test_denied_access_names_the_identity_and_the_right(cli, iam):
    cannot_list = user(iam.url, "no-list", ["s3:GetObject"])
    cannot_read = user(iam.url, "no-read", ["s3:ListBucket"])
    enforce(iam.url)
    options = s3_options(iam.url)
    shown = lambda key: f"access denied for access key {key[:4]}...{key[-4:]}"
    sentence = cli.denied({**options, **keys(*cannot_list)})
    assert shown(cannot_list[0]) in sentence and "s3:ListBucket on arn:aws:s3:::bucket is missing" in sentence
    sentence = cli.denied({**options, **keys(*cannot_read)})
    assert shown(cannot_read[0]) in sentence
    assert "s3:GetObject on arn:aws:s3:::bucket/table/0.jsonl is missing" in sentence
    sentence = cli.denied({**options, **keys("AKIAUNKNOWNUNKNOWN", "secret-of-nobody")})
    assert "AKIA...NOWN" in sentence and "check the credentials" in sentence and "secret-of-nobody" not in sentence


def test_container_credentials(cli, iam, keys_of_role):
    (cli.home / "token").write_text("token-of-the-container")
    with serve(AwsMetadata, "127.0.0.1", 0, lambda: keys_of_role) as metadata:
        container = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{metadata.url}/container",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(cli.home / "token"),
        }
        cli.assert_reads({**s3_options(iam.url), **container})
        assert {path for _, path in metadata.requests} == {"/container"}


def test_instance_credentials(cli, iam, keys_of_role):
    with serve(AwsMetadata, "127.0.0.1", 0, lambda: keys_of_role) as metadata:
        cli.assert_reads({**s3_options(iam.url), "AWS_METADATA_ENDPOINT": metadata.url})
        assert any(path.endswith("/security-credentials/a-role") for _, path in metadata.requests)


def web_identity(cli, iam, sts) -> dict:
    token = {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": str(cli.home / "token")}
    return {**s3_options(iam.url), **sts_options(sts), **token}


def test_web_identity(cli, iam, keys_of_role):
    (cli.home / "token").write_text("token-of-the-pod")
    with serve_sts(cli.home, ROLE, lambda: "token-of-the-pod", lambda: keys_of_role) as sts:
        cli.assert_reads(web_identity(cli, iam, sts))
        (cli.home / "token").write_text("token-of-another-pod")
        sentence = cli.denied(web_identity(cli, iam, sts))
        assert f"role {ROLE}, from a web identity token (InvalidIdentityToken)" in sentence, sentence
        assert "token-of-another-pod" not in sentence


def test_a_web_identity_token_that_is_replaced_during_a_job_is_read_again(cli, iam):
    rotating = RotatingKeys(iam.url)
    fill_large(iam.url)
    enforce(iam.url)
    (cli.home / "token").write_text("token-0")

    def keys_and_the_next_token() -> dict:
        # Kubernetes replaces the token long before it expires.
        (cli.home / "token").write_text(f"token-{len(rotating.created)}")
        return rotating()

    with serve_sts(cli.home, ROLE, lambda: (cli.home / "token").read_text(), keys_and_the_next_token) as sts:
        cli.read_large(web_identity(cli, iam, sts), rotating.issued)
        assert len(set(sts.tokens)) >= 3, sts.tokens


def test_a_job_resumes_after_an_upload_of_the_same_bytes(cli, iam):
    s3 = client("s3", iam.url)
    checksum = {"ChecksumAlgorithm": "CRC32"}

    def upload(name: str, body: bytes) -> None:
        s3.put_object(Bucket="bucket", Key=f"arrays/{name}", Body=body, **checksum)

    def upload_in_parts(name: str, body: bytes) -> None:
        """The entity tag of a multipart upload differs from that of a single request."""
        place = {"Bucket": "bucket", "Key": f"arrays/{name}"}
        started = s3.create_multipart_upload(**place, **checksum, ChecksumType="FULL_OBJECT")
        place["UploadId"] = started["UploadId"]
        middle = len(body) - (1 << 20)
        parts = [
            {"PartNumber": number, "ETag": s3.upload_part(**place, PartNumber=number, Body=part, **checksum)["ETag"]}
            for number, part in enumerate([body[:middle], body[middle:]], 1)
        ]
        s3.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})

    environment = {**s3_options(iam.url), **keys("test", "test")}
    cli.assert_resumes_after_an_upload_of_the_same_bytes(environment, "s3://bucket/arrays/", upload, upload_in_parts)
