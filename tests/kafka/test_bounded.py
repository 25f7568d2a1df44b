"""A bounded job reads each record once, in the same order on any number of workers, and resumes exactly."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from jobs import BINARY, wait_for
from offsets import committed
from topics import send

ROWS = 20_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def events(topics):
    name = topics.create("events", partitions=4)
    # Each partition contains batches of each codec.
    part = ROWS // len(CODECS)
    for number, codec in enumerate(CODECS):
        topics.produce(name, part, partitions=4, first=number * part, padding=40, compression_type=codec)
    return name


def delivered_once(report):
    audit = report["audit"]
    return audit["missing"] == 0 and audit["repeated"] == 0


@pytest.mark.parametrize("shuffle", [0, 4096])
def test_the_digest_does_not_depend_on_the_number_of_workers(brokers, jobs, events, shuffle):
    pipeline = jobs.pipeline(brokers.url(), events, "payload: json", f"until: {{ offsets: {{ {events}/0: 4000 }} }}")
    pipeline.write_text(pipeline.read_text() + f"shuffle: {{ window: {shuffle} }}\n")
    reports = [jobs.run(pipeline, "--audit", "--workers", str(workers)).report for workers in (1, 3)]
    assert reports[0]["digest"] == reports[1]["digest"]
    for report in reports:
        assert report["rows"] == ROWS - 1000, report
        assert delivered_once(report)


def test_a_job_resumes_with_the_offsets_of_its_position(brokers, topics, jobs):
    name = topics.create("growing", partitions=2)
    topics.produce(name, 6000, partitions=2)
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json")
    whole = jobs.run(pipeline, "--audit").report
    position = str(jobs.folder / "position.json")
    first = jobs.run(pipeline, "--position", position, "--limit", "2000").report
    # Records and partitions that are added meanwhile belong to later jobs.
    topics.produce(name, 1000, partitions=2, first=6000)
    topics.add_partitions(name, 3)
    # The position contains the offsets, so the job resumes on other coordinators.
    shutil.rmtree(jobs.folder / "index")
    rest = jobs.run(pipeline, "--position", position).report
    assert first["rows"] + rest["rows"] == whole["rows"] == 6000
    assert rest["digest"] == whole["digest"]
    later = wait_for(lambda: (report := jobs.run(pipeline, "--audit").report)["rows"] == 7000 and report, "the new records")
    assert delivered_once(later)


def test_a_topic_that_was_created_again_is_rejected(brokers, topics, jobs):
    name = topics.create("recreated")
    topics.produce(name, 500)
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json")
    position = str(jobs.folder / "position.json")
    jobs.run(pipeline, "--position", position, "--limit", "100").report
    topics.delete(name)
    wait_for(lambda: not topics.exists(name), "the deletion")
    topics.create(name)
    topics.produce(name, 500)
    result = jobs.run(pipeline, "--position", position)
    assert result.code == 1 and "deleted and created again" in result.errors, result.errors


def test_columns_of_records_and_times(brokers, topics, jobs):
    name = topics.create("columns")
    producer = topics.producer()
    # Brokers reject times far in the future, and retention deletes those far in the past.
    first = int(time.time()) * 1000 - 60_000
    for number in range(10):
        headers = [("n", "first"), ("raw", b"\xff\x00"), ("none", None), ("n", str(number))]
        send(producer, name, f"text {number}", key=f"k{number}", timestamp=first + number * 1000, headers=headers)
    producer.flush(30)
    headers = """headers LIKE '{"n":"_","none":null,"raw":[255,0]}'"""
    where = f"key IS NOT NULL AND {headers} AND timestamp >= {first + 3000} AND partition = 0 AND offset < 8"
    operators = f"  - filter: {{ where: {json.dumps(where)} }}\n"
    times = (f"start: {{ time: {first + 2000} }}", f"until: {{ time: {first + 9000} }}")
    pipeline = jobs.pipeline(brokers.url(), name, "payload: text", *times, operators=operators)
    report = jobs.run(pipeline, "--audit").report
    assert report["rows"] == 5, report
    assert report["audit"]["expected"] == 7, report


def test_a_pattern_selects_topics_and_mixes_with_files(brokers, topics, jobs):
    for name in ("part-a", "part-b", "other-part-a", "listed"):
        topics.create(name)
        topics.produce(name, 300)
    lines = jobs.folder / "lines.jsonl"
    lines.write_text("".join(json.dumps({"n": number, "text": "file"}) + "\n" for number in range(400)))
    # A topic that a name and a pattern select is read once.
    pipeline = jobs.pipeline(brokers.url(), '[listed, "^part-.*", part-a]', "payload: json")
    report = jobs.run(pipeline, "--audit").report
    assert report["rows"] == 900 and delivered_once(report), report
    mixed = jobs.folder / "mixed.yaml"
    kafka = f"{{ url: {brokers.url()}, format: kafka, topics: part-a, payload: json, features: {{ n: n, text: text }} }}"
    mixed.write_text(
        f"name: mixed\nsource:\n  mix:\n    - {kafka}\n    - {{ url: {lines}, format: jsonl }}\noperators: [ batch: {{ size: 50 }} ]\n"
    )
    report = jobs.run(mixed, "--audit").report
    assert report["rows"] == 700 and delivered_once(report)


def test_records_of_aborted_transactions_are_not_rows(brokers, topics, jobs):
    name = topics.create("transactions")
    producer = topics.producer(transactional_id="t1", transaction_timeout_ms=300_000)
    producer.init_transactions(30)
    for number in range(30):
        producer.begin_transaction()
        for row in range(20):
            send(producer, name, json.dumps({"n": number * 20 + row}))
        producer.flush(30)
        if number % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    # The job ends before an open transaction.
    producer.begin_transaction()
    send(producer, name, json.dumps({"n": -1}))
    producer.flush(30)
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json", batch=7)
    committed = [jobs.run(pipeline, "--audit", "--workers", workers).report for workers in ("1", "3")]
    assert committed[0]["rows"] == 400 and committed[0]["digest"] == committed[1]["digest"]
    assert all(delivered_once(report) for report in committed)
    dirty = jobs.pipeline(brokers.url(), name, "payload: json", "isolation: read_uncommitted")
    assert jobs.run(dirty).report["rows"] == 601
    producer.abort_transaction(30)


def test_compaction_and_tombstones(brokers, topics, jobs):
    name = topics.create(
        "compacted", cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01, delete_retention_ms=1_000_000, max_compaction_lag_ms=100
    )
    producer = topics.producer()
    for number in range(2000):
        send(producer, name, json.dumps({"n": number}), key=f"k{number % 50}")
    for number in range(10):
        send(producer, name, None, key=f"k{number}")
    producer.flush(30)
    counts = [0]

    def compacted():
        counts.append(len(read_directly(brokers.servers(), name)))
        # Only the newest record of each of 51 keys, and the active segment, remain. Nothing more can be removed.
        if counts[-1] <= 52:
            return True
        if counts[-1] == counts[-2]:
            # A record in a new segment makes the earlier segments eligible.
            send(producer, name, json.dumps({"n": -1}), key="last")
            producer.flush(30)
        return False

    wait_for(compacted, "compaction")
    records = read_directly(brokers.servers(), name)
    values = [value for value in records if value is not None]
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json")
    report = jobs.run(pipeline, "--audit").report
    assert report["rows"] == len(values) and delivered_once(report), report
    nulls = jobs.pipeline(brokers.url(), name, "payload: json", 'on_tombstone: "null"')
    assert jobs.run(nulls, "--audit").report["rows"] == len(records)


@pytest.mark.parametrize(("tombstones", "start"), [("skip", "earliest"), ('"null"', "latest")])
def test_lint_and_explain_of_a_pipeline_without_an_end(brokers, jobs, events, tombstones, start):
    pipeline = jobs.pipeline(brokers.url(), events, "payload: json", "until: none", f"start: {start}", f"on_tombstone: {tombstones}")
    linted = jobs.call("lint", pipeline).report
    assert linted["errors"] == 0 and linted["dataset"]["rows"] == ROWS, linted
    assert {"n", "text", "partition", "offset"} <= {column["name"] for column in linted["dataset"]["columns"]}, linted
    previewed = jobs.finish(jobs.start(str(BINARY), "preview", str(pipeline), "--rows", "5"))
    assert "offset" in previewed.output and previewed.code == 0, previewed
    # The records that the topic retains are read more than once.
    explained = jobs.call("explain", pipeline, "--seconds", "3", "--index-dir", str(jobs.folder / "index")).report
    assert explained["rows"] > 0 and explained["operators"], explained


def test_lint_of_a_topic_without_records(brokers, topics, jobs):
    pipeline = jobs.pipeline(brokers.url(), topics.create("silent"), "payload: json", "until: none")
    [finding] = jobs.call("lint", pipeline).report["findings"]
    assert finding["check"] == "no-records", finding


def read_directly(servers, name):
    """Returns the payloads of a partition."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "direct", "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition(name, 0, 0)])
    values = []
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return values
        values.append(message.value())


