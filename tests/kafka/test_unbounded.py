"""A job with `until: none` follows its topics: no record is lost or repeated when workers, coordinators, brokers and ranks are killed."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from brokers import Brokers, free_ports
from jobs import BINARY, ROOT, Jobs, is_listening, wait_for
from metrics import read_metrics, total
from offsets import committed
from registry import avro_schema, framed, zigzag
from topics import Topics, send

FOLLOWER = Path(__file__).with_name("follower.py")
LIBRARY = Path(os.environ.get("FEEDLINE_LIBRARY", BINARY.with_name("libfeedline_native.so")))


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """The folder of the Python package."""
    if not LIBRARY.is_file():
        pytest.skip(f"{LIBRARY} is missing: cargo build --workspace")
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "client/python/feedline", folder / "feedline")
    shutil.copy(LIBRARY, folder / "feedline/_native.abi3.so")
    return folder


class Production:
    """A producer that runs beside a test."""

    def __init__(self, topics: Topics, name: str, partitions: int, rate: int) -> None:
        self.topics, self.name, self.partitions, self.rate = topics, name, partitions, rate
        self.count = 0
        self.failed: list[str] = []
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Production":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def _run(self) -> None:
        producer = self.topics.producer()
        start = time.monotonic()
        while not self.ending.is_set():
            while self.count < (time.monotonic() - start) * self.rate:
                send(producer, self.name, json.dumps({"n": self.count}), self.count % self.partitions, on_delivery=self._on_delivery)
                self.count += 1
            if left := producer.flush(60):
                self.failed.append(f"the brokers do not acknowledge {left} records")
                return
            self.ending.wait(0.02)

    def _on_delivery(self, error, _) -> None:
        if error:
            self.failed.append(str(error))

    def end(self) -> int:
        """Ends the producer. Returns the number of records."""
        self._stop()
        assert self.failed == [] and not self.thread.is_alive(), self.failed[:3]
        return self.count

    def _stop(self) -> None:
        self.ending.set()
        self.thread.join(90)


class Service:
    """A coordinator, workers and ranks, as processes."""

    def __init__(self, jobs: Jobs, package: Path, url: str, workers: int = 2) -> None:
        self.jobs, self.package, self.url = jobs, package, url
        self.port, self.metrics, *ports = free_ports(2 + workers)
        self.address = f"http://127.0.0.1:{self.port}"
        self.coordinator = self.start_coordinator()
        wait_for(lambda: is_listening(self.port), "the coordinator listens")
        self.workers = [self.start_worker(port) for port in ports]

    def start_coordinator(self):
        folder = str(self.jobs.folder / "coordinator")
        addresses = ("--listen", f"127.0.0.1:{self.port}", "--metrics", f"127.0.0.1:{self.metrics}")
        arguments = ("coordinator", *addresses, "--data-dir", folder)
        return self.jobs.start(str(BINARY), *arguments, log=self.jobs.folder / "service.log")

    def start_worker(self, port: int):
        arguments = ("worker", "--coordinator", self.address, "--listen", f"127.0.0.1:{port}", "--cores", "1")
        return self.jobs.start(str(BINARY), *arguments, log=self.jobs.folder / "service.log")

    def follow(self, topic: str, out: str, **settings):
        chosen = {"coordinator": self.address, "url": self.url, "topics": topic, "out": str(self.jobs.folder / out), **settings}
        environment = {**os.environ, "PYTHONPATH": str(self.package)}
        return self.jobs.start(sys.executable, "-B", str(FOLLOWER), json.dumps(chosen), env=environment)

    def batches(self, out: str) -> list[dict]:
        path = self.jobs.folder / out
        lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def delivered(self, *outs: str) -> Counter:
        return Counter(tuple(row) for out in outs for batch in self.batches(out) for row in batch["rows"])

    def wait_for_rows(self, rows: int, *outs: str, timeout: float = 60) -> Counter:
        try:
            return wait_for(lambda: (found := self.delivered(*outs)).total() >= rows and found, f"{rows} rows", timeout)
        except TimeoutError as error:
            listed = Jobs.finish(self.jobs.start(str(BINARY), "job", "list", "--coordinator", self.address)).output
            counts = {out: sum(len(batch["rows"]) for batch in self.batches(out)) for out in outs}
            delivered = self.delivered(*outs)
            ends = {number: max(offset for partition, offset in delivered if partition == number) for number, _ in delivered}
            missing = [(number, offset) for number, end in ends.items() for offset in range(end) if (number, offset) not in delivered]
            log = (self.jobs.folder / "service.log").read_text()[-3_000:]
            raise TimeoutError(f"{error}: {counts} arrived up to {ends}, without {missing[:50]}\n{listed}\n{log}") from error


@pytest.fixture
def service(jobs, package, cluster):
    return Service(jobs, package, cluster.url())


@pytest.fixture
def topics(cluster):
    return Topics(cluster.servers())


def is_exact(delivered: Counter, records: int, partitions: int, batch: int, streams: int = 1) -> None:
    """No offset is missing or repeated, except the last ones, which do not fill a batch."""
    assert max(delivered.values()) == 1, delivered.most_common(3)
    assert records - streams * batch < delivered.total() <= records, (delivered.total(), records)
    for partition in range(partitions):
        offsets = {offset for number, offset in delivered if number == partition}
        ends = len(range(partition, records, partitions))
        assert len(set(range(ends)) - offsets) < streams * batch, f"partition {partition}"


def interrupt(process, limit_s: float = 10.0) -> None:
    """Interrupts a rank, which ends at once although it waits for a batch."""
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - started < limit_s, errors
    assert "KeyboardInterrupt" in errors, errors


def test_kills_of_all_roles_lose_and_repeat_nothing(cluster, topics, service):
    """Three jobs follow a topic while a rank leaves, and a worker, the coordinator and a broker are killed."""
    topic = topics.create("kills", partitions=3, copies=3, min_insync_replicas=2)
    with Production(topics, topic, partitions=3, rate=1_500) as production:
        outs: dict[str, list[str]] = {}
        ranks: dict[str, list] = {}
        elastic = {"elastic": True, "virtual_consumers": 4}
        for job, settings in {"exact": {"window": 200}, "relaxed": {"order": "relaxed"}, "elastic": elastic}.items():
            outs[job] = [f"{job}{rank}" for rank in range(2)]
            ranks[job] = [service.follow(topic, out, name=job, rank=rank, ranks=2, **settings) for rank, out in enumerate(outs[job])]

        def wait_for_more(rows: int) -> None:
            before = {job: service.delivered(*names).total() for job, names in outs.items()}
            for job, names in outs.items():
                service.wait_for_rows(before[job] + rows, *names)

        wait_for_more(1_000)
        # Its slots move to the other rank.
        ranks["elastic"][1].terminate()
        assert Jobs.finish(ranks["elastic"][1]).code == 0
        service.workers[0].kill()
        wait_for_more(1_500)
        service.coordinator.kill()
        service.coordinator.wait()
        service.coordinator = service.start_coordinator()
        wait_for_more(1_500)
        cluster.kill(1)
        try:
            wait_for_more(3_000)
        finally:
            cluster.start_broker(1)
            cluster.wait_until_ready()
        records = production.end()
    for job, streams in {"exact": 2, "relaxed": 2, "elastic": 4}.items():
        delivered = service.wait_for_rows(records - 32 * streams + 1, *outs[job])
        is_exact(delivered, records, partitions=3, batch=32, streams=streams)
    for rank in (*ranks["exact"], *ranks["relaxed"], ranks["elastic"][0]):
        interrupt(rank)


def test_a_state_resumes_on_another_cluster_with_the_same_order(jobs, package, cluster, topics, service, tmp_path):
    """The state of one of two ranks resumes both of them as the slots of one rank."""
    topic = topics.create("resumed", partitions=2)
    # The job records all of them before its first batch, so their order is fixed.
    records = 6_000
    topics.produce(topic, records, partitions=2)
    ranks = [service.follow(topic, f"first{rank}", window=100, rank=rank, ranks=2, save_every=20) for rank in range(2)]
    service.wait_for_rows(records - 2 * 32 + 1, "first0", "first1")
    for rank in ranks:
        interrupt(rank)
    state = jobs.folder / "first0.40.state"
    assert len(state.read_text()) < 8_000, state.read_text()
    # A new cluster has no state of the job.
    topics.add_partitions(topic, 3)
    topics.produce(topic, 300, partitions=3)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other = Service(Jobs(other_folder), package, cluster.url(), workers=1)
    try:
        rest = other.follow(topic, "rest", window=100, state=str(state), virtual_consumers=2)
        other.wait_for_rows(records + 300 - 2 * 40 * 32 - 2 * 31, "rest")
        resumed = other.batches("rest")
        before = []
        for slot in range(2):
            whole, later = service.batches(f"first{slot}"), resumed[slot::2]
            before += whole[:40]
            known = min(len(whole) - 40, len(later)) - 2
            assert known > 10
            assert [batch["rows"] for batch in whole[40 : 40 + known]] == [batch["rows"] for batch in later[:known]]
        delivered = Counter(tuple(row) for batch in before + resumed for row in batch["rows"])
        assert max(delivered.values()) == 1
        assert {partition for partition, _ in delivered} == {0, 1, 2}
        interrupt(rest)
    finally:
        other.jobs.stop()


def test_epochs_age_and_a_waiting_rank(topics, service):
    """In steady state, records are delivered soon. Epochs end after a number of offsets."""
    topic = topics.create("steady", partitions=2)
    follower = service.follow(topic, "steady", batch=16, start="latest", source={"epoch": {"rows": 1_000}})
    topics.produce(topic, 64, partitions=2)
    # `start: latest` skips what was produced before the job opened.
    wait_for(lambda: topics.produce(topic, 16, partitions=2) or service.batches("steady"), "the first batch")

    def last_epoch() -> int:
        return max(batch["epoch"] for batch in service.batches("steady"))

    def undelivered(records: int) -> int:
        last = dict(sorted(service.delivered("steady")))
        return records - sum(offset + 1 for offset in last.values())

    def measure_p99_ms() -> float:
        """Produces records until four epochs have passed. Returns the 99th percentile of the age of the newest record of a batch."""
        before, end = len(service.batches("steady")), last_epoch() + 4
        with Production(topics, topic, partitions=2, rate=500) as production:
            wait_for(lambda: last_epoch() >= end, "four epochs")
            production.end()
        records = sum(topics.end_offset(topic, partition) for partition in range(2))
        wait_for(lambda: undelivered(records) < 16, "the last full batch")
        # The first epoch contains records that waited while the job opened.
        ages = sorted(batch["age_ms"] for batch in service.batches("steady")[before:] if batch["epoch"] > 0)
        median, p99 = ages[len(ages) // 2], ages[len(ages) * 99 // 100]
        print(f"\nage of the newest record of a batch: p50 {median:.0f} ms, p99 {p99:.0f} ms, {len(ages)} batches")
        return p99

    # Brokers, workers and other tests share two busy cores. A broker or a worker may pause for seconds, and all records of this time
    # are then in the last percent. Two measurements with such a pause are unlikely, and a regression affects both of them.
    p99s_ms = [measure_p99_ms()]
    if p99s_ms[0] > 2_000:
        p99s_ms.append(measure_p99_ms())
    assert min(p99s_ms) <= 2_000, p99s_ms
    rows = Counter()
    batches = service.batches("steady")
    for batch in batches:
        rows[batch["epoch"]] += len(batch["rows"])
    assert sorted(rows) == list(range(max(rows) + 1)) and max(rows) >= 3
    assert all(abs(rows[epoch] - 1_000) < 16 for epoch in range(1, max(rows))), rows
    assert [batch["epoch"] for batch in batches] == sorted(batch["epoch"] for batch in batches)
    # The rank waits for records, while the coordinator keeps its leases.
    interrupt(follower)


def test_old_records_determine_the_columns_although_the_oldest_one_is_malformed(topics, service):
    """The newest records are tombstones, so the worker searches older ones."""
    topic = topics.create("removed")
    producer = topics.producer()
    for value in ["malformed", *[json.dumps({"n": number}) for number in range(64)], *[None] * 1_500]:
        send(producer, topic, value, key="key")
    assert producer.flush(60) == 0
    follower = service.follow(topic, "removed", batch=16, start="latest")
    wait_for(lambda: topics.produce(topic, 16) or service.batches("removed"), "the first batch")
    interrupt(follower)


def test_open_and_aborted_transactions_are_not_delivered_and_do_not_stall_other_partitions(topics, service):
    """The first partition has an open transaction, and records after it."""
    topic = topics.create("transactions", partitions=2)
    topics.produce(topic, 32, partitions=2)
    follower = service.follow(topic, "transactions", batch=16)
    producer = topics.producer(transactional_id="open", transaction_timeout_ms=300_000)
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(50):
        send(producer, topic, json.dumps({"n": number}))
    assert producer.flush(30) == 0
    topics.produce(topic, 640, partitions=2)

    def delivered_after(partition: int, offsets: int) -> set[int]:
        """Produces records until the first ones of a partition are delivered. Returns all delivered offsets of the first partition."""
        delivered = service.delivered("transactions")
        if not {(partition, offset) for offset in range(offsets)} - aborted <= set(delivered):
            topics.produce(topic, 32, partitions=2)
            return set()
        assert max(delivered.values()) == 1
        return {offset for number, offset in delivered if number == 0}

    aborted = {(0, offset) for offset in range(16, 66)}
    assert wait_for(lambda: delivered_after(1, 320), "the records of the second partition") == set(range(16))
    end = topics.end_offset(topic)
    producer.abort_transaction(30)
    # The brokers write the marker of the abort soon after they answer.
    wait_for(lambda: topics.end_offset(topic) == end + 1, "the marker")
    aborted.add((0, end))
    offsets = wait_for(lambda: delivered_after(0, end + 20), "the records after the transaction")
    assert offsets == set(range(max(offsets) + 1)) - {offset for _, offset in aborted}
    interrupt(follower)


def test_added_partitions_and_topics_are_read_from_their_first_record(topics, service):
    first = topics.create("grow-a")
    follower = service.follow("^grow-.*", "grown", batch=16)
    topics.produce(first, 64)
    service.wait_for_rows(64, "grown")
    topics.add_partitions(first, 2)
    added = {first: 1, topics.create("grow-b", partitions=3): 2}
    producer = topics.producer()
    for topic, partition in added.items():
        for number in range(100):
            send(producer, topic, json.dumps({"n": number}), partition)
    assert producer.flush(60) == 0
    expected = {(partition, offset) for partition in added.values() for offset in range(100)}
    wait_for(lambda: topics.produce(first, 16) or expected <= set(service.delivered("grown")), "the added records")
    delivered = service.delivered("grown")
    assert max(delivered.values()) == 1 and set(delivered) - expected == {(0, offset) for offset in range(delivered.total() - 200)}
    interrupt(follower)


def test_a_topic_that_is_deleted_ends_the_job_and_an_outage_does_not(tmp_path_factory, jobs, package):
    brokers = Brokers(tmp_path_factory.mktemp("outage") / "kafka")
    try:
        brokers.start()
        topics = Topics(brokers.servers())
        topic, again = topics.create("outage"), topics.create("again")
        topics.produce(topic, 320)
        topics.produce(again, 32)
        service = Service(jobs, package, brokers.url(), workers=1)
        rank = service.follow(topic, "outage")
        other = service.follow(again, "again", name="again")
        service.wait_for_rows(320, "outage")
        service.wait_for_rows(32, "again")
        brokers.kill(0)
        listed = [str(BINARY), "job", "list", "--coordinator", service.address]
        wait_for(lambda: "wait reason" in Jobs.finish(jobs.start(*listed)).output, "the reason")
        brokers.start_broker(0)
        brokers.wait_until_ready()
        topics.produce(topic, 320)
        delivered = service.wait_for_rows(640, "outage")
        assert max(delivered.values()) == 1
        topics.delete(topic)
        topics.delete(again)
        wait_for(lambda: not topics.exists(again), "the deletion")
        topics.create(again)
        _, errors = rank.communicate(timeout=60)
        assert "does not exist" in errors or "no longer exists" in errors, errors
        _, errors = other.communicate(timeout=60)
        assert "deleted and created again" in errors, errors
    finally:
        brokers.stop()


def test_a_leader_without_delivered_records_fails_the_job(cluster, topics, service):
    topic = topics.create_on("truncated", [0, 1], unclean_leader_election_enable="true", min_insync_replicas=1)
    topics.produce(topic, 320)
    follower = service.follow(topic, "truncated")
    service.wait_for_rows(320, "truncated")
    cluster.kill(1)
    try:
        topics.produce(topic, 320)
        service.wait_for_rows(640, "truncated")
        cluster.kill(0)
    finally:
        cluster.start_broker(1)
    try:
        _, errors = follower.communicate(timeout=120)
        assert "ends at offset 320, but the job has recorded the offsets before 640" in errors, errors
    finally:
        if cluster.processes[0] is None:
            cluster.start_broker(0)
        cluster.wait_until_ready()


def test_schemas_lag_and_commits(topics, service, registry):
    """A producer changes its schema while the job follows the topic."""
    topic = topics.create("tracked", partitions=2)
    number, text = {"name": "n", "type": "long"}, {"name": "text", "type": "string", "default": "none"}
    first = registry.register("tracked-value", avro_schema(number))
    producer = topics.producer()

    def produce(schema: int, rest: bytes = b"") -> None:
        """Produces 320 records in each partition."""
        for row in range(640):
            send(producer, topic, framed(schema, zigzag(row) + rest), row % 2)
        assert producer.flush(30) == 0

    produce(first)
    payload = {"format": "avro", "registry": registry.url}
    follower = service.follow(topic, "tracked", batch=16, source={"payload": payload, "commit_group": "feedline-tracked"})
    service.wait_for_rows(640, "tracked")
    produce(registry.register("tracked-value", avro_schema(number, text)), zigzag(3) + b"new")
    delivered = service.wait_for_rows(1_280, "tracked")
    assert max(delivered.values()) == 1

    def lag_and_age() -> tuple[float | None, float | None]:
        metrics = read_metrics(service.metrics)
        return total(metrics, "feedline_coordinator_job_lag_rows"), total(metrics, "feedline_coordinator_job_freshness_seconds")

    # The consumer acknowledges a batch when it requests the next one.
    wait_for(lambda: (found := lag_and_age())[0] is not None and found[0] <= 32 and found[1] is not None, "lag and freshness")
    # The second half of the records follows the first one in later segments.
    wait_for(lambda: min(committed(topics, "feedline-tracked", topic, 2).values()) >= 320, "a commit")
    assert max(committed(topics, "feedline-tracked", topic, 2).values()) <= 640
    interrupt(follower)
