"""The dashboard of one worker: what does it compute, and what fills its memory and caches?"""

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from dashboards.panels import CLUSTER, create, graph, hit_rate, stat_panel, variable

WORKER = f'{CLUSTER}, pod="$pod"'


def now(name: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (feedline_worker_{name}{{{WORKER}}})"


def rate(name: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate(feedline_{name}{{{WORKER}}}[$__rate_interval]))"


def build() -> Dashboard:
    board = create(
        "feedline-worker",
        "Feedline / Worker",
        "For the operator of one worker: its CPU time by operator, memory, caches and traffic.",
        variable("pod", "Worker", f"label_values(feedline_worker_memory_budget_bytes{{{CLUSTER}}}, pod)"),
    )
    board = board.with_row(Row("State"))
    for panel in (
        stat_panel("CPU", "Cores that the process uses.", "short", rate("process_cpu_seconds_total"), decimals=2),
        stat_panel(
            "Memory budget",
            "Used fraction of the memory budget. A full budget is normal: the worker then starts no further splits.",
            "percentunit",
            f"{now('memory_used_bytes')} / {now('memory_budget_bytes')}",
        ),
        stat_panel("Leases", "Splits that the coordinator leased to the worker.", "none", now("leases")),
        stat_panel("Open fetches", "Fetches of consumers that are open.", "none", now("open_fetches")),
        stat_panel(
            "Failed reports",
            "Reports to the coordinator that failed within the last hour.",
            "none",
            f"sum (increase(feedline_worker_coordinator_errors_total{{{WORKER}}}[1h]))",
            levels={0: "green", 10: "orange"},
            decimals=0,
        ),
        stat_panel(
            "Draining",
            "Whether the worker finishes its splits before it leaves the cluster.",
            "none",
            f"max (feedline_worker_draining{{{WORKER}}})",
            texts={"0": "no", "1": "yes"},
        ),
    ):
        board = board.with_panel(panel)
    board = board.with_row(Row("Work"))
    for panel in (
        graph(
            "CPU by operator",
            "Cores that each kind of operator uses, over all jobs.",
            "short",
            {"{{operator}}": rate("worker_operator_cpu_seconds_total", "operator")},
            stack=True,
        ),
        graph(
            "Queues before operators",
            "Bytes that wait for each kind of operator, over all jobs.",
            "bytes",
            {"{{operator}}": now("operator_queue_bytes", "operator")},
            stack=True,
        ),
        graph(
            "Traffic",
            "Bytes per second that the worker reads from stores and sends to consumers.",
            "Bps",
            {"read": rate("worker_store_bytes_total"), "sent": rate("worker_sent_bytes_total")},
            width=8,
        ),
        graph(
            "Rows",
            "Rows per second that the worker sends, and rows that it skips because of errors.",
            "short",
            {"sent": rate("worker_sent_rows_total"), "skipped": rate("worker_skipped_rows_total")},
            width=8,
        ),
        graph(
            "Groups and leases",
            "Groups of rows that the worker reads or computes, and splits that it holds.",
            "none",
            {"groups": now("groups_in_flight"), "leases": now("leases")},
            width=8,
        ),
    ):
        board = board.with_panel(panel)
    board = board.with_row(Row("Memory, caches and locks"))
    for panel in (
        graph(
            "Memory by account",
            "Bytes of the memory budget by account.",
            "bytes",
            {"{{account}}": now("memory_bytes", "account")},
            stack=True,
        ),
        graph(
            "Resident memory",
            "Resident memory of the process, and its budget. The process also needs memory outside of the budget.",
            "bytes",
            {"resident": f"sum (feedline_process_resident_bytes{{{WORKER}}})", "budget": now("memory_budget_bytes")},
        ),
        graph(
            "Cache hit rate",
            "Fraction of the looked-up rows that a cache contains, by tier.",
            "percentunit",
            {"{{tier}}": hit_rate(WORKER, "tier")},
            width=6,
            maximum=1,
        ),
        graph(
            "Cached bytes",
            "Size of the cached rows, by tier.",
            "bytes",
            {"{{tier}}": now("cache_bytes", "tier")},
            width=6,
            stack=True,
        ),
        graph(
            "Free disk",
            "Free bytes on the disk of the row cache.",
            "bytes",
            {"{{directory}}": f"sum by (directory) (feedline_disk_free_bytes{{{WORKER}}})"},
            width=6,
        ),
        graph(
            "Waiting for locks",
            "Threads that wait for the lock of the engine. More than 0.1 means that chunks are too small.",
            "short",
            {"waiting": rate("worker_lock_wait_seconds_total")},
            width=6,
        ),
    ):
        board = board.with_panel(panel)
    return board
