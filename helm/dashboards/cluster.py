"""The dashboard for the operator of a cluster: is the cluster healthy, and does it have enough workers?"""

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from dashboards.panels import CLUSTER, FED, create, graph, hit_rate, stat_panel


def rate(name: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({name}{{{CLUSTER}}}[$__rate_interval]))"


def of_leader(name: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"max{grouping} (feedline_coordinator_{name}{{{CLUSTER}}})"


def build() -> Dashboard:
    board = create(
        "feedline-cluster",
        "Feedline / Cluster",
        "For the operator of a cluster: coordinators, workers, jobs, stores and disks.",
    )
    free = f"feedline_disk_free_bytes{{{CLUSTER}}} / feedline_disk_total_bytes{{{CLUSTER}}}"
    expiry = f"(feedline_tls_certificate_expiry_timestamp_seconds{{{CLUSTER}}} - time()) / 86400"
    append = f"rate(feedline_coordinator_log_append_seconds_bucket{{{CLUSTER}}}[$__rate_interval])"
    board = board.with_row(Row("State"))
    for panel in (
        stat_panel(
            "Leader",
            "The coordinator that leads. Without a leader, no job starts.",
            "none",
            f"max by (pod) (feedline_coordinator_leads{{{CLUSTER}}} == 1)",
            legend="{{pod}}",
        ),
        stat_panel(
            "Spare coordinators",
            "Coordinators that can fail before the cluster has no majority. Three coordinators have one spare.",
            "none",
            f"{of_leader('reachable_voters')} - floor({of_leader('voters')} / 2) - 1",
            levels={0: "orange", 1: "green"},
        ),
        stat_panel(
            "Live workers",
            "Workers that reported within the lease time.",
            "none",
            of_leader("workers"),
            levels={1: "green"},
        ),
        stat_panel(
            "Planned fed fraction",
            "Lowest planned fed fraction of any job. Below 100 %, the job with the lowest fraction needs more workers or a faster store.",
            "percentunit",
            of_leader("fed_fraction"),
            levels=FED,
        ),
        stat_panel(
            "Running jobs",
            "Jobs that deliver batches.",
            "none",
            f'max (feedline_coordinator_jobs{{{CLUSTER}, state="running"}})',
        ),
        stat_panel(
            "Restarts",
            "Restarts of roles within the last hour.",
            "none",
            f"sum (changes(feedline_process_start_time_seconds{{{CLUSTER}}}[1h]))",
            levels={0: "green", 1: "orange", 3: "red"},
        ),
    ):
        board = board.with_panel(panel)
    board = board.with_row(Row("Work"))
    for panel in (
        graph(
            "Rows delivered",
            "Rows per second that the workers send to consumers.",
            "short",
            {"rows": rate("feedline_worker_sent_rows_total")},
            width=8,
        ),
        graph(
            "Bytes delivered",
            "Batch bytes per second that the workers send to consumers.",
            "Bps",
            {"bytes": rate("feedline_worker_sent_bytes_total")},
            width=8,
        ),
        graph(
            "Jobs",
            "Jobs by state. Ended jobs count since the start of the cluster.",
            "none",
            {"{{state}}": of_leader("jobs", "state")},
            width=8,
        ),
        graph(
            "Workers",
            "Workers that the jobs need, workers that the leader requested from the scaler, and workers that are present: of all pools, and by pool.",
            "none",
            {
                "wanted": of_leader("wanted_workers"),
                "wanted {{pool}}": of_leader("pool_wanted_workers", "pool"),
                "requested {{pool}}": of_leader("scaled_workers", "pool"),
                "present": of_leader("workers"),
                "present {{pool}}": of_leader("live_workers", "pool"),
            },
            width=8,
        ),
        graph(
            "Fed fraction of jobs",
            "Delivered rate divided by demand, of the ten jobs with the lowest fraction.",
            "percentunit",
            {"{{tenant}} {{job_name}}": f"bottomk(10, {of_leader('job_fed_fraction', 'tenant, job_name')})"},
            width=8,
            maximum=1,
        ),
        graph(
            "Cores",
            "Cores of the workers, and cores that they use for jobs. Cores that stay idle while jobs starve point to the stores.",
            "short",
            {"present": of_leader("worker_cores"), "used": of_leader("worker_used_cores")},
            width=8,
        ),
    ):
        board = board.with_panel(panel)
    board = board.with_row(Row("Stores and caches"))
    for panel in (
        graph(
            "Requests to stores",
            "Requests per second by store, and those that the store rejects because of its load.",
            "reqps",
            {
                "{{store}}": rate("feedline_worker_store_requests_total", "store"),
                "{{store}} throttled": rate("feedline_worker_store_throttled_requests_total", "store"),
            },
            width=8,
        ),
        graph(
            "Cache hit rate",
            "Fraction of the looked-up rows that a cache contains, by tier.",
            "percentunit",
            {"{{tier}}": hit_rate(CLUSTER, "tier")},
            width=8,
            maximum=1,
        ),
        graph(
            "Evictions",
            "Bytes per second that caches evict. Rows that running jobs still use point to a cache that is too small.",
            "Bps",
            {
                "{{tier}}": rate("feedline_worker_cache_evicted_bytes_total", "tier"),
                "{{tier}}, still used": rate("feedline_worker_cache_evicted_active_bytes_total", "tier"),
            },
            width=8,
        ),
    ):
        board = board.with_panel(panel)
    board = board.with_row(Row("Coordinators, disks and certificates"))
    for panel in (
        graph(
            "Log appends",
            "Duration of a durable write to the log: 99 % are faster. More than 0.1 s delays all jobs.",
            "s",
            {"{{pod}}": f"histogram_quantile(0.99, sum by (pod, le) ({append}))"},
            width=6,
        ),
        graph(
            "Rejected requests",
            "Requests per second that the coordinators reject, by kind. `busy` means that the leader has too much work.",
            "reqps",
            {"{{kind}}": rate("feedline_coordinator_refusals_total", "kind")},
            width=6,
        ),
        graph(
            "Free disk",
            "Free fraction of the ten fullest disks. A cache may use nine tenths of its disk.",
            "percentunit",
            {"{{pod}} {{directory}}": f"bottomk(10, min by (pod, directory) ({free}))"},
            width=6,
            maximum=1,
        ),
        graph(
            "Certificates",
            "Days until certificates expire, of the ten roles whose certificates expire first.",
            "d",
            {"{{pod}}": f"bottomk(10, min by (pod) ({expiry}))"},
            width=6,
        ),
    ):
        board = board.with_panel(panel)
    return board
