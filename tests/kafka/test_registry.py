"""Payloads in Confluent's wire format with a real schema registry, Apicurio Registry."""

import json
import signal

from registry import avro_schema, framed, zigzag
from slow_job import SlowJob
from topics import send

ROWS = 300


def produce(topics, name, payloads):
    topics.create(name)
    producer = topics.producer()
    for payload in payloads:
        send(producer, name, payload)
    assert producer.flush(30) == 0


def test_avro_payloads_of_two_versions_are_read_with_the_newest_schema(brokers, topics, jobs, registry):
    number = {"name": "n", "type": "long"}
    text = {"name": "text", "type": "string", "default": "none"}
    first = registry.register("avro-value", avro_schema(number))
    second = registry.register("avro-value", avro_schema(number, text))
    assert first != second
    old = [framed(first, zigzag(row)) for row in range(ROWS)]
    new = [framed(second, zigzag(row) + zigzag(3) + b"new") for row in range(ROWS)]
    produce(topics, "avro", old + new)
    payload = f"payload: {{ format: avro, registry: '{registry.url}' }}"
    where = "  - filter: { where: \"text = 'none' AND n >= 100\" }\n"
    pipeline = jobs.pipeline(brokers.url(), "avro", payload, operators=where)
    report = jobs.run(pipeline, "--audit").report
    assert report["rows"] == ROWS - 100 and report["audit"]["expected"] == 2 * ROWS, report
    unknown = jobs.pipeline(brokers.url(), "unknown", payload.replace("registry:", "subject: avro-value, registry:"))
    produce(topics, "unknown", [*old[:5], framed(987_654, b"")])
    result = jobs.run(unknown)
    assert result.code == 1 and "schema 987654 of the payload does not exist" in result.errors, result.errors


def test_protobuf_and_json_payloads(brokers, topics, jobs, registry):
    protobuf = registry.register("proto-value", 'syntax = "proto3"; message Event { int64 n = 1; string text = 2; }', "PROTOBUF")
    # The index of the first message is the byte 0.
    produce(topics, "proto", [framed(protobuf, b"\0\x08" + bytes([row % 128]) + b"\x12\x02hi") for row in range(ROWS)])
    payload = f"payload: {{ format: protobuf, registry: '{registry.url}' }}"
    pipeline = jobs.pipeline(brokers.url(), "proto", payload, operators="  - filter: { where: \"n = 7 AND text = 'hi'\" }\n")
    assert jobs.run(pipeline).report["rows"] == 3
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    number = registry.register("schema-value", json.dumps(schema), "JSON")
    produce(topics, "schema", [framed(number, json.dumps({"n": row}).encode()) for row in range(ROWS)])
    payload = f"payload: {{ format: json_schema, registry: '{registry.url}' }}"
    pipeline = jobs.pipeline(brokers.url(), "schema", payload, operators='  - filter: { where: "n < 10" }\n')
    assert jobs.run(pipeline).report["rows"] == 10


def test_a_registry_that_stops_does_not_stop_a_job_that_knows_its_schemas(brokers, topics, jobs, registry):
    schema = registry.register("stopped-value", avro_schema({"name": "n", "type": "long"}, {"name": "text", "type": "string"}))
    text = zigzag(3000) + b"x" * 3000
    produce(topics, "stopped", [framed(schema, zigzag(row) + text) for row in range(12_000)])
    pipeline = jobs.pipeline(brokers.url(), "stopped", f"payload: {{ format: avro, registry: '{registry.url}' }}")
    # A worker with little memory has not fetched all records before the registry stops.
    whole = jobs.run(pipeline, "--memory", "64MiB", "--audit").report
    job = SlowJob(jobs, pipeline, 40, "--memory", "64MiB")
    job.wait_for_more_rows()
    registry.process.send_signal(signal.SIGSTOP)
    try:
        report = jobs.finish(job.process).report
    finally:
        registry.process.send_signal(signal.SIGCONT)
    assert report["rows"] == 12_000 and report["digest"] == whole["digest"], (report, whole)


def test_a_job_that_resumes_keeps_its_columns_although_the_schema_is_newer(brokers, topics, jobs, registry):
    number = {"name": "n", "type": "long"}
    first = registry.register("resumed-value", avro_schema(number))
    produce(topics, "resumed", [framed(first, zigzag(row)) for row in range(ROWS)])
    pipeline = jobs.pipeline(brokers.url(), "resumed", f"payload: {{ format: avro, registry: '{registry.url}' }}")
    whole = jobs.run(pipeline, "--audit").report
    position = str(jobs.folder / "position.json")
    before = jobs.run(pipeline, "--position", position, "--limit", "128").report
    registry.register("resumed-value", avro_schema(number, {"name": "text", "type": "string", "default": "none"}))
    after = jobs.run(pipeline, "--position", position).report
    assert before["rows"] + after["rows"] == ROWS and after["digest"] == whole["digest"], (before, after, whole)
    # A new job has the new column.
    assert jobs.run(pipeline, "--audit").report["digest"] != whole["digest"]


def test_a_new_job_of_a_worker_that_knows_the_schema_has_the_columns_of_a_newer_one(brokers, topics, jobs, registry):
    number = {"name": "n", "type": "long"}
    first = registry.register("renewed-value", avro_schema(number))
    produce(topics, "renewed", [framed(first, zigzag(row)) for row in range(ROWS)])
    payload = f"payload: {{ format: avro, registry: '{registry.url}' }}"
    cluster = jobs.start_cluster()
    assert jobs.run(jobs.pipeline(brokers.url(), "renewed", payload), cluster=cluster).report["rows"] == ROWS
    registry.register("renewed-value", avro_schema(number, {"name": "text", "type": "string", "default": "none"}))
    newer = jobs.pipeline(brokers.url(), "renewed", payload, operators="  - filter: { where: \"text = 'none'\" }\n")
    assert jobs.run(newer, cluster=cluster).report["rows"] == ROWS
