"""Stored graphs of PyG, DGL and SciPy. Small classes replace PyG and DGL, which have the same attributes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import feedline
import numpy as np
import pytest
from feedline import graph

EDGES = np.array([[0, 2, 1, 0], [1, 1, 0, 2]])
X = np.arange(6, dtype=np.float32).reshape(3, 2)


class Store:
    """Has the attributes of a ``Data``, or of a store of ``HeteroData``."""

    def __init__(self, num_nodes: int | None = None, **attributes: Any) -> None:
        self.num_nodes = num_nodes
        self._attributes = attributes
        self.__dict__.update(attributes)

    def to_dict(self) -> dict[str, Any]:
        return dict(self._attributes)


class Hetero(dict[Any, Store]):
    """Has the attributes of a ``HeteroData``."""

    @property
    def node_types(self) -> list[str]:
        return [key for key in self if isinstance(key, str)]

    @property
    def edge_types(self) -> list[tuple[str, str, str]]:
        return [key for key in self if isinstance(key, tuple)]


class Edges:
    """Has the attribute ``edges`` of a graph of DGL, which is a function and a mapping."""

    def __init__(self, ends: dict[Any, Any], data: dict[Any, Any]) -> None:
        self._ends, self._data = ends, data

    def __call__(self, *, etype: Any, order: str) -> Any:
        assert order == "eid"
        return self._ends[etype]

    def __getitem__(self, etype: Any) -> SimpleNamespace:
        return SimpleNamespace(data=self._data[etype])


def read(folder: Path, path: str) -> list[Any]:
    return np.load(folder / path).tolist()


def description(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "graph.json").read_text())


def seed_sets(folder: Path) -> dict[str, int]:
    return {seeds["name"]: seeds["rows"] for seeds in description(folder)["seeds"]}


def check_edges(folder: Path) -> None:
    assert read(folder, "topology/node__to__node.offsets.npy") == [0, 1, 3, 4]
    assert read(folder, "topology/node__to__node.sources.npy") == [1, 0, 2, 0]


def test_a_graph_of_pyg_is_stored_with_its_attributes(tmp_path: Path) -> None:
    data = Store(
        3,
        edge_index=EDGES,
        x=X,
        y=np.array([2, 0, 1]),
        train_mask=np.array([True, False, True]),
        val_mask=np.array([[True, False], [False, False], [True, True]]),
        edge_attr=np.array([[10.0], [11.0], [12.0], [13.0]]),
        edge_weight=np.array([1.0, 1.0, 2.0, 1.0]),
        name="not an array",
        num_classes=3,
    )
    graph.write(tmp_path / "g", data, dtype={"x": np.float16}, edge_ids=True, seeds={"all": "all"}, memory="16MiB", cores=1)
    check_edges(tmp_path / "g")
    assert read(tmp_path / "g", "nodes/node.x.npy") == X.tolist()
    assert np.load(tmp_path / "g/nodes/node.x.npy").dtype == np.float16
    assert read(tmp_path / "g", "edges/node__to__node.edge_attr.npy") == [[12.0], [10.0], [11.0], [13.0]]
    assert read(tmp_path / "g", "topology/node__to__node.weights.npy") == [2, 1, 2, 1]
    assert read(tmp_path / "g", "topology/node__to__node.edge_ids.npy") == [2, 0, 1, 3]
    assert seed_sets(tmp_path / "g") == {"all": 3, "train": 2, "val-0": 2, "val-1": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g"], "temporary files are removed"


def test_a_graph_of_pyg_with_types_is_stored(tmp_path: Path) -> None:
    data = Hetero()
    data["user"] = Store(2, x=X[:2])
    data["item"] = Store(3, y=np.array([[1], [0], [1]]), train_mask=np.array([True, True, False]))
    pairs = np.array([[0, 1, 0], [2, 0, 0]])
    data["user", "buys", "item"] = Store(edge_index=pairs, time=np.array([5, 7, 6]))
    data["item", "rev_buys", "user"] = Store(edge_index=pairs[::-1])
    graph.write(tmp_path / "g", data, features={("item", "price"): [3, 4, 5]})
    assert read(tmp_path / "g", "topology/user__buys__item.sources.npy") == [0, 1, 0]
    assert read(tmp_path / "g", "topology/user__buys__item.times.npy") == [6, 7, 5]
    assert read(tmp_path / "g", "topology/item__rev_buys__user.offsets.npy") == [0, 2, 3]
    assert read(tmp_path / "g", "nodes/item.price.npy") == [3, 4, 5]
    assert seed_sets(tmp_path / "g") == {"train": 2}


def test_a_graph_of_dgl_is_stored(tmp_path: Path) -> None:
    edge_type = ("_N", "_E", "_N")
    data = SimpleNamespace(
        ntypes=["_N"],
        canonical_etypes=[edge_type],
        num_nodes=lambda _: 3,
        nodes={"_N": SimpleNamespace(data={"feat": X, "label": np.array([1, 0, 1]), "train_mask": np.array([True, False, False])})},
        edges=Edges({edge_type: (EDGES[0], EDGES[1])}, {edge_type: {"weight": np.ones(4)}}),
    )
    graph.write(tmp_path / "g", data)
    check_edges(tmp_path / "g")
    assert read(tmp_path / "g", "nodes/node.feat.npy") == X.tolist()
    assert description(tmp_path / "g")["relations"][0]["weights"] is not None
    assert seed_sets(tmp_path / "g") == {"train": 1}


@pytest.mark.parametrize("layout", ["csc_array", "csr_matrix"])
def test_a_matrix_of_scipy_is_stored(tmp_path: Path, layout: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = getattr(sparse, layout)((np.ones(4), (EDGES[0], EDGES[1])), shape=(3, 3))
    graph.write(tmp_path / "g", matrix, features={"x": X}, labels={"y": [0, 1, 0]}, seeds={"train": [2, 0]}, order="degree")
    assert sorted(read(tmp_path / "g", "ids/node.positions.npy")) == [0, 1, 2]
    assert seed_sets(tmp_path / "g") == {"train": 2}
    graph.write(tmp_path / "plain", matrix)
    check_edges(tmp_path / "plain")
    # The build also reads the file of a matrix.
    sparse.save_npz(tmp_path / "m.npz", matrix)
    (tmp_path / "g.yaml").write_text(json.dumps({"relations": [{"edges": str(tmp_path / "m.npz")}]}))
    feedline._native.build_graph(str(tmp_path / "g.yaml"), str(tmp_path / "file"), None, None)
    check_edges(tmp_path / "file")


def test_pyg_itself_is_stored(tmp_path: Path) -> None:
    data_classes = pytest.importorskip("torch_geometric.data")
    torch = pytest.importorskip("torch")
    data = data_classes.Data(
        x=torch.from_numpy(X).bfloat16(), edge_index=torch.from_numpy(EDGES), y=torch.tensor([0, 1, 2]), train_mask=torch.tensor([True, False, True])
    )
    graph.write(tmp_path / "g", data, dtype={"x": torch.float16})
    check_edges(tmp_path / "g")
    assert np.load(tmp_path / "g/nodes/node.x.npy").dtype == np.float16
    assert seed_sets(tmp_path / "g") == {"train": 2}
    typed = data_classes.HeteroData()
    typed["node"].x = torch.from_numpy(X)
    typed["node", "to", "node"].edge_index = torch.from_numpy(EDGES)
    graph.write(tmp_path / "typed", typed)
    check_edges(tmp_path / "typed")


def test_invalid_graphs_are_rejected(tmp_path: Path) -> None:
    def error(data: Any, **arguments: Any) -> str:
        with pytest.raises(feedline.WrongUse) as caught:
            graph.write(tmp_path / "g", data, **arguments)
        assert list(tmp_path.iterdir()) == []
        return str(caught.value)

    valid = Store(3, edge_index=EDGES, x=X)
    assert "expected Data or HeteroData of PyG" in error([1, 2])
    assert "has no edge_index of shape" in error(Store(3, edge_index=EDGES[0]))
    assert "the number of nodes of type 'node' is unknown" in error(Store(None, edge_index=EDGES))
    assert "dtype has the key 'z'; the features are x" in error(valid, dtype={"z": "float16"})
    assert "features has the key ('item', 'x')" in error(valid, features={("item", "x"): X})
    assert "seeds['train'] is 'some'; expected an array" in error(valid, seeds={"train": "some"})
    assert "such as vip:train:15,10,5" in error(valid, order="vip")
    assert "memory" in error(valid, memory="lots")


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(feedline.FeedlineError, match="the node 2 does not exist"):
        graph.write(tmp_path / "g", Store(2, edge_index=EDGES))
    assert list(tmp_path.iterdir()) == []
