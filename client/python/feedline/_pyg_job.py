"""The job of a loader of PyG: a stored copy of the topology, the seeds, and the epochs of the job."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

import feedline.graph
from feedline._graph_batch import Pyg, SampledTensors
from feedline._job import Job
from feedline._native import WrongUse
from feedline._open import open as open_job
from feedline._pipeline import Pipeline, read
from feedline._pyg_topology import Topology, node_name

_STATE_VERSION = 1
_SMALL_GRAPH_BYTES = 128 << 20
"""Size of graphs for which the default memory of the workers is enough."""
_BATCH_BYTES = 512 << 20
"""Memory of a worker in addition to a large graph."""
_MIN_BUILD_BYTES = 64 << 20
_MAX_BUILD_BYTES = 1 << 30


class SampledIndexes(Pyg):
    """Converts sampled graphs to the arrays of a sampler, without features."""

    def __init__(self) -> None:
        # The arrays are converted to int64, which copies them.
        super().__init__(None, False)

    def build(self, graph: SampledTensors, seeds: int) -> SampledTensors:
        del seeds
        return graph


class TopologyFolder:
    """A temporary stored graph with the topology of a graph in memory, and the seeds."""

    def __init__(self, topology: Topology, seeds: Mapping[str, Any]) -> None:
        # Not in /dev/shm, because files there need as much memory as the worker that loads them.
        self.path = Path(tempfile.mkdtemp(prefix="feedline-graph-"))
        self._remove = weakref.finalize(self, _remove, self.path, os.getpid())
        # The build sorts in files what exceeds its memory, so that the peak depends on the graph.
        edge_bytes = sum(relation.edge_index.nbytes for relation in topology.relations)
        memory = min(max(edge_bytes // 4, _MIN_BUILD_BYTES), _MAX_BUILD_BYTES)
        feedline.graph.write(self.path / "graph", topology.to_data(), edge_ids=True, memory=memory)
        self.seeds = self.path / "seeds.npz"
        arrays: dict[str, Any] = {name: np.ascontiguousarray(array) for name, array in seeds.items()}
        np.savez(self.seeds, **arrays)
        self.identity = zlib.crc32((self.path / "graph" / "graph.json").read_bytes())
        """Identifies the topology and the seeds."""
        for array in arrays.values():
            self.identity = zlib.crc32(array, self.identity)
        self._rows = len(arrays["input_id"])

    def memory_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the memory of the workers that sample the graph. Each of them holds it. ``given`` are the user's options."""
        files = (file.stat().st_size for file in (self.path / "graph").rglob("*") if file.is_file())
        return worker_memory(sum(files), given)

    def pipeline(self, options: Mapping[str, Any], *, shuffle: bool, seed_type: str) -> Pipeline:
        """Returns the pipeline that samples this graph for these seeds."""
        rows = read(url=self.seeds, format="npz", name="neighbor_loader").shuffle(self._rows if shuffle else 0)
        return rows.sample_neighbors(graph=self.path / "graph", seed_type=seed_type, edge_ids=True, **options)

    def close(self) -> None:
        """Removes the files."""
        self._remove()


