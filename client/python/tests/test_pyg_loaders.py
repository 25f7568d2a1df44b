"""The replacements of PyG's loaders: batches are parts of the graph, loops are epochs, and arguments are used or rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import feedline
import pytest
from conftest import run_python

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from feedline._pyg_job import worker_memory  # noqa: E402 - needs PyG
from feedline.pyg import LinkNeighborLoader, NeighborLoader  # noqa: E402
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.sampler.base import NumNeighbors  # noqa: E402
from torch_geometric.testing import MyFeatureStore, MyGraphStore  # noqa: E402

NODES, EDGES = 60, 300


@pytest.fixture(scope="module")
def data() -> Any:
    generator = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(NODES, 4, generator=generator),
        edge_index=torch.randint(0, NODES, (2, EDGES), generator=generator),
        edge_attr=torch.arange(EDGES),
        y=torch.randint(0, 3, (NODES,), generator=generator),
        train_mask=torch.rand(NODES, generator=generator) < 0.5,
        time=torch.arange(NODES),
        weight=torch.randint(0, 4, (EDGES,), generator=generator).float(),
    )


@pytest.fixture(scope="module")
def shop() -> Any:
    """Names that a stored graph does not permit, a relation with its reverse, and a type that no fanout reaches."""
    generator = torch.Generator().manual_seed(2)
    shop = HeteroData()
    shop["a user"].x = torch.randn(20, 3, generator=generator)
    shop["item"].x = torch.randn(30, 2, generator=generator)
    shop["shelf"].num_nodes = 5
    pairs = torch.stack([torch.randint(0, 20, (90,), generator=generator), torch.randint(0, 30, (90,), generator=generator)])
    shop["a user", "buys", "item"].edge_index = pairs
    shop["a user", "buys", "item"].edge_attr = torch.arange(90)
    shop["item", "rev_buys", "a user"].edge_index = pairs.flip(0)
    shop["shelf", "near", "shelf"].edge_index = torch.zeros(2, 3, dtype=torch.int64)
    return shop


def _options(**options: Any) -> dict[str, Any]:
    return {"seed": 5, "job_options": {"cores": 1, "memory": "64MiB"}, **options}


def _check_part(batch: Any, data: Any) -> None:
    """Checks that a batch is a part of the graph, with its attributes."""
    batch.validate()
    for name in ("x", "y", "train_mask"):
        assert (batch[name] == data[name][batch.n_id]).all(), name
    assert (batch.edge_attr == batch.e_id).all()
    assert (data.edge_index[:, batch.e_id] == batch.n_id[batch.edge_index]).all()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_is_an_epoch_of_parts_of_the_graph(data: Any, workers: int) -> None:
    loader = NeighborLoader(data, [3, 2], input_nodes=data.train_mask, batch_size=8, shuffle=True, num_workers=workers, **_options())
    train = data.train_mask.nonzero().view(-1).tolist()
    orders = []
    for _ in range(2):
        seeds = []
        for batch in loader:
            _check_part(batch, data)
            assert batch.n_id[: batch.batch_size].tolist() == batch.input_id.tolist()
            assert sum(batch.num_sampled_nodes) == batch.num_nodes and sum(batch.num_sampled_edges) == batch.num_edges
            seeds += batch.input_id.tolist()
        orders.append(seeds)
    assert sorted(orders[0]) == sorted(orders[1]) == train and orders[0] != orders[1]
    assert len(loader) == -(-len(train) // 8)
    loader.close()


def test_a_loop_that_ends_early_is_followed_by_a_new_epoch(data: Any) -> None:
    loader = NeighborLoader(data, [2], batch_size=16, shuffle=True, **_options())
    first, second = (next(iter(loader)).input_id.tolist() for _ in range(2))
    assert first != second
    assert sorted(seed for batch in loader for seed in batch.input_id.tolist()) == list(range(NODES))
    loader.close()


def test_a_loop_that_fails_is_followed_by_a_new_epoch(data: Any) -> None:
    calls = []

    def fail_once(batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 1:
            raise ArithmeticError
        return batch

    for workers in (0, 1):
        calls.clear()
        loader = NeighborLoader(data, [2], batch_size=16, transform=fail_once, num_workers=workers, **_options())
        with pytest.raises(ArithmeticError):
            list(loader)
        assert [seed for batch in loader for seed in batch.input_id.tolist()] == list(range(NODES))
        loader.close()


def test_a_state_continues_within_an_epoch(data: Any) -> None:
    arguments: dict[str, Any] = {"input_nodes": torch.arange(50), "batch_size": 8, "shuffle": True}
    loader = NeighborLoader(data, [3], **arguments, **_options())
    whole = [[batch.n_id.tolist() for batch in loader] for _ in range(2)]
    loader.close()
    loader = NeighborLoader(data, [3], **arguments, **_options())
    begun = []
    for batch in loader:
        begun.append(batch.n_id.tolist())
        if len(begun) == 3:
            break
    state = loader.state_dict()
    loader.close()
    # The state contains the seed.
    resumed = NeighborLoader(data, [3], **arguments, **_options(seed=99, num_workers=1))
    resumed.load_state_dict(state)
    assert begun + [batch.n_id.tolist() for batch in resumed] == whole[0]
    assert [batch.n_id.tolist() for batch in resumed] == whole[1]
    with pytest.raises(feedline.WrongUse, match="another graph or other seeds"):
        NeighborLoader(data, [3], input_nodes=torch.arange(49), **_options()).load_state_dict(state)
    resumed.close()


def test_the_last_batch_is_dropped(data: Any) -> None:
    loader = NeighborLoader(data, [2], batch_size=16, drop_last=True, **_options())
    assert len(loader) == 3
    assert [batch.input_id.tolist() for batch in loader] == [list(range(start, start + 16)) for start in (0, 16, 32)]
    loader.close()


def test_transforms_are_called(data: Any) -> None:
    def mark(batch: Any) -> Any:
        batch.is_marked = True
        return batch

    def cut(output: Any) -> Any:
        output.metadata = (output.metadata[0] + 1000, None)
        return output

    loader = NeighborLoader(data, [2], transform=mark, transform_sampler_output=cut, **_options())
    batch = next(iter(loader))
    assert batch.is_marked and batch.input_id.tolist() == [1000]
    loader.close()


def test_all_neighbors_are_all_edges_of_the_seeds(data: Any) -> None:
    loader = NeighborLoader(data, [-1], batch_size=NODES, **_options())
    batch = next(iter(loader))
    assert sorted(batch.e_id.tolist()) == list(range(EDGES)) and batch.n_id.tolist() == list(range(NODES))
    loader.close()
    both = NeighborLoader(data, [-1], batch_size=NODES, subgraph_type="bidirectional", **_options())
    edges = {tuple(edge) for edge in next(iter(both)).edge_index.t().tolist()}
    assert edges == {(target, source) for source, target in edges}
    both.close()


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_neighbors_are_not_later_than_the_seed(data: Any, strategy: str) -> None:
    seeds = torch.tensor([50, 10, 30])
    loader = NeighborLoader(data, [4, 4], input_nodes=seeds, time_attr="time", temporal_strategy=strategy, batch_size=3, **_options())
    batch = next(iter(loader))
    assert "seed_time" not in batch, "PyG adds it only with input_time"
    assert (batch.time <= seeds[batch.batch]).all() and batch.num_edges > 0
    loader.close()
    timed = NeighborLoader(data, [4], input_nodes=seeds, input_time=torch.tensor([55, 5, 40]), time_attr="time", batch_size=3, **_options())
    batch = next(iter(timed))
    assert batch.seed_time.tolist() == [55, 5, 40]
    assert (batch.time[3:] <= batch.seed_time[batch.batch][3:]).all()
    timed.close()


def test_edges_without_weight_are_not_sampled(data: Any) -> None:
    loader = NeighborLoader(data, [2], weight_attr="weight", batch_size=NODES, **_options())
    batch = next(iter(loader))
    assert (batch.weight > 0).all() and batch.num_edges > 0
    loader.close()


def test_types_without_a_fanout_are_empty(shop: Any) -> None:
    buys, back = ("a user", "buys", "item"), ("item", "rev_buys", "a user")
    fanouts = {buys: [3, 2], back: [2, 2], ("shelf", "near", "shelf"): [0, 0]}
    for num_neighbors in (fanouts, NumNeighbors({buys: [3, 2], back: [2, 2]}, default=[0, 0])):
        loader = NeighborLoader(shop, num_neighbors, input_nodes=("item", None), batch_size=7, **_options())
        seeds = []
        for batch in loader:
            batch.validate()
            assert batch.node_types == shop.node_types and batch.edge_types == shop.edge_types
            assert (batch["a user"].x == shop["a user"].x[batch["a user"].n_id]).all()
            assert (batch[buys].edge_attr == batch[buys].e_id).all()
            ends = torch.stack([batch["a user"].n_id[batch[buys].edge_index[0]], batch["item"].n_id[batch[buys].edge_index[1]]])
            assert (shop[buys].edge_index[:, batch[buys].e_id] == ends).all()
            assert batch["shelf"].num_nodes == 0 and batch["shelf"].num_sampled_nodes == [0, 0, 0]
            seeds += batch["item"].input_id.tolist()
        assert seeds == list(range(30))
        loader.close()


def test_links_have_labels_and_positions(data: Any, shop: Any) -> None:
    pairs = data.edge_index[:, :50]
    loader = LinkNeighborLoader(data, [3, 2], edge_label_index=pairs, edge_label=torch.arange(50), batch_size=16, shuffle=True, **_options())
    links = []
    for batch in loader:
        _check_part(batch, data)
        assert (pairs[:, batch.input_id] == batch.n_id[batch.edge_label_index]).all()
        assert (batch.edge_label == batch.input_id).all()
        links += batch.input_id.tolist()
    assert sorted(links) == list(range(50))
    loader.close()
    buys = ("a user", "buys", "item")
    loader = LinkNeighborLoader(shop, [2], edge_label_index=buys, batch_size=16, disjoint=True, **_options())
    for batch in loader:
        sources, targets = batch[buys].edge_label_index
        expected = shop[buys].edge_index[:, batch[buys].input_id]
        assert (batch["a user"].n_id[sources] == expected[0]).all() and (batch["item"].n_id[targets] == expected[1]).all()
        assert batch["a user"].batch[sources].tolist() == batch["item"].batch[targets].tolist() == list(range(len(sources)))
    loader.close()


def test_binary_negatives_follow_the_links(data: Any) -> None:
    pairs = data.edge_index[:, :50]
    arguments: dict[str, Any] = {"edge_label_index": pairs, "batch_size": 16, "neg_sampling": {"mode": "binary", "amount": 2}}
    loader = LinkNeighborLoader(data, [2], **arguments, **_options())
    batch = next(iter(loader))
    assert batch.edge_label.tolist() == [1.0] * 16 + [0.0] * 32 and batch.edge_label_index.shape == (2, 48)
    assert (batch.n_id[batch.edge_label_index[:, :16]] == pairs[:, batch.input_id]).all()
    loader.close()
    classes = LinkNeighborLoader(data, [2], edge_label=torch.arange(50) % 3, **arguments, **_options())
    batch = next(iter(classes))
    assert batch.edge_label.tolist() == [1 + link % 3 for link in batch.input_id.tolist()] + [0] * 32
    classes.close()


@pytest.mark.parametrize("amount", [1, 3])
def test_triplets_have_negative_targets(data: Any, shop: Any, amount: int) -> None:
    negatives = {"mode": "triplet", "amount": amount}
    loader = LinkNeighborLoader(data, [2], batch_size=16, neg_sampling=negatives, **_options())
    batch = next(iter(loader))
    assert (batch.n_id[batch.src_index] == data.edge_index[0, batch.input_id]).all()
    assert (batch.n_id[batch.dst_pos_index] == data.edge_index[1, batch.input_id]).all()
    assert batch.dst_neg_index.shape == ((16,) if amount == 1 else (16, amount)) and "edge_label_index" not in batch
    loader.close()
    loader = LinkNeighborLoader(shop, [2], edge_label_index=("a user", "buys", "item"), batch_size=16, neg_sampling=negatives, **_options())
    batch = next(iter(loader))
    assert len(batch["a user"].src_index) == len(batch["item"].dst_pos_index) == len(batch["item"].dst_neg_index) == 16
    loader.close()


def test_negatives_that_differ_from_pyg_are_rejected(data: Any) -> None:
    for negatives, sentence in [
        ({"mode": "binary", "amount": 0.5}, "the amount of neg_sampling is 0.5; expected an integer"),
        ({"mode": "triplet", "dst_weight": torch.ones(NODES)}, "src_weight and dst_weight of neg_sampling are not supported"),
    ]:
        with pytest.raises(feedline.WrongUse, match=sentence):
            LinkNeighborLoader(data, [2], neg_sampling=negatives)
    with pytest.raises(feedline.WrongUse, match="neg_sampling is not supported with the times of nodes"):
        LinkNeighborLoader(data, [2], neg_sampling_ratio=1.0, time_attr="time", edge_label_time=torch.zeros(EDGES, dtype=torch.int64))


def test_stores_provide_features_and_edges(data: Any) -> None:
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(NODES, NODES))
    loader = NeighborLoader((features, graph), [3], input_nodes=torch.arange(20), batch_size=8, **_options())
    for batch in loader:
        assert (batch.x == data.x[batch.n_id]).all() and (data.edge_index[:, batch.e_id] == batch.n_id[batch.edge_index]).all()
    loader.close()


def test_ranks_divide_the_seeds(data: Any) -> None:
    seeds = []
    for rank in range(2):
        loader = NeighborLoader(data, [2], batch_size=8, shuffle=True, rank=rank, world_size=2, **_options())
        assert len(loader) == 4
        seeds += [seed for batch in loader for seed in batch.input_id.tolist()]
        loader.close()
    assert sorted(seeds) == list(range(NODES))


def test_workers_have_memory_for_a_large_graph() -> None:
    assert worker_memory(1 << 20, {}) == {}
    assert worker_memory(1 << 30, {"workers": 2}) == {"memory": 3 << 30, "graph_memory": 2 << 30}
    assert worker_memory(1 << 30, {"memory": "2GiB"}) == worker_memory(1 << 30, {"graph_memory": "1GiB"}) == {}


def test_a_graph_in_memory_is_not_sampled_on_a_cluster(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_COORDINATOR", "http://127.0.0.1:1")
    with pytest.raises(feedline.WrongUse, match="workers in this process sample a graph in memory, but coordinator= or"):
        NeighborLoader(data, [2])


def test_files_are_removed(data: Any) -> None:
    loader = NeighborLoader(data, [2], **_options())
    folder = loader._folder.path  # type: ignore[union-attr]
    assert (folder / "graph").is_dir()
    loader.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"sampler": [1]}, "sampler is not supported by NeighborLoader of Feedline; pass shuffle="),
        ({"worker_init_fn": print}, "worker_init_fn is not supported"),
        ({"colour": 1}, "NeighborLoader has no argument colour="),
        ({"directed": False}, "directed=False is not supported"),
        ({"subgraph_type": "induced"}, "subgraph_type='induced' is not supported"),
        ({"subgraph_type": "all"}, "subgraph_type is 'all'; expected directional or bidirectional"),
        ({"neighbor_sampler": 3}, "neighbor_sampler is not supported"),
        ({"temporal_strategy": "first"}, "temporal_strategy is 'first'; expected uniform or last"),
        ({"time_attr": "when"}, "the graph has no such attribute"),
        ({"time_attr": "x"}, "whose values are torch.float32; expected integers"),
        ({"weight_attr": "w"}, "weight_attr is 'w', but the graph has no such attribute"),
        ({"input_time": [1]}, "input_time is set, but time_attr is not"),
        ({"num_neighbors": {("a", "b", "c"): [1]}}, "num_neighbors is a dict, but the graph has one node type"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"features": ["x"]}, "features= and edge_features= select those of a stored graph"),
        ({"data": 3}, "data is a int; expected a Data"),
        ({"data": Data(x=torch.zeros(2, 1))}, "the graph has no edge_index; add it"),
        ({"data": "graph/", "num_neighbors": NumNeighbors({("a", "b", "c"): [1]}, default=[1])}, "the default of NumNeighbors is not supported"),
        ({"data": "graph/", "custom_cls": Data}, "custom_cls is not supported with a stored graph"),
        ({"data": "graph/", "input_nodes": [1]}, "the seeds of a stored graph have a name"),
    ],
)
def test_what_is_not_supported_is_rejected(data: Any, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(feedline.WrongUse, match=sentence.replace("(", r"\(")):
        NeighborLoader(**{"data": data, "num_neighbors": [2], **arguments})


def test_a_loader_is_not_called_with_seeds(data: Any) -> None:
    loader = NeighborLoader(data, [2], **_options())
    with pytest.raises(feedline.WrongUse, match="iterate over it"):
        loader([1, 2])
    with pytest.raises(feedline.WrongUse, match="edge_label_time is set, but time_attr is not"):
        LinkNeighborLoader(data, [2], edge_label_time=torch.zeros(EDGES))
    loader.close()


_PEAK = """
import resource
import torch
from torch_geometric.data import Data
from feedline.pyg import NeighborLoader

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

small = Data(x=torch.zeros(10, 1), edge_index=torch.zeros(2, 10, dtype=torch.int64))
loader = NeighborLoader(small, [2], job_options={"cores": 1})
list(loader)
loader.close()
before = peak()
nodes, edges = 400_000, 2_000_000
data = Data(x=torch.ones(nodes, 256), edge_index=torch.randint(0, nodes, (2, edges)))
loader = NeighborLoader(data, [5, 5], input_nodes=torch.arange(2000), batch_size=100, job_options={"cores": 1})
for batch in loader:
    assert batch.x.sum() == batch.x.numel()
size = data.x.nbytes + data.edge_index.nbytes
assert peak() - before <= 1.5 * size, f"{(peak() - before) / size:.2f} times the graph"
"""


def test_a_graph_in_memory_is_not_copied(tmp_path: Path) -> None:
    done = run_python(_PEAK, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