def test_records_that_were_deleted(brokers, topics, jobs):
    name = topics.create("deleted")
    topics.produce(name, 2000)
    failing, skipping = (jobs.pipeline(brokers.url(), name, "payload: json", f"on_gap: {choice}") for choice in ("fail", "skip"))
    positions = {pipeline: str(jobs.folder / f"{pipeline.stem}.json") for pipeline in (failing, skipping)}
    for pipeline, position in positions.items():
        assert jobs.run(pipeline, "--position", position, "--limit", "64").report["rows"] == 64
    topics.delete_records(name, before=64)
    delivered = jobs.run(failing, "--position", shutil.copy(positions[failing], jobs.folder / "copy.json"))
    assert delivered.report["rows"] == 2000 - 64, "only delivered records were deleted"
    topics.delete_records(name, before=1500)
    # The block that contains the next row begins at offset 0, but the job does not need the delivered records again.
    result = jobs.run(failing, "--position", positions[failing])
    reason = "the log starts at offset 1500: retention or a user has deleted them; set `on_gap: skip`"
    assert result.code == 1 and f"the records from offset 64 to 1499 no longer exist, because {reason}" in result.errors, result.errors
    result = jobs.run(skipping, "--position", positions[skipping])
    assert result.report["rows"] == 500, result
    [line] = [line for line in result.errors.splitlines() if "skipping records that no longer exist" in line]
    assert "topic=deleted partition=0 from=0 to=1500" in line, line


