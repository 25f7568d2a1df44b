"""Stores graphs that are in memory, for batches of sampled neighbors.

    import feedline.graph

    feedline.graph.write("cora", data)                   # Data or HeteroData of PyG, a graph of DGL, or a matrix of SciPy
    job = feedline.read(url="cora", format="graph", seeds="train").shuffle(10_000).sample_neighbors(1024, [15, 10]).open()
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline import _native
from feedline._arguments import shorten, to_optional_int, to_path, to_size
from feedline._native import WrongUse

__all__ = ["write"]

_NODE, _RELATION = "node", "to"
_LABELS = ("y", "label", "labels")
_WEIGHTS = ("edge_weight", "weight")
_TIMES = ("edge_time", "time")
_MASK = "_mask"


def write(
    out: str | os.PathLike[str],
    data: Any,
    *,
    features: Mapping[str, Any] | None = None,
    labels: Mapping[str, Any] | None = None,
    seeds: Mapping[str, Any] | None = None,
    dtype: Mapping[str, Any] | None = None,
    order: str = "none",
    undirected: bool = False,
    edge_ids: bool = False,
    memory: int | str | None = None,
    cores: int | None = None,
) -> None:
    """Stores a graph in a new directory.

    ``data`` is a ``Data`` or ``HeteroData`` of PyG, a graph of DGL, or a sparse matrix of SciPy, in which the entry in row i and column j
    is the edge from i to j. Of PyG and DGL:

    - Attributes with one row per node become features. Integers named ``y``, ``label`` or ``labels`` become labels of the seeds.
    - Boolean attributes become seed sets: ``train_mask`` becomes ``train``. The columns of a mask with two axes become ``train-0``,
      ``train-1`` and so on.
    - Attributes with one row per edge become edge features. ``edge_weight`` or ``weight`` becomes the weight of the edges, and
      ``edge_time``, or ``time`` of an edge type, becomes their time.
    - Other attributes are not stored.

    The values of a matrix are not stored.

    Args:
        out: directory to create. It must be empty or not exist, and be on a local disk.
        data: the graph.
        features, labels, seeds: more arrays of the nodes, by name. Seeds are an array of nodes, an array with a boolean per node, or
            ``"all"``. In graphs with several node types, a name is a pair ``(node type, name)``.
        dtype: types to which features are converted, by name, such as ``{"x": "float16"}``.
        order: ``"none"``, ``"degree"``, or ``"vip:SEEDS:FANOUTS"``, such as ``"vip:train:15,10"``.
        undirected: whether to store each edge in both directions, and to merge duplicates. It is not needed if the graph contains both
            directions.
        edge_ids: whether to store the positions of edges, which batches contain as ``e_id``.
        memory, cores: memory and threads of the build, as in ``feedline graph build``.

    Raises:
        WrongUse: if the graph or an argument is invalid.
        FeedlineError: if the graph cannot be written.
    """
    path = Path(to_path("out", out)).absolute()
    graph = _graph_of(data)
    for argument, arrays in (("features", features), ("labels", labels), ("seeds", seeds)):
        graph.add(argument, arrays or {})
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the result, because both need about the same space.
    with tempfile.TemporaryDirectory(prefix=".feedline-graph-", dir=path.parent) as folder:
        writer = _ArrayFolder(Path(folder))
        spec = graph.spec(writer, undirected, edge_ids, _dtypes(dtype or {}))
        file = Path(folder, "graph.yaml")
        # JSON is YAML.
        file.write_text(json.dumps({"order": order, **spec}))
        limit = None if memory is None else str(to_size("memory", memory))
        _native.build_graph(str(file), str(path), limit, to_optional_int("cores", cores))


@dataclasses.dataclass
class _Nodes:
    """The arrays of a node type."""

    count: int
    features: dict[str, Any] = dataclasses.field(default_factory=dict)
    labels: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """Adds an attribute, if it has one row per node."""
        array = _to_array(value)
        if array is None or array.ndim == 0 or len(array) != self.count:
            return
        if array.dtype == np.bool_ and array.ndim <= 2:
            name = name.removesuffix(_MASK)
            if array.ndim == 1:
                self.seeds[name] = array
            else:
                self.seeds.update({f"{name}-{column}": array[:, column] for column in range(array.shape[1])})
        elif name in _LABELS and array.size == self.count and array.dtype.kind in "iu":
            self.labels[name] = array.reshape(-1)
        else:
            self.features[name] = array


@dataclasses.dataclass
class _Relation:
    """The edges of a relation, and their arrays."""

    name: tuple[str, str, str]
    sources: Any
    targets: Any
    weight: Any = None
    time: Any = None
    features: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, name: str, value: Any, times: tuple[str, ...]) -> None:
        """Adds an attribute, if it has one row per edge."""
        array = _to_array(value)
        if array is None or array.ndim == 0 or len(array) != len(self.sources):
            return
        if name in _WEIGHTS and array.size == len(array):
            self.weight = array.reshape(-1)
        elif name in times and array.size == len(array):
            self.time = array.reshape(-1)
        else:
            self.features[name] = array


@dataclasses.dataclass
class _Graph:
    """The node types and relations of a graph."""

    nodes: dict[str, _Nodes]
    relations: list[_Relation]

    def add(self, argument: str, arrays: Mapping[Any, Any]) -> None:
        """Adds the arrays of an argument."""
        for key, value in arrays.items():
            node_type, name = key if isinstance(key, tuple) and len(key) == 2 else (None, key)
            if node_type is None and len(self.nodes) == 1:
                node_type = next(iter(self.nodes))
            if node_type not in self.nodes:
                known = ", ".join(self.nodes)
                raise WrongUse(f"{argument} has the key {shorten(key)}; expected a pair (node type, name) with one of the types {known}")
            is_all = argument == "seeds" and isinstance(value, str) and value == "all"
            array = value if is_all else _to_array(value)
            if array is None:
                raise WrongUse(f"{argument}[{name!r}] is {shorten(value)}; expected an array")
            getattr(self.nodes[node_type], argument)[name] = array

    def spec(self, writer: _ArrayFolder, undirected: bool, edge_ids: bool, dtypes: Mapping[str, str]) -> dict[str, Any]:
        """Writes all arrays. Returns the contents of the build file."""
        parts: list[_Nodes | _Relation] = [*self.nodes.values(), *self.relations]
        names = {name for part in parts for name in part.features}
        if unknown := set(dtypes) - names:
            raise WrongUse(f"dtype has the key {shorten(min(unknown))}; the features are {', '.join(sorted(names)) or 'none'}")

        def features(arrays: Mapping[str, Any]) -> dict[str, Any]:
            return {name: {"from": writer.save(array), "dtype": dtypes.get(name)} for name, array in arrays.items()}

        nodes = {}
        for node_type, part in self.nodes.items():
            labels = {name: writer.save(array) for name, array in part.labels.items()}
            seeds = {name: array if isinstance(array, str) else writer.save(array) for name, array in part.seeds.items()}
            nodes[node_type] = {"count": part.count, "features": features(part.features), "labels": labels, "seeds": seeds}
        relations = []
        for relation in self.relations:
            source, name, target = relation.name
            values = {"weight": relation.weight, "time": relation.time}
            relations.append(
                {
                    "source": source,
                    "name": name,
                    "target": target,
                    "edges": writer.save_pairs(relation.sources, relation.targets),
                    "undirected": undirected,
                    "edge_ids": edge_ids,
                    "features": features(relation.features),
                    **{key: writer.save(array) for key, array in values.items() if array is not None},
                }
            )
        return {"nodes": nodes, "relations": relations}


class _ArrayFolder:
    """Writes arrays to a temporary directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def save(self, array: Any) -> str:
        """Writes an array. Returns its path."""
        path = self._next()
        np.save(path, np.ascontiguousarray(array), allow_pickle=False)
        return str(path)

    def save_pairs(self, sources: Any, targets: Any) -> str:
        """Writes the ends of edges as two rows, without a copy of both in memory."""
        path = self._next()
        pairs = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(2, len(sources)))
        pairs[0], pairs[1] = sources, targets
        pairs.flush()
        return str(path)

    def _next(self) -> Path:
        self._count += 1
        return self._folder / f"{self._count}.npy"


