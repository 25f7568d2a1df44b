"""The arguments of the loaders of PyG: those of the sampler, and those of ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch_geometric.sampler.base import NegativeSampling, NumNeighbors, SubgraphType

from feedline._arguments import to_bool, to_int
from feedline._native import WrongUse
from feedline._pyg_topology import Topology

_DEFAULT_AHEAD = 2
"""Number of batches whose features a thread selects in advance, which is the default of ``prefetch_factor``."""
_MAX_SEED = 1 << 62

_REJECTED = {
    "sampler": "pass shuffle=, or input nodes in the order of the seeds",
    "batch_sampler": "pass batch_size=, shuffle= and drop_last=",
    "worker_init_fn": "Feedline's workers are threads of native code",
}
"""Arguments of ``DataLoader`` that are not supported, with the fix."""
_WITHOUT_EFFECT = ("collate_fn", "dataset", "in_order", "multiprocessing_context", "persistent_workers", "pin_memory_device", "timeout")
"""Arguments of ``DataLoader`` that have no effect, because there are no worker processes. PyG ignores the first two."""


@dataclass(frozen=True)
class LoaderOptions:
    """The arguments that a loader passes to ``DataLoader``, and those of Feedline."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    pin_memory: bool
    ahead: int
    """Number of batches whose features a thread selects in advance."""
    seed: int
    features: Any = None
    edge_features: Any = None
    job_options: dict[str, Any] = field(default_factory=dict)
    """Options of :func:`feedline.open`."""

    @property
    def remainder(self) -> Literal["drop", "emit"]:
        return "drop" if self.drop_last else "emit"

    @staticmethod
    def of(loader: str, given: Mapping[str, Any]) -> LoaderOptions:
        """Reads the keyword arguments of a loader.

        Raises:
            WrongUse: if an argument is unknown or not supported.
        """
        options = {name: value for name, value in given.items() if name not in _WITHOUT_EFFECT}
        for name, fix in _REJECTED.items():
            if options.pop(name, None) is not None:
                raise WrongUse(f"{name} is not supported by {loader} of Feedline; {fix}")
        batch_size = to_int("batch_size", options.pop("batch_size", 1))
        if batch_size < 1:
            raise WrongUse(f"batch_size is {batch_size}; expected a number greater than 0")
        workers = to_int("num_workers", options.pop("num_workers", 0))
        prefetch_factor = options.pop("prefetch_factor", None)
        ahead = to_int("prefetch_factor", _DEFAULT_AHEAD if prefetch_factor is None else prefetch_factor)
        generator, seed = options.pop("generator", None), options.pop("seed", None)
        job_options = {"rank": 0, "world_size": 1, **({"cores": workers} if workers else {}), **(options.pop("job_options", None) or {})}
        for name in ("rank", "world_size"):
            value = options.pop(name, None)
            if value is not None:
                job_options[name] = to_int(name, value)
        result = LoaderOptions(
            batch_size=batch_size,
            shuffle=to_bool("shuffle", options.pop("shuffle", None) or False),
            drop_last=to_bool("drop_last", options.pop("drop_last", False)),
            pin_memory=to_bool("pin_memory", options.pop("pin_memory", False)),
            ahead=ahead if workers else 0,
            features=options.pop("features", None),
            edge_features=options.pop("edge_features", None),
            seed=_draw_seed(generator) if seed is None else to_int("seed", seed),
            job_options=job_options,
        )
        if options:
            raise WrongUse(f"{loader} has no argument {next(iter(options))}=")
        return result

    def feature_parameters(self) -> dict[str, Any]:
        """Returns the parameters of ``sample_neighbors`` that select the features of a stored graph."""
        return {"features": self.features, "edge_features": self.edge_features}

    def reject_features(self) -> None:
        """Rejects the arguments of stored graphs."""
        if self.features is not None or self.edge_features is not None:
            raise WrongUse("features= and edge_features= select those of a stored graph; batches of a graph in memory have all attributes")

    def data_loader(self) -> dict[str, Any]:
        """Returns the arguments of ``DataLoader``, which has no worker processes."""
        return {"batch_size": self.batch_size, "shuffle": self.shuffle, "drop_last": self.drop_last}


