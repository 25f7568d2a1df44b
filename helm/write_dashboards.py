#!/usr/bin/env python3
"""Writes the Grafana dashboards of the chart: `make dashboards`."""

from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import cluster, job, planner, worker

FOLDER = Path(__file__).parent / "feedline/files/dashboards"
MODULES = {"job": job, "cluster": cluster, "worker": worker, "planner": planner}


def write(name: str) -> str:
    """Returns the JSON of a dashboard."""
    return JSONEncoder(sort_keys=True, indent=1).encode(MODULES[name].build().build()) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in MODULES:
        (FOLDER / f"{name}.json").write_text(write(name))
