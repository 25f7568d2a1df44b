"""The dashboard for the owner of a job: is the job fed, and if not, what limits it?"""

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from dashboards.panels import CLUSTER, FED, STALLED, create, graph, stat_panel, variable

JOB = f'{CLUSTER}, tenant=~"$tenant", job_name="$job_name"'


def value(name: str, combine: str = "sum", by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"{combine}{grouping} (feedline_coordinator_job_{name}{{{JOB}}})"


def build() -> Dashboard:
    rows = f"feedline_coordinator_job_rows_per_second{{{CLUSTER}"
    board = create(
        "feedline-job",
        "Feedline / Job",
        "For the owner of a job: whether its consumers wait for batches, and what limits the job.",
        variable("tenant", "Tenant", f"label_values({rows}}}, tenant)", all_values=True),
        variable("job_name", "Job", f'label_values({rows}, tenant=~"$tenant"}}, job_name)'),
    )
    board = board.with_row(Row("Is the job fed?"))
    for panel in (
        stat_panel(
            "Fed fraction",
            "Delivered rate divided by the rate that the consumers could process. 100 % means that the job is never the limit.",
            "percentunit",
            value("fed_fraction", "min"),
            levels=FED,
        ),
        stat_panel(
            "Consumers wait",
            "Fraction of time that the consumers waited for batches. A training loop without waits has 0 %.",
            "percentunit",
            value("stall_fraction", "max"),
            levels=STALLED,
        ),
        stat_panel(
            "Rows per second", "Rows that all consumers receive.", "short", value("rows_per_second"), decimals=1
        ),
        stat_panel(
            "Bottleneck",
            "The resource that limits the job, and the operator that uses most of it. `consumer` means that the job is fed.",
            "none",
            f"sum by (resource, operator) (feedline_coordinator_job_bottleneck{{{JOB}}})",
            legend="{{resource}} {{operator}}",
        ),
        stat_panel("Consumers", "Consumers that receive batches.", "none", value("consumers")),
        stat_panel(
            "Passes left",
            "Remaining passes over the dataset. The remaining part of the current pass counts as a fraction.",
            "none",
            value("passes_left", "max"),
            decimals=2,
        ),
    ):
        board = board.with_panel(panel)
    for panel in (
        graph(
            "Rates",
            "Rows per second that the consumers receive, that they could process, and that the plan predicts.",
            "short",
            {
                "delivered": value("rows_per_second"),
                "demand": value("demand_rows_per_second"),
                "planned": value("planned_rows_per_second"),
            },
        ),
        graph(
            "Waiting of consumers",
            "Fraction of time that the consumers waited for batches. More than 20 % fires an alert.",
            "percentunit",
            {"waiting": value("stall_fraction", "max")},
            maximum=1,
            width=6,
        ),
        graph(
            "Batches per second",
            "Batches that all consumers receive.",
            "short",
            {"batches": value("batches_per_second")},
            width=6,
        ),
    ):
        board = board.with_panel(panel)
    board = board.with_row(Row("What limits the job?"))
    for panel in (
        graph(
            "Time by operator",
            "Mean number of concurrent executions. The operator with the most time is the first to make faster.",
            "short",
            {"{{operator}}": value("operator_busy", by="operator")},
            stack=True,
        ),
        graph(
            "Queues before operators",
            "Bytes that wait for each operator. A queue grows before the slowest operator; before `batch`, batches wait for consumers.",
            "bytes",
            {"{{operator}}": value("operator_queue_bytes", by="operator")},
            stack=True,
        ),
        graph(
            "Cores",
            "Cores that the plan gives to the job, and cores that it uses.",
            "short",
            {"planned": value("cores"), "used": value("used_cores")},
            width=6,
        ),
        graph(
            "Data read",
            "Bytes per second that the job reads from its store and from caches.",
            "Bps",
            {"store": value("store_bytes_per_second"), "cache": value("cache_bytes_per_second")},
            stack=True,
            width=6,
        ),
        graph(
            "Lag",
            "Records of Kafka topics that are not delivered, and the age of the newest delivered record. Empty for other sources.",
            "short",
            {"records": value("lag_rows"), "age in seconds": value("freshness_seconds", "max")},
            width=6,
        ),
        graph(
            "Position",
            "Remaining passes over the dataset. A job that makes progress decreases.",
            "short",
            {"passes left": value("passes_left", "max")},
            width=6,
        ),
    ):
        board = board.with_panel(panel)
    return board
