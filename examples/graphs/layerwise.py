"""Inference for all nodes, one layer at a time, which computes each node once per layer. The result is equal to that on the whole graph.

Build the graph as in debian.py, then:

    python examples/graphs/layerwise.py [GRAPH] [DATA]
"""

import sys

import feedline
import numpy as np
import pyarrow.parquet
import torch
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import to_undirected


def layer_outputs(graph: str, layer: SAGEConv, x: torch.Tensor | None) -> torch.Tensor:
    """Returns the output of a layer for all nodes in their order. `x` is the output of the previous layer, or `None` for the features."""
    rows = feedline.read(url=graph, format="graph", seeds="all").shuffle(window=0)
    pipeline = rows.sample_neighbors(4096, [-1], features={"x": "float32"} if x is None else [])
    outputs = []
    with pipeline.open(epochs=1).pyg() as job:
        for batch in job:
            inputs = batch.x if x is None else x[batch.n_id]
            # Only the seeds have all their neighbors.
            outputs.append(layer((inputs, inputs[: batch.batch_size]), batch.edge_index).relu())
    return torch.cat(outputs)


def main(graph: str, data: str) -> None:
    torch.manual_seed(0)
    layers = [SAGEConv(128, 64), SAGEConv(64, 58)]
    with torch.no_grad():
        x = None
        for layer in layers:
            x = layer_outputs(graph, layer, x)
        assert x is not None
        edges = pyarrow.parquet.read_table(f"{data}/debian/edges.parquet")
        ends = np.stack([edges["from"].to_numpy(), edges["to"].to_numpy()]).astype(np.int64)
        whole = torch.from_numpy(np.load(f"{data}/debian/x.npy").astype(np.float32))
        edge_index = to_undirected(torch.from_numpy(ends), num_nodes=len(whole))
        for layer in layers:
            whole = layer(whole, edge_index).relu()
    difference = (x - whole).abs().max().item()
    print(f"{len(x)} nodes, largest difference {difference:.1e}")
    assert difference < 1e-4, "the outputs are equal to those on the whole graph"


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else "target/demo/debian", given[1] if len(given) > 1 else "../shared/data/graph")
