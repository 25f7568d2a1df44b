"""Evaluates the dashboards of the chart like Grafana: variables, queries and legends."""

import json
import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from prometheus import Prometheus

FOLDER = Path(__file__).parents[2] / "helm/feedline/files/dashboards"
NAMES = ["job", "cluster", "worker", "planner"]
# Prometheus scrapes every second, so that this range contains enough samples.
RATE_INTERVAL = "10s"


@dataclass
class Series:
    """The points of a series and its legend."""

    legend: str
    points: list[tuple[float, float]]


@dataclass
class PanelData:
    """A panel with the results of its queries between two times, by reference id."""

    panel: dict
    begin: float
    end: float
    results: dict[str, list[Series]] = field(default_factory=dict)

    @property
    def series(self) -> list[Series]:
        return [series for result in self.results.values() for series in result]

    def empty(self) -> list[str]:
        """Returns the queries without data."""
        return [target["expr"] for target in self.panel["targets"] if not self.results.get(target["refId"])]


def load(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text())


def replace(text: str, values: dict[str, str]) -> str:
    """Substitutes variables."""
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], text)


def choose_variables(prometheus: Prometheus, dashboard: dict, chosen: dict[str, str]) -> dict[str, str] | None:
    """Returns the value of each variable: that in `chosen`, all values, or the first. `None` if a variable has none."""
    values = {"__rate_interval": RATE_INTERVAL}
    for variable in dashboard["templating"]["list"]:
        name = variable["name"]
        if variable["type"] != "query":
            continue
        query = re.fullmatch(r"label_values\((.*), (\w+)\)", replace(variable["query"]["query"], values))
        found = prometheus.get(f"label/{query[2]}/values", **{"match[]": query[1]})
        if name in chosen and chosen[name] in found:
            values[name] = chosen[name]
        elif variable.get("includeAll"):
            values[name] = variable["allValue"]
        elif found and name not in chosen:
            values[name] = sorted(found)[0]
        else:
            return None
    return values


def evaluate(prometheus: Prometheus, dashboard: dict, values: dict[str, str], seconds: float) -> list[PanelData]:
    """Runs the queries of all panels, over the last seconds for graphs."""
    end = time.time()
    data = []
    for panel in dashboard["panels"]:
        evaluated = PanelData(panel, end - seconds, end)
        for target in panel.get("targets", []):
            query = replace(target["expr"], values)
            if target.get("instant"):
                found = prometheus.get("query", query=query, time=end)["result"]
                found = [(item["metric"], [item["value"]]) for item in found]
            else:
                step = max(1, round(seconds / 120))
                times = {"start": end - seconds, "end": end, "step": step}
                found = prometheus.get("query_range", query=query, **times)["result"]
                found = [(item["metric"], item["values"]) for item in found]
            series = [Series(legend(target["legendFormat"], labels), finite(points)) for labels, points in found]
            evaluated.results[target["refId"]] = [item for item in series if item.points]
        data.append(evaluated)
    return data


def legend(pattern: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), pattern).strip()


def finite(points: list[list]) -> list[tuple[float, float]]:
    parsed = [(float(at), float(value)) for at, value in points]
    return [(at, value) for at, value in parsed if math.isfinite(value)]
