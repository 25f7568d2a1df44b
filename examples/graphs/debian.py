"""GraphSAGE on Debian's packages: predicts the section of a package. Stops within an epoch and resumes with the next batch.

    feedline graph build target/demo/debian --edges debian/edges.parquet --columns from,to --undirected \\
      --feature x=debian/x.npy --label y=debian/packages.parquet:section --seeds all=all
    python examples/graphs/debian.py [GRAPH]
"""

import sys
from typing import Any

import feedline
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

SECTIONS = 58


def pipeline(graph: str) -> feedline.Pipeline:
    """One package of five is in the test set."""
    rows = feedline.read(url=graph, format="graph", seeds="all", seed=1).filter("input_id % 5 > 0").shuffle(window=100_000)
    return rows.sample_neighbors(512, [10, 5], features={"x": "float32"})


def train(
    model: GraphSAGE, optimizer: torch.optim.Optimizer, graph: str, state: dict[str, Any] | None, stop_after: int | None
) -> tuple[list[float], dict[str, Any]]:
    """Trains for one epoch, or for a part of it. Returns the losses and the state of the job."""
    losses = []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with pipeline(graph).open(epochs=1, state=state).pyg(device=device) as job:
        for batch in job:
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(scores, batch.y.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == stop_after:
                break
        return losses, job.state_dict()


def new_model() -> tuple[GraphSAGE, torch.optim.Optimizer]:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GraphSAGE(128, hidden_channels=64, num_layers=2, out_channels=SECTIONS).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def main(graph: str) -> None:
    model, optimizer = new_model()
    begun, state = train(model, optimizer, graph, None, stop_after=20)
    rest, _ = train(model, optimizer, graph, state, stop_after=None)
    model, optimizer = new_model()
    whole, _ = train(model, optimizer, graph, None, stop_after=None)
    assert torch.allclose(torch.tensor(begun + rest), torch.tensor(whole), atol=1e-3), "the losses of the resumed run differ"
    print(f"loss {whole[0]:.3f} to {whole[-1]:.3f}; resumed after {len(begun)} of {len(whole)} steps with the same losses")
    assert whole[-1] < whole[0] / 2, "the loss falls to less than half"


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "target/demo/debian")
