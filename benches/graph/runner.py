"""The command line and the measurement that the runners of all tools share."""

import argparse
import json
import pathlib
import time


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True, help="directory of the prepared graph")
    parser.add_argument("--batch", type=int, required=True, help="seeds of a batch")
    parser.add_argument("--fanouts", type=lambda text: [int(part) for part in text.split(",")], required=True, help="neighbors by hop")
    parser.add_argument("--batches", type=int, required=True, help="measured batches")
    parser.add_argument("--warm", type=int, required=True, help="batches before the measurement")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch in each process")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the loader")
    parser.add_argument("--layout", default="subgraph", help="layout of Feedline's batches")
    parser.add_argument("--transport", default="embedded", help="embedded, or memory: Feedline's worker is another process")
    given = parser.parse_args()

    import torch

    torch.set_num_threads(given.threads)
    return given


def measure(given: argparse.Namespace, version: str, loader, size_of) -> None:
    """Prints the rate and the CPU time as one line of JSON. `size_of` returns the nodes and the edges of a batch, and checks it."""
    batches = endless(loader)
    for _ in range(given.warm):
        next(batches)
    nodes = edges = 0
    cpu, start = cpu_seconds(), time.perf_counter()
    for _ in range(given.batches):
        more_nodes, more_edges = size_of(next(batches))
        nodes, edges = nodes + more_nodes, edges + more_edges
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    result = {"version": version, "batches": given.batches, "seconds": seconds, "cpu_seconds": cpu, "nodes": nodes, "edges": edges}
    print(json.dumps(result), flush=True)


def endless(loader):
    """Yields the batches of one epoch after another."""
    while True:
        yield from loader


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of its worker processes."""
    import psutil

    process = psutil.Process()
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)
