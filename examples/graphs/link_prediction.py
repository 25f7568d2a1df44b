"""Link prediction on Debian's packages: distinguishes dependencies from pairs that are none.

The seeds are the edges of a file, so they need no seed set. Workers draw strict negatives, and do not sample the edges that the model
predicts. Build the graph as in debian.py, then:

    python examples/graphs/link_prediction.py [GRAPH] [DATA]
"""

import sys

import feedline
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE


def main(graph: str, data: str) -> None:
    torch.manual_seed(0)
    model = GraphSAGE(128, hidden_channels=64, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    links = feedline.read(url=f"{data}/debian/edges.parquet", format="parquet", features={"source": "from", "target": "to"}, seed=1)
    pipeline = links.shuffle(window=300_000).sample_neighbors(
        2048, [8, 4], features={"x": "float32"}, graph=graph, exclude_seed_edges="both", negatives={"mode": "binary", "strict": True}
    )
    losses, shares = [], []
    with pipeline.open(epochs=1).pyg() as job:
        for batch in job:
            nodes = model(batch.x, batch.edge_index)
            sources, targets = nodes[batch.edge_label_index[0]], nodes[batch.edge_label_index[1]]
            scores = (sources * targets).sum(dim=1)
            loss = F.binary_cross_entropy_with_logits(scores, batch.edge_label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            # The share of links with a higher score than their negative.
            links_count = len(scores) // 2
            shares.append((scores[:links_count] > scores[links_count:]).float().mean().item())
            if len(losses) == 100:
                break
    share = sum(shares[-10:]) / 10
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; {share:.0%} of the links have a higher score than their negative")
    assert share > 0.75, "three of four links have a higher score than their negative"


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else "target/demo/debian", given[1] if len(given) > 1 else "../shared/data/graph")
