"""Each query of each dashboard returns data, from real Prometheuses that scrape real roles.

`PROMETHEUS` lists the programs, separated by colons. With `DRAW_DASHBOARDS`, the results are drawn to docs/images.
"""

import os
import time
from pathlib import Path

import pytest

import dashboards
import drawing
from prometheus import Prometheus, find_prometheuses

IMAGES = Path(__file__).parents[2] / "docs/images"
IS_DRAWING = bool(os.environ.get("DRAW_DASHBOARDS"))
# A picture needs enough time to show how a job starts, and how its demand changes.
DRAWN_S = 120
DEADLINE_S = 600
# Without a Prometheus, the fixture `tools` gives up.
PROGRAMS = find_prometheuses() or ["prometheus"]
if IS_DRAWING:
    PROGRAMS = PROGRAMS[:1]
# The variables of each cluster. A query must return data in at least one: only an automatically scaled cluster has a
# scaler, and only a cluster with TLS has certificates.
CLUSTERS = [
    {"release": "training", "job_name": "resnet", "pod": "worker-0"},
    {"release": "training", "job_name": "resnet", "pod": "worker-1"},
    {"release": "scaled"},
    {"release": "secure"},
]
RESNET = """  - resize: { column: image, size: [96, 96] }
  - cache: { tier: disk }
  - random_resized_crop: { column: image, size: [64, 64] }
  - burn: { cpu_us: 3000 }
  - batch: { size: 16 }
"""


@pytest.fixture(scope="module")
def prometheuses(tools, roles, tmp_path_factory):
    """Prometheuses that scrape three clusters."""
    keys = roles.create_keys()
    running = [Prometheus(tmp_path_factory.mktemp("prometheus"), [], keys, program) for program in PROGRAMS]

    def add(*target: str) -> None:
        for prometheus in running:
            prometheus.add(*target)

    start_training(roles, add)
    start_scaled(roles, add)
    tls = ["--tls-cert", f"{keys}/role.pem", "--tls-key", f"{keys}/role-key.pem", "--tls-ca", f"{keys}/ca.pem"]
    data_dir = str(roles.folder / "secure-data")
    secure = roles.start("secure", "coordinator", "--listen", "127.0.0.1:0", "--data-dir", data_dir, *tls)
    add(secure.http, "secure", "coordinator-0", "https")
    yield running
    for prometheus in running:
        prometheus.stop()


def start_training(roles, add) -> None:
    coordinators, urls = roles.start_coordinators("training", 3)
    for number, role in enumerate(coordinators):
        add(role.http, "training", f"coordinator-{number}")
    for number in range(2):
        folder = roles.folder / f"training-cache-{number}"
        worker = roles.start_worker(f"training-worker-{number}", urls, "--cache-dir", str(folder))
        add(worker.http, "training", f"worker-{number}")
    images = roles.folder / "images"
    roles.call("make-data", "images", str(images), "--rows", "150", "--format", "tfrecord")
    roles.run_job(
        "resnet",
        urls,
        f'"{images}/*"',
        RESNET,
        "--step-ms",
        "400,60:120",
        "--buffer",
        "1MiB",
        form="tfrecord, features: { image: image/encoded }",
        epochs=1000,
    )
    roles.run_job(
        "captions", urls, roles.create_table(), "  - batch: { size: 10 }\n", "--step-ms", "200", "--buffer", "1MiB"
    )


def start_scaled(roles, add) -> None:
    data_dir = str(roles.folder / "scaled-data")
    flags = [
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        data_dir,
        "--autoscale",
        "1..2",
        "--cores",
        "2",
        "--memory",
        "512MiB",
        "--auto-cache",
        "off",
    ]
    role = roles.start("scaled", "up", *flags)
    add(role.http, "scaled", "coordinator-0")
    # The demand grows from a fifth of a core to more than one, in each pass.
    costly = "  - burn: { cpu_us: 4000 }\n  - batch: { size: 10 }\n"
    url = f"http://{role.address}"
    demand = ["--step-ms", "200,50:33", "--buffer", "1MiB"]
    roles.run_job("costly", url, roles.create_table(), costly, *demand)


# Panels of jobs that read Kafka topics, which these tests do not start. tests/kafka/test_lag.py reads their metrics.
KAFKA_PANELS = {"Lag"}


def empty_queries(prometheus, name: str) -> list[str]:
    """Returns the panels and queries of a dashboard that return no data in any cluster."""
    dashboard = dashboards.load(name)
    empty: list[set[str]] = []
    for chosen in CLUSTERS:
        values = dashboards.choose_variables(prometheus, dashboard, chosen)
        if not values and chosen["release"] == "training":
            return [f"no values of the variables for {chosen}"]
        if values:
            data = dashboards.evaluate(prometheus, dashboard, values, 30)
            empty.append(
                {f"{one.panel['title']}: {query}" for one in data if "targets" in one.panel and one.panel["title"] not in KAFKA_PANELS for query in one.empty()}
            )
    return sorted(set.intersection(*empty))


def repeat_while(is_unfinished) -> object:
    """Repeats a call until it returns an empty value or the time is over, and returns the last value."""
    deadline = time.monotonic() + DEADLINE_S
    while (value := is_unfinished()) and time.monotonic() < deadline:
        time.sleep(1)
    return value


@pytest.mark.parametrize("name", dashboards.NAMES)
@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=PROGRAMS)
def test_each_query_returns_data(prometheuses, roles, number, name):
    empty = repeat_while(lambda: empty_queries(prometheuses[number], name))
    assert not empty, "\n".join(empty)
    roles.check_commands()


def drawn_cluster(prometheus, name: str) -> dict[str, str]:
    """The planner's picture shows a scaler, and the others the training job, on the worker with the most rows."""
    if name == "planner":
        return {"release": "scaled"}
    [busiest] = prometheus.query('topk(1, feedline_worker_sent_rows_total{release="training"})')
    return {**CLUSTERS[0], "pod": busiest["metric"]["pod"]}


def draw(prometheuses, roles, name):
    [prometheus] = prometheuses
    recorded = f'count_over_time(feedline_coordinator_leads{{release="training"}}[10m]) >= {DRAWN_S}'
    assert not repeat_while(lambda: not prometheus.query(recorded)), "the roles ended early"
    roles.check_commands()
    dashboard = dashboards.load(name)
    values = dashboards.choose_variables(prometheus, dashboard, drawn_cluster(prometheus, name))
    assert values, "the variables have no values"
    data = dashboards.evaluate(prometheus, dashboard, values, DRAWN_S)
    picture = drawing.draw(dashboard, values, data)
    assert len(picture) < 150_000
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / f"dashboard-{name}.svg").write_text(picture)


# `make dashboard-pictures` draws the dashboards.
if IS_DRAWING:
    test_draw = pytest.mark.parametrize("name", dashboards.NAMES)(draw)
