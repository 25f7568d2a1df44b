"""Replacements for the loaders of PyG, with the same arguments and the same batches.

    from feedline.pyg import NeighborLoader      # instead of torch_geometric.loader

    loader = NeighborLoader(data, num_neighbors=[15, 10], input_nodes=data.train_mask, batch_size=1024, shuffle=True)
    for batch in loader:
        ...

Workers sample the topology, which a loader writes to a temporary folder. The features stay in memory, where PyG selects those of a batch.
Neither pyg-lib nor torch-sparse is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.utils.data
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import BaseSampler

from feedline._native import WrongUse
from feedline._pipeline import read
from feedline._pyg_job import EpochJob, SampledIndexes, TopologyFolder, sampler_output
from feedline._pyg_options import LoaderOptions, SamplingOptions, negative_sampling
from feedline._pyg_topology import Topology, node_name, topology_of

__all__ = ["LinkNeighborLoader", "NeighborLoader"]

_WHOLE_EPOCH = 1 << 30
"""A shuffle window that is larger than seed sets."""


class _WorkerSampler(BaseSampler):
    """Takes the place of a sampler of PyG. Workers sample all batches of an epoch in advance."""

    def sample_from_nodes(self, index: Any, **options: Any) -> Any:
        return self._reject()

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        return self._reject()

    def _reject(self) -> Any:
        raise WrongUse("a loader of Feedline samples whole epochs; iterate over it instead of calling it with seeds")


class _EpochLoader:
    """The loops of a loader."""

    _epochs: EpochJob
    _folder: TopologyFolder | None
    """``None`` if the graph is stored already."""
    transform: Any
    _options: LoaderOptions
    _topology: Topology
    _sampling: SamplingOptions
    _negatives: dict[str, Any] | None = None

    def _open(self, seeds: dict[str, Any], seed_type: str) -> None:
        """Writes the topology and the seeds, and opens the job."""
        options = self._options
        if options.job_options.get("coordinator") or os.environ.get("FEEDLINE_COORDINATOR"):
            raise WrongUse(
                "workers in this process sample a graph in memory, but coordinator= or FEEDLINE_COORDINATOR selects a cluster; remove it, or "
                "store the graph with feedline.graph.write and pass its URL as data"
            )
        # Rejects invalid fanouts before the topology is written.
        parameters = {"size": options.batch_size, "remainder": options.remainder, **self._sampling.parameters(self._topology)}
        if self._negatives is not None:
            parameters["negatives"] = self._negatives
        self._folder = TopologyFolder(self._topology, seeds)
        pipeline = self._folder.pipeline(parameters, shuffle=options.shuffle, seed_type=seed_type)
        folders = {"index_dir": self._folder.path / "index", "cache_dir": self._folder.path / "cache"}
        job_options = {**folders, **self._folder.memory_options(options.job_options), **options.job_options}
        self._epochs = EpochJob(pipeline, SampledIndexes(), options.seed, self._folder.identity, job_options)

    def _open_stored(self, graph: str | os.PathLike[str], seeds: Any, transform: Any, unsupported: Mapping[str, Any]) -> None:
        """Opens the job of a stored graph, whose workers also read the features."""
        given = [name for name, value in unsupported.items() if value is not None]
        if given:
            raise WrongUse(f"{given[0]} is not supported with a stored graph; pass a Data or HeteroData, or use sample_neighbors and job.pyg()")
        if not isinstance(seeds, str | None):
            raise WrongUse("the seeds of a stored graph have a name; pass the name of a seed set, or None if there is only one")
        self._folder, self.data, self.transform = None, graph, transform
        options = self._options
        rows = read(url=graph, format="graph", seeds=seeds, name="neighbor_loader").shuffle(_WHOLE_EPOCH if options.shuffle else 0)
        parameters = {**options.feature_parameters(), **self._sampling.stored_parameters()}
        if self._negatives is not None:
            parameters["negatives"] = self._negatives
        pipeline = rows.sample_neighbors(options.batch_size, remainder=options.remainder, **parameters)
        self._epochs = EpochJob(pipeline, None, options.seed, None, options.job_options)
        torch.utils.data.DataLoader.__init__(self, range(1), batch_size=None)

    def _to_data(self, graph: Any) -> Any:
        """Returns a batch, from a sampled graph without features, or from that of a stored graph."""
        if self._folder is None:
            return self._finished(graph if self.transform is None else self.transform(graph))
        output, columns = sampler_output(graph, self._topology)
        output.metadata = self._metadata(columns)
        if self._sampling.is_bidirectional:
            output = output.to_bidirectional()
        return self._finished(self.filter_fn(output))  # type: ignore[attr-defined]

    def _finished(self, data: Any) -> Any:
        return data.pin_memory() if self._options.pin_memory and torch.cuda.is_available() else data

    def _metadata(self, columns: dict[str, Any]) -> Any:
        """Returns the input of the seeds of a batch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return self._epochs.loop(self._to_data, self._options.ahead)

    def __len__(self) -> int:
        return len(self._epochs)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that the loop received. The state is valid for the same graph, seeds and arguments."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at the position of ``state`` with the next loop, which is the rest of an epoch."""
        self._epochs.load_state_dict(state)

    def close(self) -> None:
        """Closes the job of the loader and removes its files."""
        if "_epochs" in self.__dict__:
            self._epochs.close()
        if self.__dict__.get("_folder") is not None:
            self._folder.close()  # type: ignore[union-attr]


