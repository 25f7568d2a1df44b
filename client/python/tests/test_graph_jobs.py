"""Jobs that sample a stored graph: arrays without copies, objects of PyG, and states within an epoch."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import binary

NODES, DEGREE, SEEDS = 400, 6, 150


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random graph with a feature that contains the position of each node, labels, and a seed set."""
    if not binary().exists():
        pytest.skip(f"{binary()} is not built")
    folder = tmp_path_factory.mktemp("graph")
    generator = np.random.default_rng(5)
    edges = np.stack([generator.integers(0, NODES, NODES * DEGREE), np.repeat(np.arange(NODES), DEGREE)])
    nodes = np.arange(NODES)
    arrays = {"edges": edges, "x": np.stack([nodes, nodes * 2], 1).astype(np.float32), "y": nodes % 7, "train": generator.permutation(NODES)[:SEEDS]}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    command = [binary(), "graph", "build", folder / "g", "--edges", folder / "edges.npy", "--feature", f"x={folder / 'x.npy'}"]
    command += ["--label", f"y={folder / 'y.npy'}", "--seeds", f"train={folder / 'train.npy'}", "--edge-ids"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return folder


def _pipeline(graph: Path, **options: Any) -> feedline.Pipeline:
    options = {"features": ["x"], "edge_ids": True, **options}
    rows = feedline.read(url=graph / "g", format="graph", seeds="train", seed=9).shuffle(window=64)
    return rows.sample_neighbors(32, [4, 3], **options)


def test_a_batch_is_a_dict_of_views(graph: Path, local: dict[str, Any]) -> None:
    edges, train = np.load(graph / "edges.npy"), np.load(graph / "train.npy")
    seeds = []
    with _pipeline(graph).open(**local) as job:
        assert len(job) == 5
        for batch in job:
            n_id, seen = batch["n_id"], batch["num_sampled_nodes"]
            assert n_id.dtype == np.uint32 and len(n_id) == seen.sum() and seen[0] == batch.size == len(batch["y"])
            assert not batch["x"].flags.owndata and not batch["x"].flags.writeable
            assert (batch["x"][:, 0] == n_id).all() and batch["x"].shape == (len(n_id), 2)
            assert (batch["y"] == n_id[: batch.size] % 7).all()
            assert (train[batch["input_id"]] == n_id[: batch.size]).all()
            targets = np.repeat(np.arange(len(batch["colptr"]) - 1), np.diff(batch["colptr"]))
            assert (edges[:, batch["e_id"]] == np.stack([n_id[batch["row"]], n_id[targets]])).all()
            assert batch["num_sampled_edges"].sum() == len(batch["row"])
            seeds += n_id[: batch.size].tolist()
        x = batch["x"]
        expected = x.tolist()
        del batch, n_id
    gc.collect()
    assert sorted(seeds) == sorted(train.tolist()) and x.tolist() == expected


def test_arrow_has_one_row_of_lists(graph: Path, local: dict[str, Any]) -> None:
    pytest.importorskip("pyarrow")
    with _pipeline(graph).open(**local).arrow() as job:
        batch = next(iter(job))
    assert batch.num_rows == 1 and b"feedline:graph" in batch.schema.metadata
    assert len(batch.column("y")[0]) == 32


@pytest.mark.parametrize("copy", [True, False])
def test_objects_of_pyg_equal_the_arrays(graph: Path, local: dict[str, Any], copy: bool) -> None:
    pytest.importorskip("torch_geometric")
    with _pipeline(graph).open(**local) as job:
        arrays = list(job)
    with _pipeline(graph).open(**local).pyg(copy=copy) as job:
        graphs = list(job)
    assert len(graphs) == len(arrays) == 5
    for data, batch in zip(graphs, arrays, strict=True):
        data.validate()
        for name in ("n_id", "e_id", "input_id", "x", "y"):
            assert data[name].tolist() == batch[name].tolist(), name
        assert data.edge_index[0].tolist() == batch["row"].tolist()
        assert data.batch_size == batch.size and data.num_sampled_nodes == batch["num_sampled_nodes"].tolist()
        stores = {data[name].untyped_storage().data_ptr() for name in ("x", "y")}
        assert len(stores) == 1, "all arrays of a graph are in one slab"


def test_a_loader_reads_a_stored_graph(graph: Path, local: dict[str, Any]) -> None:
    pytest.importorskip("torch_geometric")
    from feedline.pyg import NeighborLoader

    edges, train = np.load(graph / "edges.npy"), np.load(graph / "train.npy")
    arguments: dict[str, Any] = {"input_nodes": "train", "batch_size": 32, "features": ["x"], "seed": 9, "job_options": local}
    loader = NeighborLoader(graph / "g", [4, 3], shuffle=True, **arguments)
    assert len(loader) == 5
    epochs = [list(loader) for _ in range(2)]
    loader.close()
    for epoch in epochs:
        assert sorted(node for data in epoch for node in data.n_id[: data.batch_size].tolist()) == sorted(train.tolist())
        assert all((data.x[:, 0] == data.n_id).all() and (data.y == data.n_id[: data.batch_size] % 7).all() for data in epoch)
    assert epochs[0][0].n_id.tolist() != epochs[1][0].n_id.tolist()
    resumed = NeighborLoader(graph / "g", [4, 3], shuffle=True, **arguments)
    for _ in zip(range(2), resumed, strict=False):
        pass
    state = resumed.state_dict()
    resumed.load_state_dict(state)
    assert [data.n_id.tolist() for data in resumed] == [data.n_id.tolist() for data in epochs[0][state["step"] :]]
    resumed.close()
    loader = NeighborLoader(graph / "g", [3], subgraph_type="bidirectional", **arguments)
    known = set(zip(*edges.tolist(), strict=True))
    for data in loader:
        pairs = set(zip(*data.n_id[data.edge_index].tolist(), strict=True))
        assert pairs == {(target, source) for source, target in pairs}
        assert all(pair in known or pair[::-1] in known for pair in pairs)
    loader.close()


def test_cached_features_do_not_change_batches(graph: Path, clusters: Any, run_name: Any) -> None:
    pipeline = _pipeline(graph, features={"x": "float64"})

    def batches(**options: Any) -> list[dict[str, Any]]:
        with pipeline.open(coordinator=clusters(1), name=run_name(), epochs=4, **options) as job:
            return [{name: batch[name].tolist() for name in ("n_id", "x", "row")} for _ in range(4) for batch in job]

    expected = batches()
    for size in (NODES * 16 // 5, "1MiB"):
        assert batches(feature_cache=size) == expected


def test_an_invalid_size_of_the_feature_cache_is_rejected(graph: Path, local: dict[str, Any]) -> None:
    with pytest.raises(feedline.WrongUse, match="feature_cache: invalid size `lots`"), _pipeline(graph).open(feature_cache="lots", **local) as job:
        next(iter(job))


def test_a_job_resumes_within_an_epoch(graph: Path, local: dict[str, Any]) -> None:
    pytest.importorskip("torch_geometric")
    pipeline = _pipeline(graph)
    with pipeline.open(epochs=2, **local).pyg() as job:
        whole = [data.n_id.tolist() for data in job.batches()]
    with pipeline.open(epochs=2, **local).pyg() as job:
        begun = []
        for data in job:
            begun.append(data.n_id.tolist())
            if len(begun) == 3:
                break
        state = job.state_dict()
    with pipeline.open(epochs=2, state=state, **local).pyg() as job:
        rest = [data.n_id.tolist() for data in job.batches()]
    assert begun + rest == whole and whole[:5] != whole[5:]


def test_ranks_share_the_seeds(graph: Path, clusters: Any, run_name: Any) -> None:
    name, train = run_name(), np.load(graph / "train.npy")
    jobs = [feedline.open(_pipeline(graph), coordinator=clusters(2), rank=rank, world_size=2, name=name, epochs=1) for rank in range(2)]
    seeds = []
    for batches in zip(*jobs, strict=True):
        seeds += [node for batch in batches for node in batch["n_id"][: batch.size].tolist()]
    for job in jobs:
        job.close()
    assert sorted(seeds) == sorted(train.tolist())
