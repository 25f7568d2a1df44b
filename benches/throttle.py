#!/usr/bin/env python3
"""Measures how 48 worker processes share a throttled store.

Starts SeaweedFS, a proxy before it (`feedline bench throttle-proxy`), a coordinator and 48 workers, and runs two equal jobs.
The proxy allows 300 requests/s with a burst of 30, adds the latency of a remote store (20 ms) and records each request. There
are four scenarios:

- `retry-after`: requests beyond the rate receive the status 429 with `Retry-After: 1`.
- `plain`: they receive the status 503 without a time.
- `halved`: like `plain`, and the rate is halved midway.
- `bandwidth`: no request is rejected, but all responses together have a bandwidth.

Prints a Markdown table with four numbers for each scenario, from 5 s after the limits began, and in `halved` also without the
5 s after the change:

- the fraction of rejected requests
- the fraction of the allowed requests (or bytes) that was used
- the requests of the slower job divided by those of the faster job
- the 99th percentile of the time from a request's arrival at the proxy to its last byte, divided by the median

The jobs do not cache rows, since a real dataset is larger than the caches. All traffic stays on the loopback interface. Workers
have a lower scheduling priority than the proxy and SeaweedFS, since a real store has cores of its own. Exits with status 1 if a target is missed.

    SECONDS=60 WORKERS=48 ONLY=plain,bandwidth RECORDS=/tmp/records benches/throttle.py

`RECORDS` is a directory that keeps the proxy's records. Each line has the arrival of a request, the time of its last byte, the
status, the bytes of the response, the method and the path.
"""

