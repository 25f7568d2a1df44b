"""The dashboards of the chart are generated, complete, and use existing metrics of one cluster only."""

import itertools
import json
import re
from pathlib import Path

import pytest

from conftest import give_up

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "helm/feedline/files/dashboards"
NAMES = ["cluster", "job", "planner", "worker"]
SELECTOR = re.compile(r"(feedline_[a-z_]+)(\{[^}]*\})?")
# Suffixes of the series of a histogram.
HISTOGRAM = re.compile("_(bucket|sum|count)$")


def load(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text())


def panels(name: str) -> list[dict]:
    return [panel for panel in load(name)["panels"] if panel["type"] != "row"]


def all_panels():
    return [pytest.param(panel, id=f"{name}: {panel['title']}") for name in NAMES for panel in panels(name)]


def test_the_files_are_those_that_the_script_writes():
    try:
        import write_dashboards
    except ImportError:
        give_up("grafana-foundation-sdk is missing, so the dashboards are not generated: run `make test-chart`")
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(write_dashboards.MODULES) == NAMES
    for name in NAMES:
        assert write_dashboards.write(name) == (FOLDER / f"{name}.json").read_text(), "run `make dashboards`"


@pytest.mark.parametrize("panel", all_panels())
def test_a_panel_explains_itself(panel):
    assert panel["title"] and panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    targets = panel["targets"]
    assert targets and all(target["legendFormat"] for target in targets)
    assert len({target["refId"] for target in targets}) == len(targets)
    if panel["type"] == "timeseries":
        assert panel["options"]["legend"]["showLegend"]


@pytest.mark.parametrize("panel", all_panels())
def test_a_query_reads_documented_metrics_of_one_cluster(panel):
    documented = set(re.findall(r"^\| `(feedline_[a-z_]+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    assert len(documented) > 40
    for target in panel["targets"]:
        selectors = SELECTOR.findall(target["expr"])
        assert selectors, target["expr"]
        for metric, labels in selectors:
            assert {metric, HISTOGRAM.sub("", metric)} & documented, f"docs/metrics.md does not contain {metric}"
            for label in ('cluster=~"$cluster"', 'namespace="$namespace"', 'release="$release"'):
                assert label in labels, target["expr"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap(name):
    cells: dict[tuple[int, int], str] = {}
    for panel in load(name)["panels"]:
        area = panel["gridPos"]
        assert area["x"] + area["w"] <= 24
        rows, columns = (range(area[at], area[at] + area[size]) for at, size in (("y", "h"), ("x", "w")))
        for cell in itertools.product(rows, columns):
            assert cell not in cells, f"{panel['title']} and {cells[cell]}"
            cells[cell] = panel["title"]
    titles = [panel["title"] for panel in panels(name)]
    assert len(set(titles)) == len(titles)
    # A gap in a row looks like a missing panel.
    assert all({column for row, column in cells if row == present} == set(range(24)) for present, _ in cells)


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_works_with_any_data_source(name):
    dashboard = load(name)
    assert "__inputs" not in dashboard and dashboard["uid"] == f"feedline-{name}"
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    used = set(re.findall(r"\$\{?([a-z_]+)", json.dumps(dashboard["panels"]))) - {"__rate_interval"}
    assert used <= set(variables), "each variable is defined"
    references = [panel["datasource"] for panel in panels(name)]
    references += [target["datasource"] for panel in panels(name) for target in panel["targets"]]
    assert all(reference == {"type": "prometheus", "uid": "${datasource}"} for reference in references)
    for variable in variables.values():
        if variable["type"] == "query":
            assert variable["query"]["query"].startswith("label_values(feedline_")
