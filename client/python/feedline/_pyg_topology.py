"""The topology of graphs of PyG, as it is written to a stored graph.

The stored graph has its own names for node types and relations, because PyG permits names that a stored graph does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData, remote_backend_utils
from torch_geometric.sampler.base import DataType, NumNeighbors

from feedline._native import WrongUse

EdgeType = tuple[str, str, str]


@dataclass
class TopologyRelation:
    """The edges of one relation, in the order of the user."""

    edge_type: EdgeType | None
    """``None`` in a graph with one node type."""
    source: int
    """The index of the node type of the sources."""
    target: int
    edge_index: Any
    weight: Any = None
    time: Any = None

    def name(self, number: int) -> EdgeType:
        """Returns the name of the relation in the stored graph."""
        return node_name(self.source), f"r{number}", node_name(self.target)


@dataclass
class Topology:
    """The topology of a graph."""

    node_types: list[str | None]
    node_counts: list[int]
    relations: list[TopologyRelation] = field(default_factory=list)
    node_times: dict[str | None, Any] = field(default_factory=dict)
    """The times of the nodes of each type that has them."""

    @property
    def is_hetero(self) -> bool:
        return self.node_types != [None]

    def to_data(self) -> Any:
        """Returns the topology as the object that is written."""
        data = HeteroData()
        for number, count in enumerate(self.node_counts):
            data[node_name(number)].num_nodes = count
        for number, relation in enumerate(self.relations):
            store = data[relation.name(number)]
            store.edge_index = relation.edge_index
            if relation.weight is not None:
                store.edge_weight = relation.weight
            if relation.time is not None:
                store.time = relation.time
        return data

    def fanouts(self, num_neighbors: Any) -> dict[str, list[int]]:
        """Returns the fanouts of each relation of the stored graph."""
        numbers = num_neighbors if isinstance(num_neighbors, NumNeighbors) else NumNeighbors(num_neighbors)
        if not self.is_hetero:
            values = numbers.get_mapped_values()
            if isinstance(values, Mapping):
                raise WrongUse("num_neighbors is a dict, but the graph has one node type; pass a list with the number of neighbors of each hop")
            by_relation = [values] * len(self.relations)
        else:
            edge_types = [relation.edge_type for relation in self.relations]
            mapped = numbers.get_values(edge_types)
            by_relation = [mapped[edge_type] for edge_type in edge_types]
        return {"__".join(relation.name(number)): [int(limit) for limit in by_relation[number]] for number, relation in enumerate(self.relations)}


def node_name(number: int) -> str:
    """Returns the name of a node type in the stored graph."""
    return f"t{number}"


def topology_of(data: Any, time_attr: str | None, weight_attr: str | None) -> Topology:
    """Returns the topology of a ``Data``, a ``HeteroData`` or a ``(FeatureStore, GraphStore)``.

    Raises:
        WrongUse: if the graph is not supported, or an attribute is missing.
    """
    if isinstance(data, Data):
        topology = _homogeneous(data, time_attr, weight_attr)
    elif isinstance(data, HeteroData):
        topology = _heterogeneous(data, time_attr, weight_attr)
    else:
        try:
            DataType.from_data(data)
        except ValueError:
            raise WrongUse(
                f"data is a {type(data).__name__}; expected a Data, a HeteroData, a tuple of FeatureStore and GraphStore, or the path or URL "
                "of a stored graph"
            ) from None
        topology = _remote(data[0], data[1], time_attr, weight_attr)
    for relation in topology.relations:
        times = topology.node_times.get(topology.node_types[relation.source])
        if relation.time is None and times is not None:
            # A neighbor has the time of its node.
            relation.time = times[relation.edge_index[0]]
    return topology


def _homogeneous(data: Any, time_attr: str | None, weight_attr: str | None) -> Topology:
    edge_index = _edge_index_of(data, None)
    count = data.num_nodes
    topology = Topology([None], [count], [TopologyRelation(None, 0, 0, edge_index, _weights(data, weight_attr, "the graph"))])
    if time_attr is None:
        return topology
    if time_attr not in data:
        raise WrongUse(f"time_attr is {time_attr!r}, but the graph has no such attribute")
    if data.is_node_attr(time_attr):
        topology.node_times[None] = _times(data[time_attr], time_attr)
    elif data.is_edge_attr(time_attr):
        topology.relations[0].time = _times(data[time_attr], time_attr)
    else:
        raise WrongUse(f"time_attr is {time_attr!r}, which has a value neither for each node nor for each edge")
    return topology


def _heterogeneous(data: Any, time_attr: str | None, weight_attr: str | None) -> Topology:
    node_types, edge_types = data.metadata()
    numbers = {name: number for number, name in enumerate(node_types)}
    topology = Topology(list(node_types), [data[name].num_nodes for name in node_types])
    for edge_type in edge_types:
        store = data[edge_type]
        edge_index = _edge_index_of(store, edge_type)
        weight = _weights(store, weight_attr, f"the relation {edge_type}") if weight_attr in store else None
        relation = TopologyRelation(edge_type, numbers[edge_type[0]], numbers[edge_type[2]], edge_index, weight)
        topology.relations.append(relation)
    if weight_attr is not None:
        _require_all_weights(topology, weight_attr)
    if time_attr is None:
        return topology
    of_nodes = [name for name in node_types if time_attr in data[name]]
    of_edges = [relation for relation in topology.relations if time_attr in data[relation.edge_type]]
    if bool(of_nodes) == bool(of_edges):
        what = "node types and relations" if of_nodes else "neither node types nor relations"
        raise WrongUse(f"time_attr is {time_attr!r}, which {what} have; set it to an attribute of nodes or of edges")
    topology.node_times = {name: _times(data[name][time_attr], time_attr) for name in of_nodes}
    for relation in of_edges:
        relation.time = _times(data[relation.edge_type][time_attr], time_attr)
    return topology


def _remote(features: Any, graph: Any, time_attr: str | None, weight_attr: str | None) -> Topology:
    if weight_attr is not None:
        raise WrongUse("weight_attr is not supported with a FeatureStore and a GraphStore, as in PyG; pass a Data or HeteroData")
    attributes = graph.get_all_edge_attrs()
    if all(attribute.edge_type is None for attribute in attributes):
        row, column, _ = graph.coo()
        topology = Topology([None], [max(attributes[0].size)], [TopologyRelation(None, 0, 0, torch.stack([row, column]))])
    else:
        rows, columns, _ = graph.coo()
        names = sorted({name for edge_type in rows for name in (edge_type[0], edge_type[2])})
        names += [name for name in _feature_groups(features) if name not in names]
        counts = [remote_backend_utils.num_nodes(features, graph, name) for name in names]
        topology = Topology(list(names), counts)
        for edge_type, row in rows.items():
            source, target = names.index(edge_type[0]), names.index(edge_type[2])
            topology.relations.append(TopologyRelation(edge_type, source, target, torch.stack([row, columns[edge_type]])))
    if time_attr is not None:
        _add_remote_times(topology, features, time_attr)
    return topology


def _feature_groups(features: Any) -> Sequence[str]:
    """Returns the node types with features."""
    groups = (attribute.group_name for attribute in features.get_all_tensor_attrs())
    return sorted({group for group in groups if isinstance(group, str)})


def _add_remote_times(topology: Topology, features: Any, time_attr: str) -> None:
    found = False
    for attribute in features.get_all_tensor_attrs():
        if attribute.attr_name != time_attr:
            continue
        attribute.index = None
        times, group, found = _times(features.get_tensor(attribute), time_attr), attribute.group_name, True
        relations = [relation for relation in topology.relations if relation.edge_type == group]
        # PyG considers `time` of a graph with one node type as the time of nodes, and other attributes as those of edges.
        is_of_edges = isinstance(group, tuple) or (group is None and time_attr != "time")
        if is_of_edges:
            for relation in relations:
                relation.time = times
        else:
            topology.node_times[group] = times
    if not found:
        raise WrongUse(f"time_attr is {time_attr!r}, but the feature store has no such attribute")


def _edge_index_of(store: Any, edge_type: EdgeType | None) -> Any:
    """Returns the edges of a relation on the CPU."""
    where = "the graph" if edge_type is None else f"the relation {edge_type}"
    if "edge_index" not in store:
        fix = "convert adj_t to edge_index" if "adj_t" in store else "add it"
        raise WrongUse(f"{where} has no edge_index; {fix}")
    edge_index = store.edge_index
    if hasattr(edge_index, "as_tensor"):
        edge_index = edge_index.as_tensor()
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.is_floating_point():
        found = f"shape {list(edge_index.shape)} and type {edge_index.dtype}"
        raise WrongUse(f"the edge_index of {where} has {found}; expected integers of shape [2, edges]")
    return edge_index.detach().cpu()


def _weights(store: Any, weight_attr: str | None, where: str) -> Any:
    if weight_attr is None:
        return None
    if weight_attr not in store:
        raise WrongUse(f"weight_attr is {weight_attr!r}, but {where} has no such attribute")
    return store[weight_attr].detach().cpu().view(-1)


def _require_all_weights(topology: Topology, weight_attr: str) -> None:
    without = [relation.edge_type for relation in topology.relations if relation.weight is None]
    if without:
        raise WrongUse(f"weight_attr is {weight_attr!r}, but the relation {without[0]} has no such attribute; add weights to all relations")


def _times(values: Any, time_attr: str) -> Any:
    if values.is_floating_point() or values.is_complex():
        raise WrongUse(f"time_attr is {time_attr!r}, whose values are {values.dtype}; expected integers")
    return values.detach().cpu().view(-1).to(torch.int64)
