#!/usr/bin/env python3
"""Feedline against its peers: the same job on the same rows and the same two cores, each tool as its own pages advise.

Two jobs: ImageNet photographs through random_resized_crop 224, flip and batch 128 (uint8), and sentence pairs through one
tokenizer to 64 tokens and batches of 512. Installs the peers into virtual environments under target/peers, prepares the
data there, gives every contender its turn alone, and prints a Markdown table for each job; `make bench` builds in release
mode and calls this. The rate is rows of the first epoch / time from opening it to its last batch, with processes running
and libraries imported. Right before each turn of a peer Feedline runs the same job, and the ratio is of those two, so that
a shared machine's drift does not fall on one side. benches/peers/ holds a runner for each peer.

    TURNS=1 benches/peers.py --only tfdata,feedline
"""

import argparse
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import environments
import ours
import prepare
from contenders import chosen
from places import HERE, ROOT, TARGET

CORES = 2
TURNS = int(os.environ.get("TURNS", "3"))
TURN_SECONDS = 900
TITLES = {
    "images": ("photographs: crop 224, flip, batch 128", "images/s"),
    "text": ("sentence pairs: tokenise, 64 tokens, batch 512", "pairs/s"),
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def run_peer(contender):
    """One turn of a peer in a process group of its own, of which nothing stays behind."""
    command = [*map(str, prepare.command(contender)), "--cores", str(CORES)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=TURN_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end after {TURN_SECONDS} s") from None
    finally:
        stop(process)
    if process.returncode != 0:
        raise RuntimeError((err.strip().splitlines() or ["no reason was given"])[-1])
    return json.loads(out.strip().splitlines()[-1])


def stop(process):
    """Ends what is left of a turn."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def turn(contender, results):
    """One turn, kept in `results`: rates of both epochs, and the ratio to Feedline's run right before it."""
    result = results.setdefault(contender.key, {"first": [], "second": [], "ratio": [], "version": "", "failed": ""})
    try:
        is_reference = contender.key in ("feedline", "feedline-text")
        reference = None if is_reference else ours.first_epoch(contender.job, CORES)
        measured = ours.run(contender, CORES) if contender.is_ours else run_peer(contender)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        result["failed"] = reason
        return say(f"  {contender.title}: failed: {reason}")
    rates = [measured["rows"] / seconds for seconds in measured["seconds"]]
    result["version"] = measured["version"]
    result["first"].append(rates[0])
    result["second"].extend(rates[1:2])
    result["ratio"].append(rates[0] / (reference or rates[0]))
    say(f"  {contender.title}: {rates[0]:.0f} rows/s, {result['ratio'][-1]:.2f} of Feedline")


def row(contender, result):
    """What the table and the chart say of one contender."""
    rates = result["first"]
    row = {"key": contender.key, "title": contender.title, "reads": contender.reads, "ours": contender.is_ours}
    row |= {"version": result["version"], "failed": result["failed"], "median": None}
    if rates:
        row |= {"median": statistics.median(rates), "low": min(rates), "high": max(rates)}
        row |= {"ratio": statistics.median(result["ratio"])}
        row |= {"second": statistics.median(result["second"]) if result["second"] else None}
    return row


def print_table(job):
    print(f"\n| {job['title']}, {CORES} cores | reads | {job['unit']} | range of {TURNS} | of Feedline | second epoch |")
    print("|---|---|---|---|---|---|")
    for row in sorted(job["rows"], key=lambda row: -(row["median"] or 0)):
        name = f"**{row['title']}**" if row["ours"] and row["key"] != "kernel" else row["title"]
        if row["median"] is None:
            print(f"| {name} | {row['reads']} | failed: {row['failed']} | | | |")
            continue
        second = f"{row['second']:.0f}" if row["second"] else "–"
        print(
            f"| {name} | {row['reads']} | {row['median']:.0f} | {row['low']:.0f} to {row['high']:.0f}"
            f" | {row['ratio']:.2f} | {second} |"
        )
    versions = {row["version"]: row["title"].split(",")[0] for row in job["rows"] if row["version"]}
    print("\nVersions: " + "; ".join(f"{title} {version}" for version, title in versions.items()) + ".")


def draw(results, save):
    """The chart beside the results, and in docs/ with --save."""
    if not environments.ensure("chart"):
        return
    pictures = [TARGET / "peers.png", TARGET / "peers.svg"]
    if save:
        pictures.append(ROOT / "docs/peers.svg")
    subprocess.run([environments.python("chart"), HERE / "chart.py", results, *pictures], check=True)
    say(f"the chart is at {pictures[-1]}")


def main():
    parser = argparse.ArgumentParser(description="Measures Feedline against its peers; TURNS sets the turns.")
    parser.add_argument("--only", default="", help="contenders by key, such as tfdata,feedline [default: all]")
    parser.add_argument("--save", action="store_true", help="keep the chart as docs/peers.svg")
    given = parser.parse_args()
    contenders = chosen(given.only)
    needed = {contender.environment for contender in contenders} - {""}
    if any(contender.job == "text" for contender in contenders):
        needed.add("datasets")  # It trains the tokenizer.
    installed = {name for name in sorted(needed) if environments.ensure(name)} | {""}
    contenders = [contender for contender in contenders if contender.environment in installed]
    prepare.data(contenders)
    # Every process from here on inherits the cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    measured = {}
    for number in range(TURNS):
        say(f"turn {number + 1} of {TURNS}")
        for contender in contenders:
            turn(contender, measured)
    jobs = []
    for job, (title, unit) in TITLES.items():
        rows = [row(contender, measured[contender.key]) for contender in contenders if contender.job == job]
        if rows:
            jobs.append({"job": job, "title": title, "unit": unit, "rows": rows})
            print_table(jobs[-1])
    results = TARGET / "results.json"
    results.write_text(json.dumps({"cores": CORES, "turns": TURNS, "machine": platform.machine(), "jobs": jobs}, indent=1))
    draw(results, given.save)


if __name__ == "__main__":
    main()