def worker_memory(graph_bytes: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a job for the memory of its workers, unless the graph is small or the user has set it."""
    if graph_bytes <= _SMALL_GRAPH_BYTES or not {"memory", "graph_memory"}.isdisjoint(given):
        return {}
    workers = int(given.get("workers") or 1)
    return {"memory": workers * (graph_bytes + _BATCH_BYTES), "graph_memory": workers * graph_bytes}


def _remove(path: Path, process: int) -> None:
    """Removes a directory, unless this process is a forked child."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


class EpochJob:
    """A job whose loops each begin a new epoch, as those of a ``DataLoader`` do, unless a state was loaded."""

    def __init__(self, pipeline: Pipeline, converter: Pyg | None, seed: int, identity: int | None, options: Mapping[str, Any]) -> None:
        self._pipeline = pipeline
        self._converter = converter
        self._identity = identity
        self._options = dict(options)
        self._seed = seed
        self._job = self._open()
        self._epoch = 0
        # Number of batches of the epoch that the loop has received.
        self._step = 0
        # Whether a loop has begun the epoch, and did not complete it.
        self._is_begun = False
        self._loops = 0

    def _open(self) -> Job:
        job = open_job(self._pipeline.seed(self._seed), **self._options)
        return job.pyg() if self._converter is None else job._with_converter(self._converter)

    def __len__(self) -> int:
        return len(self._job)

    def loop(self, finish: Callable[[Any], Any], ahead: int) -> Iterator[Any]:
        """Yields the results of ``finish`` for the batches of the next epoch, or of the rest of an epoch whose state was loaded.

        With ``ahead``, a thread computes this number of results while the loop uses earlier ones.
        """
        if self._is_begun:
            self._move(self._epoch + 1, 0)
        self._is_begun = True
        self._loops += 1
        loop = self._loops
        with contextlib.closing(iter(self._job)) as batches:  # type: ignore[type-var]
            for result in map(finish, batches) if ahead == 0 else _finish_ahead(finish, batches, ahead):
                if loop != self._loops:
                    raise WrongUse("another loop over this loader has started; use one loop at a time")
                self._step += 1
                yield result
        self._epoch, self._step, self._is_begun = self._epoch + 1, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that the loop received, and the order of the seeds."""
        state = self._job.state_dict()
        is_complete = self._step == len(self._job)
        return {
            "version": _STATE_VERSION,
            "graph": self._graph_of(state),
            "seed": self._seed,
            "epoch": self._epoch + is_complete,
            "step": 0 if is_complete else self._step,
            "layout": state["layout"],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at the position of a state with the next loop."""
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise WrongUse("this is not a state of a loader; pass the result of state_dict()")
        if state["graph"] != self._graph_of(self._job.state_dict()):
            raise WrongUse("the state was saved with another graph or other seeds; load it with those with which it was saved")
        if state["seed"] != self._seed:
            self._job.close()
            self._seed = int(state["seed"])
            self._job = self._open()
        self._move(int(state["epoch"]), int(state["step"]), state["layout"])

    def _graph_of(self, state: Mapping[str, Any]) -> Any:
        """Returns the identity of the graph and the seeds. That of a stored graph is in the state of the job."""
        return state["dataset"] if self._identity is None else self._identity

    def _move(self, epoch: int, step: int, layout: Mapping[str, Any] | None = None) -> None:
        """Sets the position of the next loop. All ranks are at the same step."""
        state = self._job.state_dict()
        position = {key: value for key, value in state.items() if key not in ("epoch", "step", "ahead", "places", "slots", "missing", "batches")}
        if layout is not None:
            position["layout"] = dict(layout)
        self._loops += 1
        self._job.load_state_dict({**position, "epoch": epoch, "step": step, "ahead": 0})
        self._epoch, self._step, self._is_begun = epoch, step, False

    def close(self) -> None:
        """Closes the job."""
        self._job.close()


def _finish_ahead(finish: Callable[[Any], Any], batches: Iterator[Any], ahead: int) -> Iterator[Any]:
    """Computes results in a thread, in order. There are at most ``ahead`` results that the loop has not received."""
    running: deque[Future[Any]] = deque()
    executor = ThreadPoolExecutor(1, "feedline-pyg")
    try:
        for batch in batches:
            running.append(executor.submit(finish, batch))
            if len(running) > ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def sampler_output(graph: SampledTensors, topology: Topology) -> tuple[Any, Any]:
    """Returns a sampled graph as the output of a sampler of PyG, without metadata, and its columns."""
    columns = dict(graph.attributes())
    if not topology.is_hetero:
        edges = columns["edge_index"]
        output: Any = SamplerOutput(
            node=columns["n_id"],
            row=edges[0],
            col=edges[1],
            edge=columns["e_id"],
            batch=columns.get("batch"),
            num_sampled_nodes=columns["num_sampled_nodes"],
            num_sampled_edges=columns["num_sampled_edges"],
        )
        return output, columns
    schema = graph.schema

    def parts(owners: Mapping[Any, Any], attribute: str, default: Any) -> dict[Any, Any]:
        """Returns an attribute of each node type or relation. Batches do not contain those that no fanout reaches."""
        return {key: columns.get(schema.column(owner, attribute), default) for key, owner in owners.items()}

    nodes = {name: node_name(number) for number, name in enumerate(topology.node_types)}
    edge_types = {relation.edge_type: relation.name(number) for number, relation in enumerate(topology.relations)}
    index = parts(edge_types, "edge_index", torch.empty(2, 0, dtype=torch.int64))
    empty = torch.empty(0, dtype=torch.int64)
    output = HeteroSamplerOutput(
        node=parts(nodes, "n_id", empty),
        row={key: edges[0] for key, edges in index.items()},
        col={key: edges[1] for key, edges in index.items()},
        edge=parts(edge_types, "e_id", empty),
        batch=parts(nodes, "batch", empty) if schema.disjoint else None,
        num_sampled_nodes=parts(nodes, "num_sampled_nodes", [0] * (schema.hops + 1)),
        num_sampled_edges=parts(edge_types, "num_sampled_edges", [0] * schema.hops),
    )
    return output, columns
