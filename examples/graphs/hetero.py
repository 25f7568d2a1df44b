"""A heterogeneous model on Debian's packages and sources: predicts the section of a package.

Sources have no features, so the model learns a vector for each of them, which `n_id` selects.

    feedline graph build target/demo/debian-types --from examples/graphs/debian.yaml
    python examples/graphs/hetero.py [GRAPH]
"""

import sys

import feedline
import torch
import torch.nn.functional as F
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero

SECTIONS, SOURCES = 58, 34_172
TYPES = ["package", "source"]
RELATIONS = [
    ("package", "depends", "package"),
    ("package", "needed_by", "package"),
    ("package", "recommends", "package"),
    ("package", "suggests", "package"),
    ("package", "built_from", "source"),
    ("source", "builds", "package"),
]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sources = torch.nn.Embedding(SOURCES, 16)
        self.sage = to_hetero(GraphSAGE((-1, -1), hidden_channels=64, num_layers=2, out_channels=SECTIONS), (TYPES, RELATIONS))

    def forward(self, data: HeteroData) -> torch.Tensor:
        x = {"package": data["package"].x, "source": self.sources(data["source"].n_id)}
        return self.sage(x, data.edge_index_dict)["package"][: data["package"].batch_size]


def main(graph: str) -> None:
    torch.manual_seed(0)
    model = Model()
    rows = feedline.read(url=graph, format="graph", seeds="all", seed=1).shuffle(window=100_000)
    pipeline = rows.sample_neighbors(512, {"__".join(relation): [6, 4] for relation in RELATIONS}, features={"x": "float32"})
    losses = []
    with pipeline.open(epochs=1).pyg() as job:
        for data in job:
            scores = model(data)
            if not losses:
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            loss = F.cross_entropy(scores, data["package"].y.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps")
    assert losses[-1] < losses[0] / 2, "the loss falls to less than half"


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "target/demo/debian-types")
