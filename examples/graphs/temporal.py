"""Temporal sampling on a generated graph: a seed sees only edges that are not later than itself.

    feedline make-data graph target/demo/temporal --nodes 20000 --edges 200000 --features 16 --times --format npy --seed 1
    feedline graph build target/demo/temporal-graph --edges target/demo/temporal/edges.npy --time target/demo/temporal/time.npy \\
      --edge-feature time=target/demo/temporal/time.npy --feature x=target/demo/temporal/x.npy
    python examples/graphs/temporal.py [GRAPH] [DATA]
"""

import sys
from pathlib import Path

import feedline
import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

MONTH = 30 * 24 * 3600


def main(graph: str, data: Path) -> None:
    torch.manual_seed(0)
    # The seeds may be rows of any source, here an archive of arrays.
    nodes, labels = np.load(data / "train.npy"), np.load(data / "y.npy")
    np.savez(data / "seeds.npz", node=nodes, at=np.load(data / "train_time.npy"), y=labels[nodes])
    classes = int(labels.max()) + 1
    model = GraphSAGE(16, hidden_channels=64, num_layers=2, out_channels=classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows = feedline.read(url=data / "seeds.npz", format="npz", seed=1).shuffle(window=10_000)
    time = {"column": "at", "strategy": "last", "window": 6 * MONTH}
    pipeline = rows.sample_neighbors(
        128, [8, 4], features={"x": "float32"}, edge_features=["time"], graph=graph, disjoint=True, time=time
    )
    with pipeline.open(epochs=3).pyg() as job:
        for epoch in range(3):
            for batch in job:
                # The tree of an edge is that of its target.
                seed_time = batch.seed_time[batch.batch[batch.edge_index[1]]]
                assert (batch.time <= seed_time).all() and (batch.time > seed_time - 6 * MONTH).all()
                scores = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(scores, batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else "target/demo/temporal-graph", Path(given[1] if len(given) > 1 else "target/demo/temporal"))
