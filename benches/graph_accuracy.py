#!/usr/bin/env python3
"""Compares the accuracy of GraphSAGE on Cora after training with batches of Feedline and of GraphBolt, or of PyG without GraphBolt.

Each seed determines a random division of the nodes (60 % for training, 40 % for tests) and the initial weights, which both sides
share. The model has two layers with 64 hidden values, batches have 256 seeds with the fanouts 10 and 10, and training takes 15 epochs.
The test uses all neighbors of all nodes, without batches. The output is the 95 % interval of the paired difference, which must be
within one percentage point.

    ACCURACY=1 make graph-bench
    python benches/graph_accuracy.py --seeds 40 --data ../shared/data/graph
"""

import argparse
import importlib.util
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import feedline
import numpy as np
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BINARY", ROOT / "target/release/feedline"))
SHARED = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
BATCH, FANOUTS, EPOCHS, HIDDEN, RATE = 256, [10, 10], 15, 64, 0.01
LIMIT_POINTS = 1.0
# Quantiles of Student's t distribution for 95 % intervals, by degrees of freedom. The next smaller number is used.
T_QUANTILES = {1: 12.71, 4: 2.78, 9: 2.26, 19: 2.09, 29: 2.045, 39: 2.023, 79: 1.990, 199: 1.972}


class Cora:
    """The graph, by source and target of each edge."""

    def __init__(self, folder):
        self.edges = torch.from_numpy(np.loadtxt(folder / "cora.edges.tsv", dtype=np.int64, delimiter="\t").T.copy())
        self.x = torch.from_numpy(np.load(folder / "cora.features.f16.npy").astype(np.float32))
        self.y = torch.from_numpy(np.load(folder / "cora.labels.i8.npy").astype(np.int64))

    def split(self, seed):
        """Returns the training nodes and the test nodes."""
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(seed))
        count = len(order) * 6 // 10
        return order[:count], order[count:]


class Sage(torch.nn.Module):
    """GraphSAGE with the mean of neighbors. A layer is the sources and targets of edges, and the number of its output nodes."""

    def __init__(self, inputs, outputs):
        super().__init__()
        sizes = [(inputs, HIDDEN), (HIDDEN, outputs)]
        self.own = torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes)
        self.neighbors = torch.nn.ModuleList(torch.nn.Linear(*size, bias=False) for size in sizes)

    def forward(self, x, layers):
        for number, (sources, targets, count) in enumerate(layers):
            total = torch.zeros(count, x.shape[1]).index_add_(0, targets, x[sources])
            degree = torch.bincount(targets, minlength=count).clamp(min=1).unsqueeze(1)
            x = self.own[number](x[:count]) + self.neighbors[number](total / degree)
            if number == 0:
                x = F.dropout(x.relu(), 0.5, self.training)
        return x


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--data", type=pathlib.Path, default=SHARED / "graph")
    given = parser.parse_args()
    cora = Cora(given.data)
    has_graphbolt = importlib.util.find_spec("dgl") is not None
    other, batches = ("GraphBolt", graphbolt_batches) if has_graphbolt else ("PyG", pyg_batches)
    with tempfile.TemporaryDirectory() as folder:
        stored = pathlib.Path(folder) / "cora"
        arrays = ("--edges", given.data / "cora.edges.tsv", "--feature", f"x={given.data / 'cora.features.f16.npy'}", "--dtype", "x=float32")
        command = [FEEDLINE, "graph", "build", stored, *arrays]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        ours = feedline_batches(stored, "blocks" if has_graphbolt else "subgraph")
        results = []
        for seed in range(given.seeds):
            results.append((accuracy(cora, seed, ours), accuracy(cora, seed, batches)))
            print(f"seed {seed}: Feedline {results[-1][0]:.2f} %, {other} {results[-1][1]:.2f} %", file=sys.stderr, flush=True)
    report(results, other)


def report(results, other):
    differences = [one - another for one, another in results]
    mean, spread = statistics.mean(differences), statistics.stdev(differences)
    freedom = max(number for number in T_QUANTILES if number < len(results))
    half = T_QUANTILES[freedom] * spread / math.sqrt(len(results))
    for name, values in (("Feedline", [one for one, _ in results]), (other, [another for _, another in results])):
        print(f"{name}: {statistics.mean(values):.2f} % (standard deviation {statistics.stdev(values):.2f})")
    print(f"difference over {len(results)} seeds: {mean - half:+.2f} to {mean + half:+.2f} points (95 % interval)")
    if max(abs(mean - half), abs(mean + half)) > LIMIT_POINTS:
        sys.exit(f"the interval is not within {LIMIT_POINTS:g} points")


