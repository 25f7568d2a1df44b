"""Workers find their credentials in their own environment and home. A coordinator and a client of the cluster need none."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import READ, ROWS, Feedline, client, create_role, enforce, keys, s3_options, user, write_profiles


def keys_in_the_environment(home: Path, url: str) -> dict:
    return {**s3_options(url), **keys(*user(url, "reader", READ))}


def profile_with_role(home: Path, url: str) -> dict:
    """The profile of a role in the home, and the options without keys."""
    key, secret = user(url, "caller", ["sts:AssumeRole"])
    role = create_role(client("iam", url), "reader")
    write_profiles(
        home,
        config=f"[profile reader]\nrole_arn = {role}\nsource_profile = caller\n",
        credentials=f"[caller]\naws_access_key_id={key}\naws_secret_access_key={secret}\n",
    )
    return {**s3_options(url), "AWS_PROFILE": "reader"}


@contextlib.contextmanager
def listening(cli: Feedline, *arguments: object, environment: dict | None = None) -> Iterator[str]:
    """Runs a role until the end of the block, and returns its URL."""
    with cli.start(*arguments, environment=environment) as process:
        try:
            line = process.stdout.readline()
            assert " listening on " in line, (line, process.poll())
            yield "http://" + line.split(" listening on ")[1].strip()
        finally:
            process.kill()


@pytest.mark.parametrize("recipe", [keys_in_the_environment, profile_with_role])
def test_only_the_worker_of_a_cluster_has_credentials(iam, tmp_path, recipe):
    homes = [tmp_path / name for name in ("coordinator", "worker", "client")]
    for home in homes:
        home.mkdir()
    coordinator, worker, client = map(Feedline, homes)
    environment = recipe(worker.home, iam.url)
    enforce(iam.url)
    with listening(coordinator, "coordinator", "--listen", "127.0.0.1:0", "--data-dir", coordinator.home / "data") as address:
        with listening(worker, "worker", "--coordinator", address, environment=environment):
            path = client.pipeline()
            indexed = client.call("index", path, "--coordinator", address)
            assert indexed.status == 0 and f": {ROWS} rows in " in indexed.stdout, indexed.stdout + indexed.stderr
            done = client.call("run", path, "--coordinator", address, "--audit", "--report", "json")
            assert done.status == 0, done.stderr
            assert (done.report["rows"], done.report["audit"]["missing"]) == (ROWS, 0)
