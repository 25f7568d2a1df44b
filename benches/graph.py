#!/usr/bin/env python3
"""Measures the loaders of graph batches: Feedline, GraphBolt, and PyG's NeighborLoader with torch-sparse.

A batch has 1,024 seeds with the fanouts 15, 10 and 5, and 128 features as float16. `feedline make-data graph` generates the graphs, whose
edges by target all tools receive in memory:

- uniform: 1 million nodes, 20 million edges
- rmat: 2^20 nodes, 33.6 million edges
- communities: 1 million nodes in 64 communities, of which 6 contain the seeds, and 10 million edges

All processes of a tool run on one set of cores. On several cores, the other tools run both with threads and with worker processes, and
the table contains the faster way. Feedline runs in the process of the loop, and with a worker in another process and shared memory.
Rounds are interleaved, and the table contains medians with their ranges:

- batches per second, from a warm loader
- the CPU time of all processes of the tool per batch, and per sampled edge
- the nodes and edges of a batch. Tools differ: GraphBolt samples all nodes anew in each hop (blocks), PyG each node once (subgraph)

`make graph-bench` builds Feedline in release mode, prepares the environment and runs this script. The results are in
`target/graph-bench/results.json`.

    CPUS=0,1 ROUNDS=3 GRAPHS=rmat ONLY=graphbolt make graph-bench
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "benches/graph"
TARGET = ROOT / "target/graph-bench"
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BINARY", ROOT / "target/release/feedline"))
PACKAGE = ROOT / "target/client-python"
PYTHON = pathlib.Path(os.environ.get("GRAPH_PYTHON", ROOT / "target/graph-python/bin/python"))
BATCH, FANOUTS, FEATURES = 1024, (15, 10, 5), 128
WARM = 5
ROUND_SECONDS = 1800

GRAPHS = {
    "uniform": ("--topology", "uniform", "--nodes", 1_000_000, "--edges", 20_000_000),
    "rmat": ("--topology", "rmat", "--nodes", 1 << 20, "--edges", 33_600_000),
    "communities": ("--topology", "communities", "--nodes", 1_000_000, "--edges", 10_000_000),
}


@dataclasses.dataclass(frozen=True)
class Contender:
    title: str
    script: str
    layout: str
    transport: str = ""
    """How Feedline delivers batches. Empty for other tools."""


CONTENDERS = {
    "feedline": Contender("Feedline, embedded", "feedline_loader.py", "subgraph", "embedded"),
    "feedline-blocks": Contender("Feedline, embedded", "feedline_loader.py", "blocks", "embedded"),
    "feedline-memory": Contender("Feedline, shared memory", "feedline_loader.py", "subgraph", "memory"),
    "feedline-memory-blocks": Contender("Feedline, shared memory", "feedline_loader.py", "blocks", "memory"),
    "graphbolt": Contender("GraphBolt", "graphbolt_loader.py", "blocks"),
    "pyg": Contender("PyG, torch-sparse", "pyg_loader.py", "subgraph"),
}


def main():
    given = arguments()
    if not PYTHON.exists():
        sys.exit(f"{PYTHON} is missing: run `make graph-bench`, which prepares the environment")
    graphs = {name: prepared(name) for name in given.graphs}
    ways = [(contender, way) for contender in given.only for way in ways_of(CONTENDERS[contender], len(given.cpus))]
    results = {(graph, *way): [] for graph in graphs for way in ways}
    for number in range(given.rounds):
        for graph, contender, way in results:
            result = run(graph, CONTENDERS[contender], way, given)
            results[graph, contender, way].append(result)
            rate = result["batches"] / result["seconds"]
            print(f"round {number + 1}, {graph}, {contender}, {way}: {rate:.2f} batches/s", file=sys.stderr, flush=True)
    write(results, graphs, given)
    print(table(results, graphs, given))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpus", type=names, default=["0"], help="cores of all processes of a tool, such as 0,1 [default: 0]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30, help="measured batches of a round")
    parser.add_argument("--graphs", type=names, default=list(GRAPHS), help=f"some of {', '.join(GRAPHS)}")
    parser.add_argument("--only", type=names, default=list(CONTENDERS), help=f"some of {', '.join(CONTENDERS)}")
    given = parser.parse_args()
    for wanted, known in ((given.graphs, GRAPHS), (given.only, CONTENDERS)):
        if unknown := set(wanted) - set(known):
            parser.error(f"{', '.join(sorted(unknown))} is unknown: choose from {', '.join(known)}")
    return given


def names(text):
    return text.split(",")


def ways_of(contender, cores):
    """Returns the ways to use the cores: threads in one process, or worker processes with one thread each."""
    return ["threads"] if cores == 1 or contender.transport else ["threads", "workers"]


def prepared(name):
    """Generates a graph and stores it for Feedline, unless an earlier run did. Returns its size."""
    folder = TARGET / name
    if not (folder / "edges.npy").exists():
        print(f"generating {folder}", file=sys.stderr)
        flags = (*GRAPHS[name], "--features", FEATURES, "--format", "npy", "--seed", 1)
        output(FEEDLINE, "make-data", "graph", folder, *flags)
    if not (folder / "graph").exists():
        arrays = ("--feature", f"x={folder / 'x.npy'}", "--label", f"y={folder / 'y.npy'}", "--seeds", f"train={folder / 'train.npy'}")
        output(FEEDLINE, "graph", "build", folder / "graph", "--edges", folder / "edges.npy", *arrays)
    return json.loads(output(PYTHON, "-B", HERE / "sampling_data.py", folder))


def run(graph, contender, way, given):
    """Measures one round of one tool on the cores."""
    cores = len(given.cpus)
    flags = ("--threads", cores) if way == "threads" else ("--threads", 1, "--workers", cores)
    fanouts = ",".join(map(str, FANOUTS))
    if contender.transport:
        flags = (*flags, "--layout", contender.layout, "--transport", contender.transport)
    sizes = ("--batch", BATCH, "--fanouts", fanouts, "--batches", given.batches, "--warm", WARM)
    command = ("taskset", "-c", ",".join(given.cpus), PYTHON, "-B", HERE / contender.script, "--data", TARGET / graph, *sizes, *flags)
    return json.loads(output(*command).splitlines()[-1])


def output(*command):
    """Runs a command. Returns its output. Its errors are part of the message if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "FEEDLINE_BINARY": str(FEEDLINE)}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=ROUND_SECONDS, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed with status {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def rate(result):
    return result["batches"] / result["seconds"]


def write(results, graphs, given):
    """Writes all rounds, so that later measurements can be compared with them."""
    rounds = [
        {"graph": graph, "contender": contender, "way": way, "rounds": measured} for (graph, contender, way), measured in results.items()
    ]
    content = {"cpus": given.cpus, "batch": BATCH, "fanouts": FANOUTS, "features": FEATURES, "graphs": graphs, "results": rounds}
    (TARGET / "results.json").write_text(json.dumps(content, indent=1))


def table(results, graphs, given):
    """Returns a Markdown table with the faster way of each tool."""
    lines = [
        f"Cores {','.join(given.cpus)}, {given.rounds} rounds of {given.batches} batches.\n",
        "| graph | tool | layout | way | batches/s | CPU ms per batch | CPU ns per edge | nodes | edges |",
        "|---|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for graph in graphs:
        for key in given.only:
            measured = {way: rounds for (one, other, way), rounds in results.items() if (one, other) == (graph, key)}
            way = max(measured, key=lambda way: statistics.median(map(rate, measured[way])))
            lines.append(row(graph, CONTENDERS[key], way, measured[way]))
    return "\n".join(lines)


def row(graph, contender, way, rounds):
    rates = sorted(map(rate, rounds))
    batches = sum(one["batches"] for one in rounds)
    cpu_ms = statistics.median(1e3 * one["cpu_seconds"] / one["batches"] for one in rounds)
    cpu_ns = statistics.median(1e9 * one["cpu_seconds"] / one["edges"] for one in rounds)
    nodes, edges = (sum(one[what] for one in rounds) / batches for what in ("nodes", "edges"))
    title = f"{contender.title} ({rounds[0]['version']})"
    speed = f"{statistics.median(rates):.2f} ({rates[0]:.2f} to {rates[-1]:.2f})"
    return f"| {graph} | {title} | {contender.layout} | {way} | {speed} | {cpu_ms:.1f} | {cpu_ns:.0f} | {nodes:,.0f} | {edges:,.0f} |"


if __name__ == "__main__":
    main()