def _graph_of(data: Any) -> _Graph:
    """Reads a graph of any library. The libraries are not imported."""
    if hasattr(data, "canonical_etypes"):
        return _of_dgl(data)
    if hasattr(data, "edge_types") and hasattr(data, "node_types"):
        return _of_hetero_data(data)
    if hasattr(data, "edge_index") or hasattr(data, "adj_t"):
        return _of_data(data)
    if hasattr(data, "tocoo") and hasattr(data, "shape"):
        return _of_matrix(data)
    raise WrongUse(f"data is of type {type(data).__name__}; expected Data or HeteroData of PyG, a graph of DGL, or a sparse matrix of SciPy")


def _of_data(data: Any) -> _Graph:
    nodes = _Nodes(_count(data.num_nodes, _NODE))
    relation = _Relation((_NODE, _RELATION, _NODE), *_ends(data, "data"))
    for name, value in _items(data):
        if name.startswith("edge_"):
            # The time of an edge has this name, because `time` belongs to the nodes.
            relation.add(name, value, ("edge_time",))
        else:
            nodes.add(name, value)
    return _Graph({_NODE: nodes}, [relation])


def _of_hetero_data(data: Any) -> _Graph:
    nodes: dict[str, _Nodes] = {}
    for node_type in data.node_types:
        store = data[node_type]
        nodes[node_type] = _Nodes(_count(store.num_nodes, node_type))
        for name, value in _items(store):
            nodes[node_type].add(name, value)
    relations = []
    for edge_type in data.edge_types:
        store = data[edge_type]
        source, name, target = edge_type
        relation = _Relation((source, name, target), *_ends(store, f"the edge type {edge_type}"))
        for attribute, value in _items(store):
            relation.add(attribute, value, _TIMES)
        relations.append(relation)
    return _Graph(nodes, relations)


