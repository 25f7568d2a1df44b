"""Samples with GraphBolt, as its examples do: each hop samples all nodes of the batch anew."""

import dgl
import dgl.graphbolt as gb

import runner
import sampling_data


def main() -> None:
    given = runner.arguments()
    data = sampling_data.load(given.data)
    graph = gb.fused_csc_sampling_graph(data["indptr"], data["indices"])
    features = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(data["x"])})
    seeds = gb.ItemSet((data["train"], data["y"][data["train"]]), names=("seed_nodes", "labels"))
    pipe = gb.ItemSampler(seeds, batch_size=given.batch, shuffle=True, drop_last=True)
    # The last fanout belongs to the seeds.
    pipe = pipe.sample_neighbor(graph, given.fanouts[::-1])
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"])
    runner.measure(given, f"GraphBolt {dgl.__version__}", gb.DataLoader(pipe, num_workers=given.workers), size_of)


def size_of(batch) -> tuple[int, int]:
    nodes = len(batch.input_nodes)
    assert len(batch.node_features["x"]) == nodes
    return nodes, sum(len(hop.sampled_csc.indices) for hop in batch.sampled_subgraphs)


if __name__ == "__main__":
    main()
