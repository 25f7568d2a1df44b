"""Draws bar charts: chart.py RESULTS.json PICTURE writes PICTURE.png and PICTURE.svg."""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("agg")
matplotlib.rcParams["svg.hashsalt"] = "feedline"
import matplotlib.pyplot as plt

COLOURS = {"ours": "#d9480f", "peer": "#4c6ef5", "limit": "#adb5bd"}


def draw(axes, job):
    """Draws the rows of one job as bars with the fastest on top, and their ranges as lines."""
    rows = [row for row in reversed(job["rows"]) if row["median"]]
    medians = [row["median"] for row in rows]
    ranges = [[row["median"] - row["low"] for row in rows], [row["high"] - row["median"] for row in rows]]
    colours = [COLOURS[row["kind"]] for row in rows]
    axes.barh([row["title"] for row in rows], medians, xerr=ranges, color=colours, ecolor="#343a40", capsize=2.5)
    widest = max(row["high"] for row in rows)
    for place, row in enumerate(rows):
        axes.text(row["high"] + 0.012 * widest, place, f"{row['median']:,.0f}", va="center")
    for label, row in zip(axes.get_yticklabels(), rows):
        label.set_fontweight("bold" if row["kind"] == "ours" else "normal")
    axes.set_title(job["title"], loc="left", fontweight="bold")
    axes.set_xlabel(f"{job['unit']}, median and range")
    axes.set_xlim(0, 1.1 * widest)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(y=0.02)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def main():
    results, picture = sys.argv[1:]
    measured = json.loads(pathlib.Path(results).read_text())
    jobs = [job for job in measured["jobs"] if any(row["median"] for row in job["rows"])]
    if not jobs:
        raise SystemExit("nothing was measured")
    heights = [1.3 + 0.34 * len(job["rows"]) for job in jobs]
    figure, panels = plt.subplots(
        len(jobs), figsize=(10, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.15, hspace=0.04)
    for axes, job in zip(panels[:, 0], jobs):
        draw(axes, job)
    figure.savefig(f"{picture}.png", dpi=150)
    figure.savefig(f"{picture}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
