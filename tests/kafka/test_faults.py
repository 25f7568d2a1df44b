"""Three brokers: leaders change, a broker is killed, a worker is killed, and a leader without the latest records is elected."""

import re
import shutil
import signal

import pytest
from brokers import free_ports
from confluent_kafka import KafkaException
from jobs import BINARY, Jobs, is_listening, wait_for
from slow_job import SlowJob
from topics import Topics

ROWS = 40_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def events(cluster):
    topics = Topics(cluster.servers())
    name = topics.create("events", partitions=PARTITIONS, copies=3, min_insync_replicas=2)
    topics.produce(name, ROWS, partitions=PARTITIONS, padding=500)
    return name


@pytest.fixture(scope="module")
def digest(cluster, events, tmp_path_factory):
    jobs = Jobs(tmp_path_factory.mktemp("reference"))
    try:
        report = jobs.run(jobs.pipeline(cluster.url(), events, "payload: json"), "--audit").report
    finally:
        jobs.stop()
    assert report["rows"] == ROWS
    return report["digest"]


def is_whole(report, digest):
    audit = report["audit"]
    assert (report["rows"], audit["missing"], audit["repeated"]) == (ROWS, 0, 0), report
    assert report["digest"] == digest


def test_a_killed_broker_loses_and_repeats_nothing(cluster, events, digest, jobs):
    job = SlowJob(jobs, jobs.pipeline(cluster.url(), events, "payload: json"), 10, "--workers", "2")
    job.wait_for_more_rows()
    cluster.kill(1)
    try:
        is_whole(jobs.finish(job.process).report, digest)
    finally:
        cluster.start_broker(1)
        cluster.wait_until_ready()


def test_leaders_that_change_lose_and_repeat_nothing(cluster, events, digest, jobs):
    pipeline, position = jobs.pipeline(cluster.url(), events, "payload: json"), str(jobs.folder / "position.json")
    # The job outlasts the restarts of both brokers.
    job = SlowJob(jobs, pipeline, 150, "--position", position)
    for number in (0, 2):
        job.wait_for_more_rows(640)
        # A broker that stops in order hands its partitions over.
        cluster.processes[number].terminate()
        cluster.processes[number].wait(60)
        cluster.start_broker(number)
        cluster.wait_until_ready()
    job.wait_for_more_rows(640)
    job.process.send_signal(signal.SIGINT)
    slow = jobs.finish(job.process).report
    rest = jobs.run(pipeline, "--audit", "--position", position).report
    for report in (slow, rest):
        assert (report["audit"]["missing"], report["audit"]["repeated"]) == (0, 0), report
    assert slow["rows"] + rest["rows"] == ROWS and rest["digest"] == digest, (slow, rest)


def test_brokers_that_do_not_answer_for_some_time_do_not_fail_a_job(brokers, topics, jobs):
    name = topics.create("frozen", partitions=2)
    topics.produce(name, ROWS, partitions=2, padding=1500)
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json")
    digest = jobs.run(pipeline, "--audit").report["digest"]
    log = jobs.folder / "log"
    # A worker with little memory has not fetched all 60 MB of records before the outage.
    job = SlowJob(jobs, pipeline, 10, "--memory", "32MiB", "--buffer", "1MiB", log=log)
    job.wait_for_more_rows()
    [broker] = brokers.processes
    broker.send_signal(signal.SIGSTOP)
    try:
        is_noticed = lambda: "waiting for the source" in log.read_text() or job.process.poll() is not None  # noqa: E731
        wait_for(is_noticed, "a read fails")
        assert "waiting for the source" in log.read_text(), "the job has ended before a read failed"
    finally:
        broker.send_signal(signal.SIGCONT)
    is_whole(jobs.finish(job.process).report, digest)


