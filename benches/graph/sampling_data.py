"""The files that `feedline make-data graph` writes, as tensors: edges by target, features, labels and seeds."""

import json
import pathlib
import sys

import numpy

ARRAYS = ("indptr", "indices", "x", "y", "train")


def load(folder: pathlib.Path) -> dict:
    """Returns the arrays of a prepared graph as tensors in memory."""
    import torch

    return {name: torch.from_numpy(numpy.load(folder / f"{name}.npy")) for name in ARRAYS}


def prepare(folder: pathlib.Path) -> dict:
    """Writes the edges by target: `indptr.npy` and `indices.npy`. No tool needs time for it. Returns the size of the graph."""
    nodes, columns = numpy.load(folder / "x.npy", mmap_mode="r").shape
    if not (folder / "indices.npy").exists():
        sources, targets = numpy.load(folder / "edges.npy")
        indptr = numpy.concatenate([[0], numpy.cumsum(numpy.bincount(targets, minlength=nodes))])
        numpy.save(folder / "indptr.npy", indptr)
        # Sorted by target, then by source.
        numpy.save(folder / "indices.partial.npy", numpy.sort(targets * nodes + sources) % nodes)
        (folder / "indices.partial.npy").rename(folder / "indices.npy")
    edges = len(numpy.load(folder / "indices.npy", mmap_mode="r"))
    return {"nodes": nodes, "edges": edges, "features": columns, "seeds": len(numpy.load(folder / "train.npy", mmap_mode="r"))}


if __name__ == "__main__":
    print(json.dumps(prepare(pathlib.Path(sys.argv[1]))))