def accuracy(cora, seed, batches):
    """Trains a model and returns its accuracy on the test nodes in percent."""
    train, test = cora.split(seed)
    torch.manual_seed(seed)
    model = Sage(cora.x.shape[1], int(cora.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=5e-4)
    for x, layers, y in batches(cora, train, seed):
        loss = F.cross_entropy(model(x, layers)[: len(y)], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        whole = (*cora.edges, len(cora.y))
        found = model(cora.x, [whole, whole]).argmax(dim=1)
    return 100 * (found[test] == cora.y[test]).float().mean().item()


def feedline_batches(graph, layout):
    """Returns a function that yields the batches of all epochs."""

    def batches(cora, train, seed):
        rows = graph.parent / "seeds.npz"
        np.savez(rows, node=train.numpy(), y=cora.y[train].numpy())
        pipeline = feedline.read(url=rows, format="npz", seed=seed).shuffle(len(train))
        pipeline = pipeline.sample_neighbors(BATCH, FANOUTS, features=["x"], graph=graph, layout=layout)
        folder = graph.parent / f"index{seed}"
        with pipeline.open(epochs=EPOCHS, cores=1, index_dir=folder, cache_dir=folder).numpy() as job:
            for batch in job.batches():
                arrays = {name: torch.from_numpy(np.array(array, dtype=np.int64)) for name, array in batch.items() if name != "x"}
                yield torch.from_numpy(batch["x"].copy()), layers_of(arrays, layout), arrays["y"]

    return batches


def layers_of(batch, layout):
    """Returns the layers of a batch of Feedline, of which the first uses the edges of the last hop."""
    offsets, sources = batch["colptr"], batch["row"]
    if layout == "subgraph":
        targets = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
        layer = (sources, targets, len(batch["n_id"]))
        return [layer] * len(FANOUTS)
    layers, first, start = [], 0, 0
    nodes = batch["num_sampled_nodes"].cumsum(0).tolist()
    for hop, count in enumerate(batch["num_sampled_edges"].tolist()):
        degrees = offsets[first : first + nodes[hop] + 1].diff()
        targets = torch.repeat_interleave(torch.arange(nodes[hop]), degrees)
        layers.insert(0, (sources[start : start + count], targets, nodes[hop]))
        first, start = first + nodes[hop], start + count
    return layers


def graphbolt_batches(cora, train, seed):
    import dgl.graphbolt as gb

    del seed
    order = torch.argsort(cora.edges[1] * len(cora.y) + cora.edges[0])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(cora.edges[1], minlength=len(cora.y)).cumsum(0)])
    graph = gb.fused_csc_sampling_graph(indptr, cora.edges[0][order])
    features = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(cora.x)})
    seeds = gb.ItemSet((train, cora.y[train]), names=("seed_nodes", "labels"))
    pipe = gb.ItemSampler(seeds, batch_size=BATCH, shuffle=True)
    pipe = pipe.sample_neighbor(graph, FANOUTS[::-1]).fetch_feature(features, node_feature_keys=["x"])
    for _ in range(EPOCHS):
        for batch in gb.DataLoader(pipe, num_workers=0):
            layers = []
            for hop in batch.sampled_subgraphs:
                offsets = hop.sampled_csc.indptr
                count = len(offsets) - 1
                targets = torch.repeat_interleave(torch.arange(count), offsets.diff())
                layers.append((hop.sampled_csc.indices, targets, count))
            yield batch.node_features["x"], layers, batch.labels


def pyg_batches(cora, train, seed):
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    del seed
    data = Data(x=cora.x, edge_index=cora.edges, y=cora.y)
    loader = NeighborLoader(data, num_neighbors=FANOUTS, input_nodes=train, batch_size=BATCH, shuffle=True)
    for _ in range(EPOCHS):
        for batch in loader:
            layer = (*batch.edge_index, batch.num_nodes)
            yield batch.x, [layer] * len(FANOUTS), batch.y[: batch.batch_size]


if __name__ == "__main__":
    main()
