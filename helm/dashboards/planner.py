"""The dashboard of the planner: what do the jobs need, what did the planner decide, and was its prediction right?"""

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from dashboards.panels import CLUSTER, FED, create, graph, stat_panel

BY_JOB = "tenant, job_name"
NAME = "{{tenant}} {{job_name}}"


def of_leader(name: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"max{grouping} (feedline_coordinator_{name}{{{CLUSTER}}})"


def total(name: str) -> str:
    """The sum over jobs."""
    return f"sum ({of_leader(name, BY_JOB)})"


# A job that gets its planned rate from its planned cores needs proportionally more cores for its demand.
NEEDED_CORES = (
    f"sum ({of_leader('job_cores', BY_JOB)} * {of_leader('job_demand_rows_per_second', BY_JOB)}"
    f" / ({of_leader('job_planned_rows_per_second', BY_JOB)} > 0))"
)
WANTED, SCALED = of_leader("wanted_workers"), f"sum ({of_leader('scaled_workers', 'pool')})"


def build() -> Dashboard:
    plans = f"rate(feedline_coordinator_plan_seconds_bucket{{{CLUSTER}}}[$__rate_interval])"
    board = create(
        "feedline-planner",
        "Feedline / Planner",
        "For whoever checks or tunes scaling: the needs of the jobs, the decisions of the planner, and its predictions.",
    )
    board = board.with_row(Row("Decision"))
    for panel in (
        stat_panel(
            "Wanted workers", "Workers that feed all jobs, as far as consumers and stores allow.", "none", WANTED
        ),
        stat_panel(
            "Requested workers",
            "Workers that the leader requested from the scaler, within the limits of the pools.",
            "none",
            SCALED,
        ),
        stat_panel("Present workers", "Workers that reported within the lease time.", "none", of_leader("workers")),
        stat_panel("Needed cores", "Cores that the jobs would use if all were fed.", "short", NEEDED_CORES, decimals=1),
        stat_panel("Present cores", "Cores of the workers that are not draining.", "short", of_leader("worker_cores")),
        stat_panel(
            "Planned fed fraction",
            "Lowest planned fed fraction of any job.",
            "percentunit",
            of_leader("fed_fraction"),
            levels=FED,
        ),
    ):
        board = board.with_panel(panel)
    for panel in (
        graph(
            "Workers",
            "Wanted and requested differ by the limits of the pools and the patience before scale-in; requested and present, by starting pods.",
            "none",
            {"wanted": WANTED, "requested": SCALED, "present": of_leader("workers")},
        ),
        graph(
            "Cores",
            "Needed above present: the jobs starve. Planned below needed: a store or an operator's limit binds, or cores are missing.",
            "short",
            {
                "needed": NEEDED_CORES,
                "planned": total("job_cores"),
                "present": of_leader("worker_cores"),
                "used": of_leader("worker_used_cores"),
            },
        ),
    ):
        board = board.with_panel(panel)
    board = board.with_row(Row("Demand and supply"))
    for panel in (
        graph(
            "Demand and supply",
            "Rows per second that the consumers of all jobs could process and receive.",
            "short",
            {"demand": total("job_demand_rows_per_second"), "supply": total("job_rows_per_second")},
            width=8,
        ),
        graph(
            "Fed fraction of jobs",
            "Delivered rate divided by demand, of the ten jobs with the lowest fraction.",
            "percentunit",
            {NAME: f"bottomk(10, {of_leader('job_fed_fraction', BY_JOB)})"},
            width=8,
            maximum=1,
        ),
        graph(
            "Cores of jobs",
            "Cores that the plan gives to the ten largest jobs.",
            "short",
            {NAME: f"topk(10, {of_leader('job_cores', BY_JOB)})"},
            width=8,
            stack=True,
        ),
    ):
        board = board.with_panel(panel)
    board = board.with_row(Row("Prediction and measurement"))
    for panel in (
        graph(
            "Predicted and measured rates",
            "Rows per second that the plan predicts for the ten fastest jobs, and that the consumers of the ten fastest receive.",
            "short",
            {
                f"{NAME} predicted": f"topk(10, {of_leader('job_planned_rows_per_second', BY_JOB)})",
                f"{NAME} measured": f"topk(10, {of_leader('job_rows_per_second', BY_JOB)})",
            },
        ),
        graph(
            "Measured divided by predicted",
            "The ten jobs with the lowest ratio. 100 % means that the model of a job is exact; a lasting difference is an error of the planner.",
            "percentunit",
            {
                NAME: f"bottomk(10, {of_leader('job_rows_per_second', BY_JOB)} / ({of_leader('job_planned_rows_per_second', BY_JOB)} > 0))"
            },
            width=6,
        ),
        graph(
            "Bottlenecks",
            "Jobs by the resource that limits them. `consumer` means that a job is fed.",
            "none",
            {"{{resource}}": f"count by (resource) ({of_leader('job_bottleneck', 'resource, ' + BY_JOB)})"},
            width=6,
            stack=True,
        ),
        graph(
            "Time to plan",
            "Duration of a plan: 99 % are faster. The limit is one second.",
            "s",
            {"99 %": f"histogram_quantile(0.99, sum by (le) ({plans}))"},
            width=12,
        ),
        graph(
            "Cores of tenants",
            "Cores that the plan gives to the jobs of each tenant.",
            "short",
            {"{{tenant}}": f'label_replace({of_leader("tenant_cores", "tenant")}, "tenant", "(default)", "tenant", "")'},
            width=12,
            stack=True,
        ),
    ):
        board = board.with_panel(panel)
    return board
