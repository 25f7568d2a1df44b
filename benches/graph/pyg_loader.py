"""Samples with PyG's NeighborLoader and torch-sparse: each hop samples the nodes that the previous hop added."""

import torch
import torch_geometric
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import runner
import sampling_data


def main() -> None:
    given = runner.arguments()
    assert torch_geometric.typing.WITH_TORCH_SPARSE and not torch_geometric.typing.WITH_PYG_LIB
    arrays = sampling_data.load(given.data)
    targets = torch.repeat_interleave(torch.arange(len(arrays["y"])), arrays["indptr"].diff())
    data = Data(x=arrays["x"], y=arrays["y"], edge_index=torch.stack([arrays["indices"], targets]))
    loader = NeighborLoader(
        data,
        num_neighbors=given.fanouts,
        input_nodes=arrays["train"],
        batch_size=given.batch,
        shuffle=True,
        drop_last=True,
        is_sorted=True,
        num_workers=given.workers,
        persistent_workers=given.workers > 0,
    )
    runner.measure(given, f"PyG {torch_geometric.__version__}", loader, size_of)


def size_of(batch) -> tuple[int, int]:
    assert len(batch.x) == batch.num_nodes
    return batch.num_nodes, batch.num_edges


if __name__ == "__main__":
    main()
