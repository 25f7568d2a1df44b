"""GraphSAGE on the citations of Cora, with the loader of PyG replaced by that of Feedline.

    python examples/graphs/cora.py [DATA]

DATA is the directory with the arrays of Cora. The graph stays in memory; `feedline.pyg.NeighborLoader` takes the arguments of PyG's loader.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from feedline.pyg import NeighborLoader
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE


def load(folder: Path) -> Data:
    """Loads the graph, with a random division of the nodes."""
    edges = np.loadtxt(folder / "cora.edges.tsv", dtype=np.int64, delimiter="\t")
    x = np.load(folder / "cora.features.f16.npy").astype(np.float32)
    parts = torch.rand(len(x), generator=torch.Generator().manual_seed(0))
    y = torch.from_numpy(np.load(folder / "cora.labels.i8.npy").astype(np.int64))
    return Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(edges.T.copy()), y=y, train_mask=parts < 0.6, test_mask=parts >= 0.8)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    data = load(folder)
    model = GraphSAGE(data.num_features, hidden_channels=64, num_layers=2, out_channels=int(data.y.max()) + 1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train = NeighborLoader(data, num_neighbors=[10, 10], input_nodes=data.train_mask, batch_size=256, shuffle=True)
    for epoch in range(10):
        model.train()
        for batch in train:
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(scores, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    train.close()
    test = NeighborLoader(data, num_neighbors=[-1, -1], input_nodes=data.test_mask, batch_size=256)
    model.eval()
    correct = 0
    with torch.no_grad():
        for batch in test:
            found = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(dim=1)
            correct += int((found == batch.y[: batch.batch_size]).sum())
    test.close()
    accuracy = correct / int(data.test_mask.sum())
    print(f"accuracy {accuracy:.3f}")
    assert accuracy > 0.8, "a trained model classifies more than 80 % of the nodes"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/graph"))
