#!/usr/bin/env python3
"""Checks that `feedline explain` names the bottleneck, on generated pipelines with a known bottleneck.

Prints a Markdown table and a summary. `make bottlenecks` builds Feedline in release mode and runs this script. `--seeds 3,17`
or `--seeds 0..9` selects pipelines. `--keep FILE` adds the results to those of earlier runs. `--names-only` runs only
`feedline explain`, and repeats it if the bottleneck is wrong.

Environment variables: FEEDLINE_BIN is the binary, EXPLAIN_S and RUN_S are the seconds of each trace and run, and BENCH_DATA
is the directory of the data.

Other programs on the machine use some of the cores, and a model cannot predict this use. If threads limit a rate, the rate
is divided by the share of the time in which these threads had a core. The column "on core" contains this share.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

from bottlenecks.measure import FEEDLINE, ROOT, Bench, make_sets
from bottlenecks.shapes import known_bound, made

SEEDS = os.environ.get("SEEDS", "0..39")
ALLOWED = {"cpu": 0.10, "sequential": 0.10, "consumer": 0.10}
OUTSIDE = 0.15
GAIN = 0.15
NAMED = 38 / 40
NAMES_ONLY = """only run `feedline explain`, at most three times per pipeline until it names the bottleneck; count first and later attempts
separately, and exit with status 0 if all bottlenecks are named"""
# Maximum number of runs of `feedline explain` per pipeline, because other programs may disturb a measurement.
ATTEMPTS = 3


def seeds_of(text):
    found = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found


def name(bench, shape):
    """Runs `feedline explain` until it names the bottleneck, at most ATTEMPTS times. Returns the last result."""
    row = {"seed": shape.seed, "true": shape.true, "known": known_bound(shape, bench.sets[shape.data])}
    for asked in range(1, ATTEMPTS + 1):
        explained = bench.explain(shape)
        bottleneck = explained["bottleneck"] or {"kind": None, "operator": None}
        said = (bottleneck["kind"], bottleneck["operator"])
        row |= {"asked": asked, "named": said, "is_named": names(shape.true, said)}
        row |= {"bound": explained["bound_rows_per_s"], "measured": explained["measured_rows_per_s"]}
        again = f" (attempt {asked} of {ATTEMPTS})" if asked > 1 else ""
        print(f"{shape.seed}{again}: {shape.text()}: {show(shape.true)}, named {show(said)}{'' if row['is_named'] else ' (!)'}, {rates(row)}", flush=True)
        if row["is_named"]:
            break
    return row


def rates(row):
    """Formats the predicted bound and the known bound, or the measured rate if no bound is known."""
    compared = f"{row['measured']:.0f} measured" if row["known"] is None else f"{row['known']:.0f} known"
    return f"bound {row['bound'] or 0.0:.0f}, {compared}"


def report_names(rows):
    """Prints how many bottlenecks were named correctly, at the first attempt and at later attempts. Returns whether all of them were."""
    right = [row["asked"] for row in rows if row["is_named"]]
    at_once = right.count(1)
    wrong = [str(row["seed"]) for row in rows if not row["is_named"]]
    never = f"; never: seeds {', '.join(wrong)}" if wrong else ""
    print(f"named correctly at the first attempt: {at_once} of {len(rows)}; at later attempts: {len(right) - at_once} of the other {len(rows) - at_once}{never}")
    return not wrong


def look_at(bench, shape):
    """Measures one pipeline, without changes and with the first applicable improvement."""
    explained = bench.explain(shape)
    bottleneck = explained["bottleneck"] or {"kind": None, "operator": None}
    bound = explained["bound_rows_per_s"] or 0.0
    rate, share = bench.run(shape)
    row = {"seed": shape.seed, "shape": shape.text(), "true": shape.true, "named": (bottleneck["kind"], bottleneck["operator"])}
    row |= {"bound": bound, "measured": rate, "on_core": share, "remedy": None, "explained": explained}
    for place, remedy in enumerate(explained["remedies"]):
        after = bench.apply(shape, remedy)
        if after is not None:
            row |= {"remedy": remedy["action"], "place": place}
            row |= {"predicted": remedy["predicted_rows_per_s"] / bound, "gained": after * share / rate}
            break
    return judged(row)


def names(true, said):
    # A consumer has no operator, and the operator of the store is always the source.
    return said[0] == true[0] and (true[1] is None or said[1] == true[1])


def judged(row):
    true, said = tuple(row["true"]), tuple(row["named"])
    row["is_named"] = names(true, said)
    row["ratio"] = row["bound"] * row["on_core"] / row["measured"]
    row["is_bound"] = abs(row["ratio"] - 1) <= ALLOWED.get(true[0], OUTSIDE)
    row["is_gain"] = abs(row["gained"] / row["predicted"] - 1) <= GAIN if row["remedy"] else None
    return row


def show(pair):
    return pair[0] if not pair[1] or pair[0] in ("store", "consumer") else f"{pair[0]} of {pair[1]}"


def line(row):
    mark = {True: "", False: " **!**", None: ""}
    first = "" if not row["remedy"] or row["place"] == 0 else f" (remedy {row['place'] + 1})"
    remedy = (f"{row['remedy']}{first}", f"{row['predicted']:.2f}", f"{row['gained']:.2f}{mark[row['is_gain']]}") if row["remedy"] else ("–", "–", "–")
    said = f"{show(row['named'])}{mark[row['is_named']]}"
    rates = (f"{row['bound']:.0f}", f"{row['measured']:.0f}", f"{100 * row['on_core']:.0f} %", f"{row['ratio']:.2f}{mark[row['is_bound']]}")
    return "| " + " | ".join([str(row["seed"]), row["shape"], show(row["true"]), said, *rates, *remedy]) + " |"


def report(rows):
    """Prints the table. Returns whether the results meet the targets."""
    head = ["seed", "pipeline", "expected", "named", "bound", "measured", "on core", "bound/measured", "remedy", "predicted gain", "measured gain"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for row in rows:
        print(line(row))
    gains = [row["is_gain"] for row in rows if row["is_gain"] is not None]
    right, bounds = sum(row["is_named"] for row in rows), sum(row["is_bound"] for row in rows)
    print(f"\nnamed correctly: {right} of {len(rows)}, bounds within limits: {bounds} of {len(rows)}, remedies within 15 %: {sum(gains)} of {len(gains)}")
    return right >= NAMED * len(rows) and bounds == len(rows) and all(gains)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default=SEEDS, help="seeds of the pipelines, such as 0..39 or 3,17 [default: %(default)s]")
    parser.add_argument("--keep", type=pathlib.Path, help="file with the results of earlier runs; adds the new results")
    parser.add_argument("--no-caches", action="store_true", help="skip remedies that add a cache, because they take the longest time")
    parser.add_argument("--names-only", action="store_true", help=NAMES_ONLY)
    parser.add_argument("--json", action="store_true", help="print a line of JSON at the end; requires --names-only")
    parser.add_argument("--show", action="store_true", help="only print the results in the file of --keep")
    arguments = parser.parse_args()
    if arguments.json and not arguments.names_only:
        parser.error("--json requires --names-only")
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make bottlenecks`")
    data = pathlib.Path(os.environ.get("BENCH_DATA", ROOT / "target/bench/bottlenecks")) / ("names" if arguments.names_only else "all")
    data.mkdir(parents=True, exist_ok=True)
    kept = {}
    if arguments.keep and arguments.keep.exists():
        kept = {row["seed"]: judged(row) for row in map(json.loads, arguments.keep.read_text().splitlines())}
    with tempfile.TemporaryDirectory() as folder:
        sets = make_sets(data, 0.1 if arguments.names_only else 1.0)
        bench = Bench(pathlib.Path(folder), sets, not arguments.no_caches)
        if arguments.names_only:
            rows = [name(bench, made(seed, sets)) for seed in seeds_of(arguments.seeds)]
            are_named = report_names(rows)
            if arguments.json:
                print(json.dumps({"pipelines": rows}))
            sys.exit(0 if are_named else 1)
        for seed in [] if arguments.show else seeds_of(arguments.seeds):
            kept[seed] = row = look_at(bench, made(seed, sets))
            print(line(row), file=sys.stderr, flush=True)
            if arguments.keep:
                with arguments.keep.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print()
    sys.exit(0 if report([kept[seed] for seed in sorted(kept)]) else 1)


if __name__ == "__main__":
    main()
