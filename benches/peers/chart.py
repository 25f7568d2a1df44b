"""The bar chart: chart.py RESULTS.json PICTURE..., run in the environment of requirements-chart.txt."""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("agg")
matplotlib.rcParams["svg.hashsalt"] = "feedline"
matplotlib.rcParams["svg.fonttype"] = "none"
import matplotlib.pyplot as plt

OURS, LIMIT, PEER = "#d9480f", "#adb5bd", "#5c7cfa"


def draw(axes, job):
    """One job's rows as bars, the fastest on top, with the range as a line."""
    rows = sorted((row for row in job["rows"] if row["median"]), key=lambda row: row["median"])
    medians = [row["median"] for row in rows]
    ranges = [[row["median"] - row["low"] for row in rows], [row["high"] - row["median"] for row in rows]]
    colours = [LIMIT if row["key"] == "kernel" else OURS if row["ours"] else PEER for row in rows]
    bars = axes.barh([row["title"] for row in rows], medians, xerr=ranges, color=colours, ecolor="#495057", capsize=2)
    axes.bar_label(bars, labels=[f"{median:,.0f}" for median in medians], padding=8)
    for label, row in zip(axes.get_yticklabels(), rows):
        label.set_fontweight("bold" if row["ours"] and row["key"] != "kernel" else "normal")
    axes.set_title(job["title"], loc="left")
    axes.set_xlabel(f"{job['unit']} of the first epoch: median and range")
    axes.set_xlim(0, 1.15 * max(row["high"] for row in rows))
    axes.spines[["top", "right"]].set_visible(False)


def main():
    results, *pictures = sys.argv[1:]
    jobs = json.loads(pathlib.Path(results).read_text())["jobs"]
    heights = [1.5 + 0.36 * len(job["rows"]) for job in jobs]
    figure, panels = plt.subplots(
        len(jobs), figsize=(10, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axes, job in zip(panels[:, 0], jobs):
        draw(axes, job)
    for picture in pictures:
        metadata = {"Date": None} if picture.endswith(".svg") else None
        figure.savefig(picture, dpi=150, metadata=metadata)


if __name__ == "__main__":
    main()
