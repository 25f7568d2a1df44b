"""Each alert of the chart fires once for real: a Prometheus scrapes real roles, which are broken one after another.

Each test breaks the roles of its own release, while a healthy cluster runs. `FEEDLINE_BINARY` is another
program, and the first one in `PROMETHEUS` another Prometheus.
"""

import os
import shutil
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from prometheus import wait_for
from skips import give_up

SLOW = "  - wait: { ms: 20, parallelism: 1 }\n  - batch: { size: 10 }\n"


def watch_cluster(prometheus, release: str, coordinators: list, workers: list) -> None:
    for kind, roles in (("coordinator", coordinators), ("worker", workers)):
        for number, role in enumerate(roles):
            prometheus.add(role.http, release, f"{kind}-{number}")


def unexpected_alerts(prometheus, roles, release: str, seconds: int = 0) -> set[str]:
    """Returns the alerts of a release that fire, or that fired for this number of seconds.

    The alert of a disk of the machine that is really almost full is left out.
    """
    disk = shutil.disk_usage(roles.folder)
    is_full = disk.free < 0.11 * disk.total
    return prometheus.firing(release, seconds) - ({"FeedlineDiskAlmostFull"} if is_full else set())


@pytest.fixture(scope="module")
def healthy(prometheus, roles):
    """A cluster without a fault, which runs during all tests."""
    coordinators, urls = roles.start_coordinators("healthy", 3)
    workers = [roles.start_worker("healthy-worker", urls, "--cache-dir", str(roles.folder / "cache"))]
    watch_cluster(prometheus, "healthy", coordinators, workers)
    roles.run_job("healthy-job", urls, roles.create_table(), "  - batch: { size: 10 }\n", "--step-ms", "200")
    prometheus.wait_for_value('feedline_worker_sent_rows_total{release="healthy"} > 0')
    return urls


@pytest.fixture(autouse=True)
def only_the_healthy_cluster_continues(roles, healthy):
    running = len(roles.running), len(roles.commands)
    yield
    roles.stop(*running)


def test_a_lost_coordinator_and_then_a_lost_leader(prometheus, roles):
    coordinators, urls = roles.start_coordinators("quorum", 3)
    watch_cluster(prometheus, "quorum", coordinators, [roles.start_worker("quorum-worker", urls)])
    leads = 'feedline_coordinator_leads{release="quorum"} == 1'
    pod = wait_for("leader", lambda: prometheus.query(leads))[0]["metric"]["pod"]
    leader = int(pod.removeprefix("coordinator-"))
    first, second = (role for number, role in enumerate(coordinators) if number != leader)
    assert not unexpected_alerts(prometheus, roles, "quorum")
    first.kill()
    prometheus.wait_for_alert("FeedlineQuorumAtRisk", "quorum")
    assert "FeedlineNoLeader" not in prometheus.firing("quorum")
    second.kill()
    prometheus.wait_for_alert("FeedlineNoLeader", "quorum")


def test_a_cluster_without_coordinators(prometheus, roles):
    [coordinator], urls = roles.start_coordinators("headless", 1)
    watch_cluster(prometheus, "headless", [coordinator], [roles.start_worker("headless-worker", urls)])
    prometheus.wait_for_value('feedline_coordinator_leads{release="headless"} == 1')
    assert not unexpected_alerts(prometheus, roles, "headless")
    coordinator.kill()
    prometheus.wait_for_alert("FeedlineNoLeader", "headless")


def test_a_certificate_that_expires_in_a_day(prometheus, roles):
    keys = roles.create_keys()
    tls = ["--tls-cert", f"{keys}/role.pem", "--tls-key", f"{keys}/role-key.pem", "--tls-ca", f"{keys}/ca.pem"]
    data_dir = str(roles.folder / "expiring-data")
    role = roles.start("expiring", "coordinator", "--listen", "127.0.0.1:0", "--data-dir", data_dir, *tls)
    prometheus.add(role.http, "expiring", "coordinator-0", scheme="https")
    prometheus.wait_for_alert("FeedlineCertificateExpires", "expiring")


def test_a_job_with_a_slow_operator(prometheus, roles):
    [coordinator], urls = roles.start_coordinators("slow", 1)
    watch_cluster(prometheus, "slow", [coordinator], [roles.start_worker("slow-worker", urls)])
    roles.run_job("slow-job", urls, roles.create_table(), SLOW, "--step-ms", "50")
    prometheus.wait_for_alert("FeedlinePlanNotMet", "slow")
    prometheus.wait_for_alert("FeedlineJobStarved", "slow")
    [alert] = prometheus.query('ALERTS{alertname="FeedlineJobStarved", alertstate="firing", release="slow"}')
    assert "reason" not in alert["metric"], alert