import concurrent.futures
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
WEED = pathlib.Path(os.environ.get("WEED", ROOT / "target/throttle/bin/weed"))
SECONDS = float(os.environ.get("SECONDS", "60"))
WORKERS = int(os.environ.get("WORKERS", "48"))
RATE, BURST, SETTLED_S = 300, 30, 5
SHARDS, ROWS = 1500, 64
BANDWIDTH = 1_000_000
KEYS = {"accessKey": "THROTTLEKEY", "secretKey": "throttle-secret"}
SCENARIOS = {
    "retry-after": ["--rate", RATE, "--burst", BURST, "--status", 429, "--retry-after", 1],
    "plain": ["--rate", RATE, "--burst", BURST],
    "halved": ["--rate", RATE, "--burst", BURST],
    "bandwidth": ["--bytes-per-s", BANDWIDTH],
}
# Targets: at most, at least, at least, at most.
REJECTED, USED, FAIR, TAIL = 0.001, 0.9, 0.9, 1.5
PIPELINE = """
name: {name}
source: {{ url: "s3://throttle/{name}/*", format: jsonl }}
operators:
  - batch: {{ size: 64 }}
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(what, check, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.5)
    sys.exit(f"timeout while waiting for {what}")


class Processes:
    """The processes of a measurement, which end with it."""

    def __init__(self, log):
        self.started, self.log = [], log

    def start(self, *command, niceness=0, **options):
        command = ["nice", "-n", str(niceness), *(str(part) for part in command)]
        process = subprocess.Popen(command, stderr=self.log, text=True, **options)
        self.started.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


class Store:
    """SeaweedFS with the shards of both jobs."""

    def __init__(self, processes, folder):
        names = ("s3", "filer", "master", "volume", "admin", "webdav")
        ports = {name: free_port() for name in names}
        config = folder / "s3.json"
        identity = {"name": "bench", "credentials": [KEYS], "actions": ["Admin", "Read", "List", "Write"]}
        config.write_text(json.dumps({"identities": [identity]}))
        (folder / "weed").mkdir()
        options = [f"-{name}.port={port}" for name, port in ports.items()]
        # The default ports are beyond those of the system.
        options += [f"-{name}.port.grpc={free_port()}" for name in ("master", "volume", "filer", "admin", "s3")]
        options += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        processes.start(
            WEED, "mini", f"-dir={folder / 'weed'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-admin.ui=false",
            f"-s3.config={config}", *options, stdout=subprocess.DEVNULL,
        )
        self.address = f"127.0.0.1:{ports['s3']}"
        self.filer = f"http://127.0.0.1:{ports['filer']}"
        wait_for("SeaweedFS", lambda: self.put("ready", b"1", retry=True))
        shard = lambda job, number: "".join(
            json.dumps({"job": job, "row": number * ROWS + row}) + "\n" for row in range(ROWS)
        ).encode()
        paths = [(job, number) for job in "ab" for number in range(SHARDS)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: self.put(f"{path[0]}/{path[1]:05}.jsonl", shard(*path)), paths))

    def put(self, key, body, retry=False):
        url = f"{self.filer}/buckets/throttle/{key}"
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, method="PUT"), timeout=10).read()
            return True
        except OSError:
            if retry:
                return False
            raise


def read_record(file):
    fields = (line.split(" ", 5) for line in file.read_text().splitlines())
    return [(float(begin), float(end), int(status), int(size), method, path) for begin, end, status, size, method, path in fields]


def measure(record, begin, end, allowed, scenario):
    """Returns the four numbers for the requests that arrived between two times."""
    inside = [request for request in record if begin <= request[0] < end]
    accepted = [request for request in inside if request[2] not in (429, 503)]
    gets = [request for request in accepted if request[4] == "GET" and ".jsonl" in request[5]]
    jobs = sorted(sum(f"/{job}/" in request[5] for request in gets) for job in "ab")
    times = sorted(request[1] - request[0] for request in gets)
    used = sum(request[3] for request in accepted) if scenario == "bandwidth" else len(accepted)
    return {
        "rejected": 1 - len(accepted) / max(len(inside), 1),
        "used": used / allowed,
        "fair": jobs[0] / max(jobs[1], 1),
        "tail": times[int(0.99 * len(times))] / statistics.median(times) if times else float("inf"),
        "median_ms": 1e3 * statistics.median(times) if times else float("nan"),
        "requests": len(inside),
    }


def run(scenario, store, folder, record, log):
    """Runs a scenario, and returns the record of the proxy."""
    with Processes(log) as processes:
        command = (FEEDLINE, "bench", "throttle-proxy", "--upstream", store.address, "--record", record)
        proxy = processes.start(*command, *SCENARIOS[scenario], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        endpoint = "http://" + proxy.stdout.readline().strip()
        options = ("--listen", "127.0.0.1:0", "--data-dir", folder / f"{scenario}.state", "--auto-cache", "off")
        coordinator = processes.start(FEEDLINE, "coordinator", *options, stdout=subprocess.PIPE)
        url = "http://" + coordinator.stdout.readline().split()[-1].removeprefix("http://")
        access = {
            "AWS_ENDPOINT": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEYS["accessKey"], "AWS_SECRET_ACCESS_KEY": KEYS["secretKey"],
        }
        worker = (FEEDLINE, "worker", "--coordinator", url, "--listen", "127.0.0.1:0", "--cores", 1, "--memory", "64MiB")
        for _ in range(WORKERS):
            processes.start(*worker, niceness=10, stdout=subprocess.DEVNULL, env={**os.environ, **access})
        for job in "ab":
            file = folder / f"{job}.yaml"
            file.write_text(PIPELINE.format(name=job))
            processes.start(FEEDLINE, "run", file, "--coordinator", url, "--epochs", 10_000, stdout=subprocess.DEVNULL)

        def are_running():
            top = subprocess.run(
                [FEEDLINE, "top", "--coordinator", url, "--format", "json"], capture_output=True, text=True
            )
            jobs = json.loads(top.stdout)["jobs"] if top.returncode == 0 else []
            return len(jobs) == 2 and all(job["rows"] > 0 for job in jobs)

        wait_for("both jobs", are_running)
        for command in ["limit", "halve"] if scenario == "halved" else ["limit"]:
            proxy.stdin.write(command + "\n")
            proxy.stdin.flush()
            time.sleep(SECONDS / 2 if scenario == "halved" else SECONDS)
        top = subprocess.run([FEEDLINE, "top", "--coordinator", url, "--once"], capture_output=True, text=True)
        print("\n".join(line for line in top.stdout.splitlines() if "limits the job" in line), file=sys.stderr)
        proxy.stdin.close()
        proxy.wait(timeout=30)
    return read_record(record)


def rows(scenario, record):
    """Returns the rows of the table for a scenario."""
    if scenario == "bandwidth":
        return [(scenario, measure(record, SETTLED_S, SECONDS, BANDWIDTH * (SECONDS - SETTLED_S), scenario))]
    if scenario != "halved":
        return [(scenario, measure(record, SETTLED_S, SECONDS, RATE * (SECONDS - SETTLED_S), scenario))]
    half = SECONDS / 2
    return [
        ("halved: before", measure(record, SETTLED_S, half, RATE * (half - SETTLED_S), scenario)),
        ("halved: 5 s after", measure(record, half + SETTLED_S, SECONDS, RATE / 2 * (half - SETTLED_S), scenario)),
        ("halved: all", measure(record, SETTLED_S, SECONDS, RATE * (half - SETTLED_S) + RATE / 2 * half, scenario)),
    ]


def main():
    wanted = [name for name in os.environ.get("ONLY", "").split(",") if name] or list(SCENARIOS)
    limits = Limits()
    kept = os.environ.get("RECORDS")
    print("| scenario | requests | rejected | used | slower / faster job | p99 / median | median |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        records = pathlib.Path(kept) if kept else folder
        records.mkdir(parents=True, exist_ok=True)
        with open(os.environ.get("LOG", os.devnull), "w") as log, Processes(log) as processes:
            store = Store(processes, folder)
            for scenario in wanted:
                for name, found in rows(scenario, run(scenario, store, folder, records / f"{scenario}.record", log)):
                    mark = lambda met, what: limits.mark(met, f"{what} of `{name}`")
                    # The change itself causes rejections, before any worker can detect it.
                    rejected = mark(name == "halved: all" or found["rejected"] <= REJECTED, "rejected")
                    used, fair = mark(found["used"] >= USED, "used"), mark(found["fair"] >= FAIR, "fairness")
                    tail = mark(found["tail"] <= TAIL, "tail")
                    print(
                        f"| {name} | {found['requests']} | {100 * found['rejected']:.3f} %{rejected} | {100 * found['used']:.1f} %{used} "
                        f"| {found['fair']:.3f}{fair} | {found['tail']:.2f}{tail} | {found['median_ms']:.1f} ms |",
                        flush=True,
                    )
    limits.end()


if __name__ == "__main__":
    main()
