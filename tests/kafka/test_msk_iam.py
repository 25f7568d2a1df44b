"""The token endpoint of the recipe for Amazon MSK. Signing needs no connection to AWS."""

import base64
import importlib
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

import pytest
from brokers import free_ports
from jobs import ROOT, wait_for

SECRET = "client-secret-4"
SIGNER = "aws_msk_iam_sasl_signer"


def request_token(port: int, secret: str) -> dict | int | None:
    """Requests a token as a worker does. Returns the answer or the status of an error, or `None` if nothing listens."""
    client = base64.b64encode(f"feedline:{secret}".encode()).decode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", b"grant_type=client_credentials", {"authorization": f"Basic {client}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_the_recipe_for_msk_answers_requests_with_signed_tokens(jobs):
    if os.environ.get("CI"):
        importlib.import_module(SIGNER)
    pytest.importorskip(SIGNER, reason="skipped the recipe for MSK, because aws-msk-iam-sasl-signer-python is not installed")
    [port] = free_ports(1)
    keys = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "fake", "KAFKA_OAUTH_CLIENT_SECRET": SECRET}
    program = jobs.start(sys.executable, "-B", str(ROOT / "examples/msk_iam_tokens.py"), "eu-central-1", str(port), env=os.environ | keys)
    answer = wait_for(lambda: request_token(port, SECRET) or program.poll() is not None, "the endpoint listens")
    assert isinstance(answer, dict), jobs.finish(program).errors
    token = answer["access_token"]
    signed = urllib.parse.urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert signed.netloc == "kafka.eu-central-1.amazonaws.com", signed
    query = dict(urllib.parse.parse_qsl(signed.query))
    assert query["Action"] == "kafka-cluster:Connect" and query["X-Amz-Signature"], query
    assert query["X-Amz-Credential"].startswith("AKIAIOSFODNN7EXAMPLE/"), query
    assert 60 < answer["expires_in"] <= int(query["X-Amz-Expires"]), answer
    assert request_token(port, "wrong") == 401