def _of_dgl(graph: Any) -> _Graph:
    # The types of graphs without types are `_N` and `_E`.
    plain = {"_N": _NODE, "_E": _RELATION}
    nodes: dict[str, _Nodes] = {}
    for node_type in graph.ntypes:
        part = _Nodes(int(graph.num_nodes(node_type)))
        for name, value in graph.nodes[node_type].data.items():
            part.add(name, value)
        nodes[plain.get(node_type, node_type)] = part
    relations = []
    for edge_type in graph.canonical_etypes:
        sources, targets = (_to_array(ends) for ends in graph.edges(etype=edge_type, order="eid"))
        source, name, target = (plain.get(name, name) for name in edge_type)
        relation = _Relation((source, name, target), sources, targets)
        for attribute, value in graph.edges[edge_type].data.items():
            relation.add(attribute, value, _TIMES)
        relations.append(relation)
    return _Graph(nodes, relations)


def _of_matrix(matrix: Any) -> _Graph:
    rows, columns = matrix.shape
    if rows != columns:
        raise WrongUse(f"the matrix has the shape {rows} x {columns}; expected one row and one column for each node")
    entries = matrix.tocoo()
    relation = _Relation((_NODE, _RELATION, _NODE), np.asarray(entries.row), np.asarray(entries.col))
    return _Graph({_NODE: _Nodes(int(rows))}, [relation])


def _items(store: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a graph or store of PyG, without its edges."""
    attributes = store.to_dict()
    return ((str(name), value) for name, value in attributes.items() if name not in ("edge_index", "adj_t", "num_nodes"))


def _ends(store: Any, what: str) -> tuple[Any, Any]:
    edges = _to_array(getattr(store, "edge_index", None))
    if edges is None or edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise WrongUse(f"{what} has no edge_index of shape [2, number of edges]; convert other formats, such as adj_t, to edge_index")
    return edges[0], edges[1]


def _count(count: Any, node_type: str) -> int:
    if count is None:
        raise WrongUse(f"the number of nodes of type {node_type!r} is unknown; set num_nodes")
    return int(count)


def _to_array(value: Any) -> Any:
    """Converts a dense array or tensor without a copy, if possible. Returns ``None`` for other values."""
    if isinstance(value, str | bytes | Mapping) or value is None:
        return None
    if hasattr(value, "detach"):
        if getattr(value, "is_sparse", False):
            return None
        tensor = value.detach().cpu()
        try:
            return tensor.numpy()
        except TypeError:
            # NumPy has no bfloat16.
            return tensor.float().numpy()
    array = np.asarray(value)
    return array if array.dtype.kind in "biuf" else None


def _dtypes(dtype: Mapping[str, Any]) -> dict[str, str]:
    """Converts dtypes of NumPy and PyTorch to their names."""

    def name(value: Any) -> str:
        try:
            return np.dtype(value).name
        except TypeError:
            return str(value).removeprefix("torch.")

    return {str(feature): name(value) for feature, value in dtype.items()}