def test_records_that_retention_deletes_while_a_job_reads_are_one_sentence(brokers, topics, jobs):
    name = topics.create("retained", segment_bytes=1 << 20)
    topics.produce(name, ROWS, padding=1500)
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json")
    # The worker has not fetched all 60 MB of records before retention deletes them.
    job = SlowJob(jobs, pipeline, 10, "--memory", "32MiB", "--buffer", "1MiB")
    job.wait_for_more_rows()
    topics.set_config(name, retention_bytes=1 << 20)
    result = jobs.finish(job.process)
    pattern = (
        r"the records from offset (\d+) to \d+ no longer exist, because the log starts at offset (\d+): retention or a user has deleted them; "
        r"set `on_gap: skip`"
    )
    lost = set(re.findall(pattern, result.errors))
    assert result.code == 1 and len(lost) == 1, result.errors
    [(first, start)] = lost
    assert 4_000 <= int(first) < int(start) < ROWS, lost


@pytest.mark.parametrize("killed", ["worker", "coordinator"])
def test_a_killed_role_loses_and_repeats_nothing(cluster, events, digest, jobs, tmp_path, killed):
    control, *data = free_ports(3)
    address = f"http://127.0.0.1:{control}"
    coordinate = [str(BINARY), "coordinator", "--listen", f"127.0.0.1:{control}", "--data-dir", str(tmp_path / "coordinator")]
    coordinator = jobs.start(*coordinate)
    wait_for(lambda: is_listening(control), "the coordinator listens")
    workers = [jobs.start(str(BINARY), "worker", "--coordinator", address, "--listen", f"127.0.0.1:{port}") for port in data]
    pipeline = jobs.pipeline(cluster.url(), events, "payload: json")
    job = SlowJob(jobs, pipeline, 10, cluster=address)
    job.wait_for_more_rows()
    if killed == "worker":
        workers[0].kill()
    else:
        coordinator.kill()
        coordinator.wait()
        coordinator = jobs.start(*coordinate)
    is_whole(jobs.finish(job.process).report, digest)
    for one in (coordinator, *workers):
        one.terminate()


def test_lost_and_replaced_records_are_an_error(cluster, jobs):
    """A replica without the latest records becomes the leader, and receives others at their offsets."""
    topics = Topics(cluster.servers())
    name = topics.create_on("replaced", [0, 1], unclean_leader_election_enable="true", min_insync_replicas=1)
    topics.produce(name, 1000)
    cluster.kill(1)
    try:
        topics.produce(name, 1000, first=1000)
        failing, skipping = (jobs.pipeline(cluster.url(), name, "payload: json", f"on_gap: {choice}") for choice in ("fail", "skip"))
        positions = {pipeline: str(jobs.folder / f"{pipeline.stem}.json") for pipeline in (failing, skipping)}
        for pipeline, position in positions.items():
            assert jobs.run(pipeline, "--position", position, "--limit", "64").report["rows"] == 64
        cluster.kill(0)
    finally:
        cluster.start_broker(1)

    def is_truncated():
        try:
            return topics.end_offset(name) == 1000
        except (KafkaException, TimeoutError):
            return False

    def resume(pipeline):
        position = jobs.folder / f"copy-{pipeline.stem}.json"
        shutil.copy(positions[pipeline], position)
        return jobs.run(pipeline, "--position", str(position))

    try:
        wait_for(is_truncated, "the other leader")
        result = resume(failing)
        reason = "the log ends at offset 1000: a replica without them became the leader; set `on_gap: skip`"
        assert result.code == 1 and f"the records from offset 1000 to 1999 no longer exist, because {reason}" in result.errors, result.errors
        assert resume(skipping).report["rows"] == 1000 - 64
        topics.produce(name, 1500, first=5000)
    finally:
        if cluster.processes[0] is None:
            cluster.start_broker(0)
        cluster.wait_until_ready()
    result = resume(failing)
    reason = "the log was truncated before or at offset 1000 and has other records now: a replica without them became the leader"
    assert result.code == 1 and f"the records from offset 1000 to 1999 no longer exist, because {reason}" in result.errors, result.errors
    result = resume(skipping)
    assert result.report["rows"] == 2000 - 64, result
    assert "continuing with records that replaced others" in result.errors, result.errors