def test_records_without_commit_at_the_end_of_a_range(brokers, topics, jobs):
    """The last blocks of the range have no record."""
    name = topics.create("aborted")
    topics.produce(name, 1000)
    producer = topics.producer(transactional_id="long", batch_num_messages=10_000)
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(15_000):
        send(producer, name, "aborted")
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    # The brokers write the marker of the abort soon after they answer.
    wait_for(lambda: topics.end_offset(name) == 1000 + 15_000 + 1, "the marker")
    for shuffle in (0, 512):
        pipeline = jobs.pipeline(brokers.url(), name, "payload: json")
        pipeline.write_text(pipeline.read_text() + f"shuffle: {{ window: {shuffle} }}\n")
        for workers in ("1", "3"):
            report = jobs.run(pipeline, "--audit", "--workers", workers, timeout=50).report
            assert report["rows"] == 1000 and delivered_once(report)


# The response with the second record is larger than a response that the worker accepts.
@pytest.mark.parametrize(
    ("size", "sentence"),
    [(20_000_000, "the record at offset 3000 has 2000"), (40_000_000, "a response of the brokers with the records from offset 3000 has 4000")],
)
def test_a_record_larger_than_the_memory_budget_is_one_sentence(brokers, topics, jobs, size, sentence):
    name = topics.create(f"large{size}", max_message_bytes=100_000_000)
    topics.produce(name, 3000, padding=2000)
    producer = topics.producer(message_max_bytes=100_000_000)
    send(producer, name, json.dumps({"n": 0, "text": "x" * size}))
    producer.flush(60)
    topics.produce(name, 3000, padding=100)
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json", f"start: {{ offsets: {{ {name}/0: 1500 }} }}")
    position = str(jobs.folder / "position.json")
    before = jobs.run(pipeline, "--memory", "64MiB", "--position", position, "--limit", "640").report["rows"]
    result, peak = jobs.run_with_peak(pipeline, "--memory", "64MiB", "--position", position)
    # Besides `--memory`, a process uses up to 96 MiB for the program itself, its threads and the saved index. A job with small records
    # uses about 95 MiB in a debug build, and this job about 110 MiB.
    assert peak < (64 + 96) << 20, peak
    assert result.code == 1 and f"/{name}/0" in result.errors, result.errors
    assert sentence in result.errors, result.errors
    [needed] = re.findall(r"`--memory` to at least (\d+)MiB", result.errors)
    # Nothing is lost: the rows before the position and those of the last run are all rows of the range. The run that failed may have
    # delivered rows before the large record.
    delivered = json.loads(Path(position).read_text())["rows"]
    assert before == 640 <= delivered <= 1500
    # The message is about the large record alone. Its block has up to 1 MiB of other records, and may use a quarter of the memory.
    report = jobs.run(pipeline, "--memory", f"{int(needed) + 8}MiB", "--position", position).report
    assert delivered + report["rows"] == 1500 + 1 + 3000, (delivered, report)