def _draw_seed(generator: Any) -> int:
    return int(torch.randint(_MAX_SEED, (), generator=generator))


def negative_sampling(neg_sampling: Any, ratio: float | None) -> dict[str, Any] | None:
    """Returns the parameter ``negatives`` of ``sample_neighbors``.

    Raises:
        WrongUse: if the negatives are not supported.
    """
    given = NegativeSampling("binary", ratio) if ratio else NegativeSampling.cast(neg_sampling)
    if given is None:
        return None
    if given.src_weight is not None or given.dst_weight is not None:
        raise WrongUse("src_weight and dst_weight of neg_sampling are not supported; use sample_neighbors with `by: degree^0.75`, or PyG's loader")
    if given.amount != int(given.amount):
        raise WrongUse(f"the amount of neg_sampling is {given.amount}; expected an integer, the number of negatives of each link")
    return {"mode": given.mode.value, "amount": int(given.amount)}


@dataclass(frozen=True)
class SamplingOptions:
    """The arguments of PyG's sampler."""

    num_neighbors: Any
    replace: bool
    is_bidirectional: bool
    disjoint: bool
    temporal_strategy: str
    time_attr: str | None
    is_weighted: bool

    @staticmethod
    def of(
        num_neighbors: Any,
        replace: bool,
        subgraph_type: Any,
        disjoint: bool,
        temporal_strategy: str,
        time_attr: str | None,
        weight_attr: str | None,
        neighbor_sampler: Any,
        directed: bool,
    ) -> SamplingOptions:
        """Reads the arguments of PyG's sampler.

        Raises:
            WrongUse: if an argument is not supported.
        """
        if neighbor_sampler is not None:
            raise WrongUse("neighbor_sampler is not supported, because Feedline samples; pass num_neighbors and the arguments of the sampler")
        try:
            subgraph = SubgraphType(subgraph_type) if directed else SubgraphType.induced
        except ValueError:
            raise WrongUse(f"subgraph_type is {subgraph_type!r}; expected directional or bidirectional") from None
        if subgraph == SubgraphType.induced:
            argument = "subgraph_type='induced'" if directed else "directed=False"
            raise WrongUse(f"{argument} is not supported; use subgraph_type='directional' or 'bidirectional', or PyG's loader")
        if temporal_strategy not in ("uniform", "last"):
            raise WrongUse(f"temporal_strategy is {temporal_strategy!r}; expected uniform or last")
        return SamplingOptions(
            num_neighbors=num_neighbors,
            replace=to_bool("replace", replace),
            is_bidirectional=subgraph == SubgraphType.bidirectional,
            disjoint=to_bool("disjoint", disjoint) or time_attr is not None,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            is_weighted=weight_attr is not None,
        )

    def parameters(self, topology: Topology) -> dict[str, Any]:
        """Returns the parameters of ``sample_neighbors`` for a graph in memory."""
        return {"fanouts": topology.fanouts(self.num_neighbors), **self._draws("time")}

    def stored_parameters(self) -> dict[str, Any]:
        """Returns the parameters of ``sample_neighbors`` for a stored graph."""
        numbers = self.num_neighbors if isinstance(self.num_neighbors, NumNeighbors) else NumNeighbors(self.num_neighbors)
        if numbers.default is not None:
            raise WrongUse("the default of NumNeighbors is not supported with a stored graph; list the neighbors of all relations")
        fanouts = numbers.get_values()
        if isinstance(fanouts, Mapping):
            fanouts = {"__".join(edge_type): limits for edge_type, limits in fanouts.items()}
        subgraph = {"subgraph": "bidirectional"} if self.is_bidirectional else {}
        return {"fanouts": fanouts, **subgraph, **self._draws(self.time_attr)}

    def _draws(self, time_column: str | None) -> dict[str, Any]:
        parameters: dict[str, Any] = {"replace": self.replace, "disjoint": self.disjoint}
        if self.is_weighted:
            parameters["weighted"] = True
        if self.time_attr is not None:
            parameters["time"] = {"column": time_column, "strategy": self.temporal_strategy}
        return parameters
