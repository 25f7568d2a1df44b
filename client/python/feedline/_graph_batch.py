"""Sampled graphs: their description, and their conversion to the objects of PyG.

A sampled graph is one slab of memory with all arrays. It is copied as a whole, to a GPU on the stream of :class:`Torch`, and the tensors are
views of the copy. Only the edge index and other arrays of int64 are computed on the device.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline._convert import Torch, import_package, reject_missing
from feedline._native import WrongUse

if TYPE_CHECKING:
    from feedline import _native

Owner = str | tuple[str, str, str] | None
"""The node type or relation of a column. ``None`` in a graph with one of each."""

_SLAB = "slab"
_LINKS = ("edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index")
"""Arrays of links and their negatives."""
_WIDE = ("n_id", "e_id", "batch", "input_id", "edge_label_index", "src_index", "dst_pos_index", "dst_neg_index")
"""Arrays that PyG expects as int64."""
_COUNTS = {"num_sampled_nodes": 1, "num_sampled_edges": 0}
"""Arrays with a number for each hop, and the number of their entries before the first hop."""


@dataclass(frozen=True)
class GraphSchema:
    """The columns of sampled graphs, from the metadata of a batch."""

    layout: str
    hops: int
    disjoint: bool
    is_homogeneous: bool
    node_types: tuple[str, ...]
    relations: tuple[tuple[str, str, str], ...]
    seeds: Owner
    """The node type of the seeds, or the relation of the links."""
    has_links: bool
    negatives: str | None
    """``binary`` or ``triplet`` if the links have negatives."""
    negatives_per_link: int
    rows: frozenset[str]
    """The columns with one value per seed."""
    time: str | None
    """The column with the time of each seed."""

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def parse(text: str) -> GraphSchema:
        """Parses the metadata of a batch."""
        given = json.loads(text)
        ((kind, name),) = given["seeds"].items()
        negatives = given.get("negatives") or {"mode": None, "amount": 0}
        relations = {"__".join(relation): tuple(relation) for relation in given["relations"]}
        return GraphSchema(
            layout=given["layout"],
            hops=given["hops"],
            disjoint=given["disjoint"],
            is_homogeneous=given["homogeneous"],
            node_types=tuple(given["node_types"]),
            relations=tuple(relations.values()),
            # Links may be of a relation that is not sampled.
            seeds=relations.get(name, tuple(name.split("__", 2))) if kind == "links" else name,
            has_links=kind == "links",
            negatives=negatives["mode"],
            negatives_per_link=negatives["amount"],
            rows=frozenset(given["rows"]),
            time=given.get("time"),
        )

    def owner(self, column: str) -> tuple[Owner, str]:
        """Returns the node type or relation of a column, and the name of its attribute."""
        if column in self.rows:
            return None if self.is_homogeneous else self.seeds, self._row_attribute(column)
        if self.is_homogeneous:
            return None, column
        if column in _LINKS and isinstance(self.seeds, tuple):
            source, _, target = self.seeds
            return {"src": source, "dst": target}.get(column[:3], self.seeds), column
        part, _, attribute = column.partition(".")
        if part in self.node_types:
            return part, attribute
        return next(relation for relation in self.relations if "__".join(relation) == part), attribute

    def column(self, owner: Owner, attribute: str) -> str:
        """Returns the name of the column with an attribute of a node type or relation."""
        if self.is_homogeneous or owner is None:
            return attribute
        return f"{owner if isinstance(owner, str) else '__'.join(owner)}.{attribute}"

    def _row_attribute(self, column: str) -> str:
        """Returns PyG's name of a column with one value per seed."""
        if column == self.time:
            return "edge_label_time" if self.has_links and self.negatives != "triplet" else "seed_time"
        # With negatives, a worker computes the labels of links and negatives.
        return "edge_label" if column == "label" and self.has_links and self.negatives is None else column


