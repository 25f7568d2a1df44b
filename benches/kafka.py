"""Compares the CPU time of a worker that reads a Kafka topic with that of a consumer that drops the payloads, per record of 1 KiB.

One real broker runs on core 0. The bare consumer runs on core 1, and so do the worker, the coordinator and the process that receives the
batches. Only the CPU time of the worker counts. Each round measures both, so that noise affects both.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/kafka"))

from brokers import Brokers, free_ports, missing_programs  # noqa: E402
from topics import Topics, send  # noqa: E402

RECORD_BYTES = 1024
PARTITIONS = 4
# A worker that needs at most a quarter more CPU than a consumer that drops the payloads.
TARGET_RATIO = 0.8
TARGET = os.environ.get("FEEDLINE_TARGET", str(ROOT / "target/release"))


def produce(topics: Topics, name: str, records: int) -> None:
    producer = topics.producer(linger_ms=20, batch_size=262_144)
    payload = os.urandom(RECORD_BYTES)
    for number in range(records):
        send(producer, name, payload, number % PARTITIONS)
    assert producer.flush(120) == 0


def cpu_of(process: int) -> float:
    """Returns the CPU seconds that a process and all its threads have used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(command: list[str]) -> tuple[float, dict]:
    """Runs a command on core 1. Returns its CPU time in seconds and its last line as JSON."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(["taskset", "-c", "1", *command], check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=256, help="rows per batch")
    arguments = parser.parse_args()
    if missing := missing_programs():
        sys.exit(f"the benchmark needs {missing}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.sched_setaffinity(0, {0})
        brokers = Brokers(folder / "kafka")
        try:
            brokers.start()
            topics = Topics(brokers.servers())
            topics.create("speed", partitions=PARTITIONS)
            produce(topics, "speed", arguments.records)
            os.sched_setaffinity(0, set(range(os.cpu_count())))
            compare(brokers, folder, arguments)
        finally:
            brokers.stop()


def compare(brokers: Brokers, folder: Path, arguments: argparse.Namespace) -> None:
    pipeline = folder / "speed.yaml"
    pipeline.write_text(
        f"name: speed\nsource:\n  url: {brokers.url()}\n  format: kafka\n  topics: speed\n  features: {{ value: value }}\n"
        f"operators:\n  - batch: {{ size: {arguments.batch} }}\n"
    )
    [control, data] = free_ports(2)
    address = f"http://127.0.0.1:{control}"
    binary = f"{TARGET}/feedline"
    on_core_1 = ["taskset", "-c", "1"]
    roles = [
        [binary, "coordinator", "--listen", f"127.0.0.1:{control}", "--data-dir", str(folder / "coordinator")],
        [binary, "worker", "--coordinator", address, "--listen", f"127.0.0.1:{data}", "--cores", "1"],
    ]
    # `taskset` replaces itself, so the process is the role.
    started = [subprocess.Popen([*on_core_1, *role]) for role in roles]
    run = [binary, "run", str(pipeline), "--no-digest", "--report", "json", "--coordinator", address]
    bare = [f"{TARGET}/examples/drop_payloads", brokers.servers(), "speed"]
    ratios = []
    try:
        for number in range(arguments.rounds):
            bare_cpu, bare_report = measure(bare)
            before = cpu_of(started[1].pid)
            consumer_cpu, report = measure(run)
            worker_cpu = cpu_of(started[1].pid) - before
            assert bare_report["records"] == report["rows"] == arguments.records, (bare_report, report["rows"])
            ratios.append(bare_cpu / worker_cpu)
            bare_us, worker_us, consumer_us = (1e6 * cpu / arguments.records for cpu in (bare_cpu, worker_cpu, consumer_cpu))
            print(
                f"round {number + 1}: bare consumer {bare_us:.2f} us/record, worker {worker_us:.2f} us/record "
                f"(and {consumer_us:.2f} us/record of the process that receives the batches), ratio {ratios[-1]:.2f}",
                flush=True,
            )
    finally:
        for one in reversed(started):
            one.terminate()
            one.wait(30)
    print(
        f"median ratio {statistics.median(ratios):.2f} (target {TARGET_RATIO}) of {arguments.rounds} rounds with {arguments.records} "
        f"records of {RECORD_BYTES} bytes; CPU of the bare consumer / CPU of the worker"
    )


if __name__ == "__main__":
    main()