def test_a_job_without_workers(prometheus, roles):
    [coordinator], urls = roles.start_coordinators("empty", 1)
    watch_cluster(prometheus, "empty", [coordinator], [])
    prometheus.wait_for_value('feedline_coordinator_workers{release="empty"} == 0')
    assert not unexpected_alerts(prometheus, roles, "empty")
    roles.run_job("empty-job", urls, roles.create_table(), SLOW)
    prometheus.wait_for_alert("FeedlineJobStarved", "empty")
    [alert] = prometheus.query('ALERTS{alertname="FeedlineJobStarved", alertstate="firing", release="empty"}')
    assert alert["metric"]["reason"] == "no_worker", alert


def test_a_worker_that_restarts(prometheus, roles):
    [coordinator], urls = roles.start_coordinators("restarting", 1)
    worker = roles.start_worker("restarting-worker", urls)
    watch_cluster(prometheus, "restarting", [coordinator], [worker])
    start_time = 'feedline_process_start_time_seconds{release="restarting", pod="worker-0"}'
    for _ in range(3):
        before = prometheus.wait_for_value(start_time)
        assert "FeedlineRoleRestarting" not in prometheus.firing("restarting")
        # The start time has whole seconds.
        wait_for("next second", lambda: time.time() >= before + 1)
        worker.restart()
        prometheus.wait_for_value(f"{start_time} > {before}")
    prometheus.wait_for_alert("FeedlineRoleRestarting", "restarting")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 16 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        give_up("only root can mount a small disk, so that FeedlineDiskAlmostFull is tested by promtool alone")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_disk_that_fills(prometheus, roles, small_disk):
    data_dir = str(small_disk / "data")
    role = roles.start("full", "coordinator", "--listen", "127.0.0.1:0", "--data-dir", data_dir)
    prometheus.add(role.http, "full", "coordinator-0")
    prometheus.wait_for_value('feedline_disk_free_bytes{release="full", directory="data"} > 8e6')
    assert not prometheus.firing("full")
    (small_disk / "foreign").write_bytes(bytes(15 << 20))
    prometheus.wait_for_alert("FeedlineDiskAlmostFull", "full")
    role.kill()


class ThrottlingStore(BaseHTTPRequestHandler):
    """A web server that rejects every second request because of its load."""

    content = b"".join(b'{"id": %d}\n' % row for row in range(1000))
    requests = 0
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        type(self).requests += 1
        is_throttled = self.requests % 2 == 0
        first, last = 0, len(self.content) - 1
        if requested := self.headers.get("Range"):
            start, _, end = requested.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or last), last)
        body = b"" if is_throttled else self.content[first : last + 1]
        self.send_response(503 if is_throttled else 206 if requested else 200)
        self.send_header("Content-Length", str(len(body)))
        if requested and not is_throttled:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(self.content)}")
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("ETag", '"one"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


def test_a_store_that_throttles(prometheus, roles):
    store = ThreadingHTTPServer(("127.0.0.1", 0), ThrottlingStore)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    [coordinator], urls = roles.start_coordinators("throttled", 1)
    url = f"http://127.0.0.1:{store.server_port}/rows.jsonl"
    worker = roles.start_worker("throttled-worker", urls)
    watch_cluster(prometheus, "throttled", [coordinator], [worker])
    prometheus.wait_for_value('feedline_worker_store_requests_total{release="throttled", store="http"} == 0')
    roles.run_job("throttled-job", urls, f'"{url}"', "  - batch: { size: 10 }\n", "--step-ms", "20")
    prometheus.wait_for_alert("FeedlineStoreThrottling", "throttled")
    store.shutdown()


def test_jobs_that_evict_each_others_rows(prometheus, roles):
    [coordinator], urls = roles.start_coordinators("thrashing", 1)
    cache = ["--cache-dir", str(roles.folder / "thrashing"), "--cache-disk", "256KiB"]
    worker = roles.start_worker("thrashing-worker", urls, *cache)

    def cached(wait_ms: int) -> str:
        return f"  - wait: {{ ms: {wait_ms} }}\n  - cache: {{ tier: disk }}\n  - batch: {{ size: 10 }}\n"

    roles.run_job("cheap", urls, roles.create_table(), cached(1), "--step-ms", "10")
    watch_cluster(prometheus, "thrashing", [coordinator], [])

    # The first scrape of the worker follows the first job, which only fills an empty cache.
    def has_filled() -> bool:
        return sum(path.stat().st_size for path in (roles.folder / "thrashing").rglob("*.rows")) > 150_000

    wait_for("full cache", has_filled)
    prometheus.add(worker.http, "thrashing", "worker-0")
    prometheus.wait_for_value('feedline_worker_cache_stored_bytes_total{release="thrashing", tier="disk"}')
    roles.run_job("costly", urls, roles.create_table(), cached(20), "--step-ms", "10")
    prometheus.wait_for_alert("FeedlineCacheThrashing", "thrashing")


def test_a_cluster_without_a_fault_has_no_alert(prometheus, roles):
    # An election on a busy machine takes some seconds, and the shortest `for` of the chart is a minute.
    assert not unexpected_alerts(prometheus, roles, "healthy", 30)