@dataclass(frozen=True)
class PlacedArray:
    """The place of an array in a slab."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class _StartedGraph:
    """A graph whose slab is being copied."""

    schema: GraphSchema
    seeds: int
    counts: dict[str, list[int]]
    """The numbers of nodes and edges of each hop, which the loop reads on the CPU."""
    placed: dict[str, PlacedArray]
    started: Any


def place_arrays(arrays: Mapping[str, Any], slab: Any | None) -> tuple[dict[str, PlacedArray], dict[str, Any]]:
    """Returns the places of the arrays in a slab, and the arrays that are not in it."""
    placed, others = {}, {}
    for name, array in arrays.items():
        place = _place(name, array, slab)
        if place is None:
            others[name] = array
        else:
            placed[name] = place
    return placed, others


def _place(name: str, array: Any, slab: Any | None) -> PlacedArray | None:
    if array.dtype == object:
        return None
    reject_missing(name, array)
    if array.nbytes == 0:
        return PlacedArray(0, array.dtype, array.shape, 0)
    if slab is None or not array.flags.c_contiguous:
        return None
    offset = array.ctypes.data - slab.ctypes.data
    if offset < 0 or offset + array.nbytes > slab.nbytes or offset % array.dtype.itemsize:
        return None
    return PlacedArray(offset, array.dtype, array.shape, array.nbytes)


class Pyg(Torch):
    """Converts sampled graphs to ``Data`` or ``HeteroData`` of PyG."""

    def __init__(self, device: Any, copy: bool) -> None:
        self._data_types = import_package("torch_geometric", "pyg").data
        super().__init__(device, copy)

    def start(self, native: _native.Batch) -> tuple[Any, float]:
        if native.graph is None:
            if len(native) > 0:
                raise WrongUse("the batches of this job are rows, not sampled graphs; end the pipeline with sample_neighbors, or use job.torch()")
            # The columns are unknown if a job resumes right before a step without seeds.
            return None, 0.0
        started = time.perf_counter()
        schema = GraphSchema.parse(native.graph)
        arrays = native.numpy()
        counts = {
            name: arrays.pop(name).tolist() or [0] * (schema.hops + extra)
            for name in list(arrays)
            if name not in schema.rows and (extra := _COUNTS.get(name.rpartition(".")[2])) is not None
        }
        slab = native.slab()
        placed, others = place_arrays(arrays, slab)
        if any(place.nbytes for place in placed.values()):
            others[_SLAB] = slab
        copies, _ = self.start_arrays(others)
        return _StartedGraph(schema, len(native), counts, placed, copies), time.perf_counter() - started

    def finish(self, started: Any) -> Any:
        if started is None:
            edge_index = self._torch.empty(2, 0, dtype=self._torch.int64, device=self._device)
            return self._data_types.Data(edge_index=edge_index, batch_size=0, num_nodes=0)
        columns = super().finish(started.started)
        slab = columns.pop(_SLAB, None)
        for name, place in started.placed.items():
            columns[name] = self._view(slab, place)
        return self.build(SampledTensors(self._torch, started.schema, columns, started.counts), started.seeds)

    def build(self, graph: SampledTensors, seeds: int) -> Any:
        """Returns the result for a graph that was sampled for a number of seeds."""
        schema = graph.schema
        data = self._data_types.Data() if schema.is_homogeneous else self._data_types.HeteroData()
        for name, values in graph.attributes():
            owner, attribute = schema.owner(name)
            stores = [data if owner is None else data[owner]]
            if attribute == "seed_time" and isinstance(owner, tuple):
                # PyG adds the time of a triplet to both node types.
                stores = [data[owner[0]], data[owner[2]]]
            for store in stores:
                store[attribute] = values
        if not schema.has_links:
            store = data if schema.is_homogeneous else data[schema.seeds]
            store["batch_size"] = seeds
        return data

    def _view(self, slab: Any, place: PlacedArray) -> Any:
        """Returns an array in a slab as a tensor."""
        # PyTorch has few operations for unsigned integers, and none before version 2.3.
        is_unsigned = place.dtype == np.uint32
        dtype = self._torch.int32 if is_unsigned else self._torch.from_numpy(np.empty(0, place.dtype)).dtype
        if place.nbytes == 0:
            values = self._torch.empty(place.shape, dtype=dtype, device=self._device)
        else:
            values = slab[place.offset : place.offset + place.nbytes].view(dtype).view(place.shape)
        return values.to(self._torch.int64) & 0xFFFF_FFFF if is_unsigned else values


class SampledTensors:
    """The tensors of a sampled graph, with the types that PyG expects."""

    def __init__(self, torch: Any, schema: GraphSchema, columns: dict[str, Any], counts: Mapping[str, list[int]]) -> None:
        self._torch = torch
        self.schema = schema
        self.columns = columns
        self.counts = counts
        """The numbers of nodes and edges of each hop."""

    def attributes(self) -> list[tuple[str, Any]]:
        """Returns the attributes of the graph, with the names of columns."""
        schema, columns = self.schema, self.columns
        attributes: list[tuple[str, Any]] = []
        topology = set()
        for relation in schema.relations:
            offsets, sources = schema.column(relation, "colptr"), schema.column(relation, "row")
            topology |= {offsets, sources}
            attributes.append((schema.column(relation, "edge_index"), self.edge_index(relation)))
        for name, values in columns.items():
            if name not in topology:
                attributes.append((name, self._attribute(name, values)))
        return [*attributes, *self.counts.items()]

    def _attribute(self, name: str, values: Any) -> Any:
        is_row = name in self.schema.rows
        kind = name if is_row or self.schema.is_homogeneous else name.rpartition(".")[2]
        if not hasattr(values, "dtype") or (kind not in _WIDE and not (is_row and name == self.schema.time)):
            return values
        wide = values.to(self._torch.int64)
        if is_row and name == self.schema.time and self.schema.negatives == "binary":
            # The first negatives of all links follow the links, then the second negatives, and so on.
            return wide.repeat(1 + self.schema.negatives_per_link)
        return wide.view(2, wide.shape[0] // 2) if kind == "edge_label_index" else wide

    def edge_index(self, relation: tuple[str, str, str]) -> Any:
        """Returns the sources and targets of the edges of a relation, computed on the device of the graph without waiting for it."""
        torch = self._torch
        offsets, sources = (self.columns[self.schema.column(relation, part)] for part in ("colptr", "row"))
        edges = sources.shape[0]
        edge_index = torch.empty(2, edges, dtype=torch.int64, device=sources.device)
        edge_index[0] = sources
        if edges:
            targets = self._targets(relation, offsets.shape[0] - 1, offsets.device)
            edge_index[1] = torch.repeat_interleave(targets, offsets.diff(), output_size=edges)
        return edge_index

    def _targets(self, relation: tuple[str, str, str], count: int, device: Any) -> Any:
        """Returns the local ids of the targets of all hops."""
        torch, schema = self._torch, self.schema
        if schema.layout == "subgraph":
            return torch.arange(count, device=device)
        # Each hop expands all nodes of the batch.
        nodes = np.cumsum(self.counts[schema.column(relation[2], "num_sampled_nodes")])
        return torch.cat([torch.arange(int(expanded), device=device) for expanded in nodes[:-1]])
