"""Panels and variables that the dashboards share."""

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
# The labels that distinguish clusters. `cluster` matches everything by default, since a single Prometheus rarely sets it.
CLUSTER = 'cluster=~"$cluster", namespace="$namespace", release="$release"'
STAT_HEIGHT, GRAPH_HEIGHT = 4, 8
TAG = "feedline"


def variable(name: str, label: str, query: str, *, all_values: bool = False) -> dashboard.QueryVariable:
    """A variable with the values of a label. With `all_values`, it matches everything by default."""
    built = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": query, "refId": "variable"})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if all_values:
        everything = VariableOption(selected=True, text="All", value="$__all")
        built = built.include_all(True).all_value(".*").current(everything)
    return built


def create(uid: str, title: str, description: str, *variables: dashboard.QueryVariable) -> dashboard.Dashboard:
    """A dashboard without panels, with links to the others."""
    build = "feedline_build_info"
    shared = [
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        variable("cluster", "Cluster", f"label_values({build}, cluster)", all_values=True),
        variable("namespace", "Namespace", f'label_values({build}{{cluster=~"$cluster"}}, namespace)'),
        variable(
            "release", "Release", f'label_values({build}{{cluster=~"$cluster", namespace="$namespace"}}, release)'
        ),
    ]
    link = (
        dashboard.DashboardLink("Feedline")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .variables([*shared, *variables])
        .link(link)
    )


def stat_panel(
    title: str,
    description: str,
    unit: str,
    query: str,
    *,
    width: int = 4,
    levels: dict[float, str] | None = None,
    texts: dict[str, str] | None = None,
    legend: str = "",
    decimals: int | None = None,
) -> stat.Panel:
    """The current value of a query. `levels` gives the colour from each value on, and `texts` the text of values. With a
    `legend`, the panel shows the names of the series instead of their values.
    """
    steps = [Threshold(value=at, color=color) for at, color in (levels or {}).items()]
    base = Threshold(value=None, color="text" if not levels else "red")
    if levels and min(levels) <= 0:
        base, steps = Threshold(value=None, color=steps[0].color), steps[1:]
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value("no data")
        .height(STAT_HEIGHT)
        .span(width)
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.NONE)
        .text_mode(BigValueTextMode.NAME if legend else BigValueTextMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps([base, *steps]))
        .with_target(target(query, legend or title, 0).instant())
    )
    if texts:
        options = {value: ValueMappingResult(text=text) for value, text in texts.items()}
        panel = panel.mappings([ValueMap(options=options)])
    return panel if decimals is None else panel.decimals(decimals)


def graph(
    title: str,
    description: str,
    unit: str,
    queries: dict[str, str],
    *,
    width: int = 12,
    stack: bool = False,
    maximum: float | None = None,
) -> timeseries.Panel:
    """A graph over time. `queries` gives the query for each legend."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0)
        .height(GRAPH_HEIGHT)
        .span(width)
        .line_width(1)
        .fill_opacity(40 if stack else 8)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if stack:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if maximum is not None:
        panel = panel.max(maximum)
    for number, (legend, query) in enumerate(queries.items()):
        panel = panel.with_target(target(query, legend, number))
    return panel


def target(query: str, legend: str, number: int) -> prometheus.Dataquery:
    built = prometheus.Dataquery().datasource(DATASOURCE).expr(query).legend_format(legend)
    return built.ref_id(chr(ord("A") + number))


def hit_rate(labels: str, by: str) -> str:
    """The fraction of the looked-up rows that the caches contain."""
    hits = f"sum by ({by}) (rate(feedline_worker_cache_hits_total{{{labels}}}[$__rate_interval]))"
    misses = f"sum by ({by}) (rate(feedline_worker_cache_misses_total{{{labels}}}[$__rate_interval]))"
    return f"{hits} / ({hits} + {misses} > 0)"


# Colours of fractions that should be 1.
FED = {0: "red", 0.8: "orange", 0.95: "green"}
# Colours of fractions that should be 0.
STALLED = {0: "green", 0.05: "orange", 0.2: "red"}
