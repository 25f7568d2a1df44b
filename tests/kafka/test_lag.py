"""Lag, freshness and commits of a job that runs, as metrics and as offsets of a consumer group."""

import signal

from brokers import free_ports
from jobs import wait_for
from metrics import read_metrics, total
from offsets import committed

ROWS = 16_000


def test_lag_freshness_and_commits_of_a_running_job(brokers, topics, jobs, tmp_path):
    name = topics.create("lagging", partitions=2)
    topics.produce(name, ROWS, partitions=2)
    metrics, worker_metrics = free_ports(2)
    address = jobs.start_cluster(("--metrics", f"127.0.0.1:{metrics}"), ("--metrics", f"127.0.0.1:{worker_metrics}"))
    pipeline = jobs.pipeline(brokers.url(), name, "payload: json", "commit_group: feedline-running")
    position = str(tmp_path / "position.json")
    # The job needs 50 s for all records, and is stopped once it has shown what the test looks for.
    slow = jobs.start(*jobs.arguments(pipeline, "--position", position, "--step-ms", "200", cluster=address))

    def shown():
        found = read_metrics(metrics)
        lag, age = (total(found, f"feedline_coordinator_job_{key}") for key in ("lag_rows", "freshness_seconds"))
        # The records are seconds old, and some of them are delivered.
        return lag and age is not None and lag < ROWS and 0 < age < 600 and found

    def commits():
        found = committed(topics, "feedline-running", name, 2)
        return max(found.values()) > 0 and found

    wait_for(shown, "lag and freshness")
    offsets = wait_for(commits, "a commit")
    assert slow.poll() is None and sum(offsets.values()) < ROWS, "the offsets are committed while the job runs"
    slow.send_signal(signal.SIGINT)
    before = jobs.finish(slow).report["rows"]
    rest = jobs.run(pipeline, "--position", position, cluster=address).report["rows"]
    assert before + rest == ROWS
    wait_for(lambda: committed(topics, "feedline-running", name, 2) == {0: ROWS // 2, 1: ROWS // 2}, "the last commit")
    commits_total = 'feedline_worker_group_commits_total{outcome="ok"}'
    wait_for(lambda: read_metrics(worker_metrics).get(commits_total, 0) >= 2, "two commits")
