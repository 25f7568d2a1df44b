#!/usr/bin/env python3
"""Measures the cost of a coordinator by cluster size: planning, the state machine, and memory.

Prints a Markdown table, and writes the chart and the results to target/bench. Exits with status 1 if a cluster of at most 10,000
workers misses a target: less than 2 s per plan, less than one second of CPU time per second for reports, and less than 1 GiB of
memory. SIZES=100,1000 sets the numbers of workers.
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

import environments
from paths import ROOT, Failed, output

import usage
from limits import Limits

RESULTS = ROOT / "target/bench"
SIZES = os.environ.get("SIZES", "100,300,1000,3000,10000").split(",")
COLUMNS = {
    "workers": "{:,}",
    "jobs": "{:,}",
    "consumers": "{:,}",
    "replan_s": "{:.3f} s",
    "inputs_per_s": "{:,}",
    "inputs_cpu_s_per_s": "{:.3f} s",
    "peak_rss_mib": "{:,} MiB",
    "mean_fed": "{:.3f}",
}
HEADS = ["workers", "jobs", "consumers", "time of a plan", "reports per s", "CPU time of reports per s", "peak memory", "fed fraction"]
# Largest number of workers for which the limits apply.
LIMITED_WORKERS = 10_000
LIMITS = {"replan_s": 2.0, "inputs_cpu_s_per_s": 1.0, "peak_rss_mib": 1024}
PANELS = {
    "replan_s": "time of a plan, in seconds",
    "inputs_cpu_s_per_s": "CPU time of reports and leases, in cores",
    "peak_rss_mib": "peak memory with simulated workers, in MiB",
}


def measure(size):
    """Measures one cluster size in a separate process, so that its peak memory can be measured."""
    command = ["cargo", "run", "--quiet", "--release", "-p", "feedline-planner", "--example", "simulate_size", "--", size]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def cell(row, name, limits):
    """Formats a value, and marks it if it is not below its limit."""
    form = COLUMNS[name]
    shown = form.format(row[name])
    if name not in LIMITS or row["workers"] > LIMITED_WORKERS:
        return shown
    head = HEADS[list(COLUMNS).index(name)]
    missed = f"{row['workers']:,} workers: {head} is {shown}, not below {form.format(LIMITS[name])}"
    return shown + limits.mark(row[name] < LIMITS[name], missed)


def table(rows, limits):
    lines = ["| " + " | ".join(HEADS) + " |", "|" + " ---: |" * len(HEADS)]
    for row in rows:
        lines.append("| " + " | ".join(cell(row, name, limits) for name in COLUMNS) + " |")
    return "\n".join(lines)


def draw(rows, picture):
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "feedline"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(PANELS), figsize=(12, 3.6), layout="constrained")
    for axes, (name, title) in zip(panels, PANELS.items()):
        axes.plot([row["workers"] for row in rows], [row[name] for row in rows], "o-", color="#d9480f", label="measured")
        axes.axhline(LIMITS[name], color="#adb5bd", linestyle="--", label=f"limit for {LIMITED_WORKERS:,} workers")
        axes.set(xscale="log", yscale="log", xlabel="workers")
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=9)
    figure.savefig(f"{picture}.png", dpi=150)
    figure.savefig(f"{picture}.svg", metadata={"Date": None})


def picture(rows):
    """Draws the chart in an environment with matplotlib."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = RESULTS / "size.json"
    results.write_text(json.dumps(rows, indent=1))
    try:
        environments.ensure("chart")
        output(environments.python("chart"), __file__, "--draw", results, RESULTS / "size")
        print(f"chart: {RESULTS / 'size.png'}", file=sys.stderr)
    except Failed as failure:
        print(f"cannot draw the chart: {failure}", file=sys.stderr)


def main():
    if sys.argv[1:2] == ["--draw"]:
        results, place = sys.argv[2:]
        return draw(json.loads(pathlib.Path(results).read_text()), place)
    usage.check(__doc__)
    rows = [measure(size) for size in SIZES]
    if not all(row["audit_is_clean"] for row in rows):
        raise SystemExit("rows were lost or repeated: " + json.dumps(rows))
    limits = Limits()
    print(table(rows, limits))
    picture(rows)
    limits.end()


if __name__ == "__main__":
    main()