def test_more_partitions_than_the_memory_budget_fetches_at_a_time(brokers, topics, jobs):
    name = topics.create("many", partitions=100)
    topics.produce(name, 10_000, partitions=100)
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json")
    report = jobs.run(pipeline, "--memory", "64MiB", "--audit").report
    assert report["rows"] == 10_000 and delivered_once(report)


def test_delivered_offsets_are_committed_to_a_group(brokers, topics, jobs):
    name = topics.create("grouped", partitions=3)
    topics.produce(name, 900, partitions=3)
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json", "commit_group: feedline-lag")
    position = str(jobs.folder / "position.json")
    # The brokers choose and start the coordinator of the group.
    assert max(committed(topics, "feedline-lag", name, 3).values()) < 0
    jobs.run(pipeline, "--position", position, "--limit", "448").report
    assert committed(topics, "feedline-lag", name, 3) == {0: 300, 1: 148, 2: 0}
    # The group is not read: a position saved without it continues, and a new job reads everything.
    plain = jobs.pipeline(brokers.url(), name, "payload: json")
    assert jobs.run(plain, "--position", position).report["rows"] == 452
    assert jobs.run(pipeline).report["rows"] == 900
    assert committed(topics, "feedline-lag", name, 3) == {0: 300, 1: 300, 2: 300}


def test_bad_input_is_one_sentence(brokers, topics, jobs):
    topics.create("text")
    producer = topics.producer()
    send(producer, "text", "no json")
    producer.flush(30)
    for topic, settings, expected in [
        ("absent", [], "the topic `absent` does not exist"),
        ('"^none-.*"', [], "no topic matches"),
        ("text", ["start: { offsets: { text/0: 7 } }"], "behind the end of the partition"),
        ("text", ["payload: json"], "none of the sampled payloads is a JSON object"),
        ("text", ["start: latest"], "no rows"),
    ]:
        result = jobs.run(jobs.pipeline(brokers.url(), topic, *settings))
        assert result.code == 1 and expected in result.errors, (expected, result.errors)
        assert len(result.errors.strip().splitlines()) <= 2, result.errors


def test_one_bad_payload_is_named_by_its_offset(brokers, topics, jobs):
    name = topics.create("mostly-json")
    topics.produce(name, 100)
    producer = topics.producer()
    send(producer, name, "{ broken")
    producer.flush(30)
    topics.produce(name, 100)
    failing = jobs.pipeline(brokers.url(), name, "payload: json")
    result = jobs.run(failing)
    assert result.code == 1 and f"/{name}/0, row 100 at offset 100" in result.errors, result.errors
    skipping = jobs.pipeline(brokers.url(), name, "payload: json")
    skipping.write_text(skipping.read_text() + "on_error: skip\n")
    report = jobs.run(skipping, "--audit").report
    assert report["rows"] == 200, report


def test_unreachable_brokers_are_reported(jobs):
    started = time.monotonic()
    pipeline = jobs.pipeline("kafka://127.0.0.1:9", "events")
    result = jobs.run(pipeline, "--store-retry-timeout", "2s")
    assert result.code == 1 and "127.0.0.1:9" in result.errors and "refused" in result.errors.lower(), result.errors
    fix = "check the URL, the brokers and the network, and whether the brokers need TLS"
    assert fix in result.errors.strip().splitlines()[-1], result.errors
    assert time.monotonic() - started < 40


def test_hosts_obey_the_policy(brokers, jobs):
    pipeline = jobs.pipeline(brokers.url(), "events")
    result = jobs.run(pipeline, "--allow-url", "kafka://other:9092")
    assert result.code != 0 and "outside the allowed URLs" in result.errors, result.errors