class NeighborLoader(_EpochLoader, NodeLoader):
    """Samples the neighbors of nodes. Replaces ``torch_geometric.loader.NeighborLoader``, whose documentation describes its arguments.

    Each loop is one epoch. Only one loop at a time may iterate over a loader.

    ``data`` may also be the path or URL of a stored graph (``feedline graph build``). ``input_nodes`` is then the name of a seed set, workers
    read the ``features=`` and ``edge_features=``, and batches are those of :meth:`feedline.Job.pyg`.

    Args:
        neighbor_sampler, directed: not supported. Neither are the arguments ``sampler``, ``batch_sampler`` and ``worker_init_fn`` of
            ``DataLoader``, and ``subgraph_type="induced"``.
        is_sorted, filter_per_worker: without effect. PyG selects the features in the process of the loop.
        num_workers: number of cores that sample. With 0, all cores sample, and features are selected between two steps. Otherwise, a thread
            selects the features of the next ``prefetch_factor`` batches.
        rank, world_size: rank of this process and number of ranks, which divide the seeds. PyG's loader does not divide seeds, so the
            default is one rank, even with torch.distributed.
        seed: seed of the order and of the samples, which must be equal on all ranks. By default, it is drawn from PyTorch's generator.
        job_options: further options of :func:`feedline.open`, such as ``{"memory": "8GiB"}``.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        custom_cls: Any = None,
        input_id: Any = None,
        **kwargs: Any,
    ) -> None:
        del is_sorted, filter_per_worker
        if input_time is not None and time_attr is None:
            raise WrongUse("input_time is set, but time_attr is not; set time_attr to the attribute with the times of the nodes or edges")
        self._options = LoaderOptions.of(type(self).__name__, kwargs)
        self._sampling = SamplingOptions.of(
            num_neighbors, replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr, neighbor_sampler, directed
        )
        if isinstance(data, str | os.PathLike):
            unsupported = {"input_time": input_time, "input_id": input_id, "custom_cls": custom_cls}
            self._open_stored(data, input_nodes, transform, {**unsupported, "transform_sampler_output": transform_sampler_output})
            return
        self._options.reject_features()
        self._topology = topology_of(data, time_attr, weight_attr)
        NodeLoader.__init__(
            self,
            data,
            _WorkerSampler(),
            input_nodes=input_nodes,
            input_time=input_time,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=False,
            custom_cls=custom_cls,
            input_id=input_id,
            **self._options.data_loader(),
        )
        given = self.input_data
        number = self._topology.node_types.index(given.input_type)
        seeds = {"node": given.node.to(torch.int64).numpy(), "input_id": torch.arange(given.node.numel()).numpy()}
        if time_attr is not None:
            seeds["time"] = self._seed_times(time_attr, given)
        self._open(seeds, node_name(number))

    def _seed_times(self, time_attr: str, given: Any) -> Any:
        """Returns the times of the seeds, which are by default those of their nodes."""
        if given.time is not None:
            return given.time.to(torch.int64).numpy()
        times = self._topology.node_times.get(given.input_type)
        if times is None:
            raise WrongUse(f"time_attr is {time_attr!r}, which the seed nodes do not have; pass input_time with the time of each seed")
        return times[given.node].numpy()

    def _metadata(self, columns: dict[str, Any]) -> Any:
        given = self.input_data[columns["input_id"]]
        return given.input_id, given.time


class LinkNeighborLoader(_EpochLoader, LinkLoader):
    """Samples the neighbors of the nodes of links. Replaces ``torch_geometric.loader.LinkNeighborLoader``, whose documentation describes its
    arguments. :class:`NeighborLoader` describes the differences."""

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Any = None,
        edge_label_time: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        custom_cls: Any = None,
        input_id: Any = None,
        **kwargs: Any,
    ) -> None:
        del is_sorted, filter_per_worker
        is_stored = isinstance(data, str | os.PathLike)
        if not is_stored and (edge_label_time is None) != (time_attr is None):
            missing, present = ("time_attr", "edge_label_time") if time_attr is None else ("edge_label_time", "time_attr")
            raise WrongUse(f"{present} is set, but {missing} is not; temporal sampling needs both")
        self._negatives = negative_sampling(neg_sampling, neg_sampling_ratio)
        self._options = LoaderOptions.of(type(self).__name__, kwargs)
        self._sampling = SamplingOptions.of(
            num_neighbors, replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr, neighbor_sampler, directed
        )
        if is_stored:
            unsupported = {"edge_label": edge_label, "edge_label_time": edge_label_time, "input_id": input_id, "custom_cls": custom_cls}
            self._open_stored(data, edge_label_index, transform, {**unsupported, "transform_sampler_output": transform_sampler_output})
            return
        self._options.reject_features()
        self._topology = topology_of(data, time_attr, weight_attr)
        LinkLoader.__init__(
            self,
            data,
            _WorkerSampler(),
            edge_label_index=edge_label_index,
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=False,
            custom_cls=custom_cls,
            input_id=input_id,
            **self._options.data_loader(),
        )
        if self._negatives is not None and self._topology.node_times:
            raise WrongUse("neg_sampling is not supported with the times of nodes; use the times of edges, or draw negatives in the loop")
        given = self.input_data
        number = [relation.edge_type for relation in self._topology.relations].index(given.input_type)
        seeds = {
            "source": given.row.to(torch.int64).numpy(),
            "target": given.col.to(torch.int64).numpy(),
            "input_id": torch.arange(given.row.numel()).numpy(),
        }
        if given.time is not None:
            seeds["time"] = given.time.to(torch.int64).numpy()
        self._open(seeds, "__".join(self._topology.relations[number].name(number)))

    def _metadata(self, columns: dict[str, Any]) -> Any:
        given, negatives = self.input_data[columns["input_id"]], self._negatives
        if negatives is None:
            return given.input_id, columns["edge_label_index"], given.label, given.time
        if negatives["mode"] == "triplet":
            return given.input_id, columns["src_index"], columns["dst_pos_index"], columns["dst_neg_index"], given.time
        label = columns["edge_label"]
        if given.label is not None:
            count = label.shape[0] - given.label.shape[0]
            label = torch.cat([given.label, given.label.new_zeros((count, *given.label.shape[1:]))])
        times = None if given.time is None else given.time.repeat(1 + negatives["amount"])
        return given.input_id, columns["edge_label_index"], label, times
