"""Determines which part of a job's data this process receives."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline._native import WrongUse
from feedline._arguments import shorten, to_list


@dataclass(frozen=True)
class Ranks:
    """One process of a training job.

    Rank ``rank`` of ``world_size`` receives part ``consumer`` of ``consumers`` parts of the data. Ranks that need the same data (tensor,
    pipeline and context parallel ranks) have the same ``consumer`` and different values of ``replica``.
    """

    rank: int = 0
    world_size: int = 1
    replica_size: int = 1
    """Number of neighbouring ranks that receive the same data."""
    consumer_of_mesh: tuple[int, int, int] | None = None
    """The values of ``consumer``, ``consumers`` and ``replica`` from a device mesh. ``None`` if neighbouring ranks are replicas."""
    run: str | None = None
    """Name of the launch, which is equal on all ranks. ``None`` if the launcher provides no name."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise WrongUse(
                f"rank is {self.rank}, but world_size is {self.world_size}; expected a rank from 0 to world_size - 1"
            )
        if self.replica_size < 1 or self.world_size % self.replica_size:
            raise WrongUse(
                f"replica_size is {self.replica_size}, which does not divide world_size {self.world_size}; "
                "all groups of ranks with the same data must have equal sizes"
            )

    @property
    def consumer(self) -> int:
        """Index of the part of the data that this process receives."""
        return self.consumer_of_mesh[0] if self.consumer_of_mesh else self.rank // self.replica_size

    @property
    def consumers(self) -> int:
        """Number of parts into which the data is divided."""
        return self.consumer_of_mesh[1] if self.consumer_of_mesh else self.world_size // self.replica_size

    @property
    def replica(self) -> int:
        """Index of this process among the processes that receive the same part of the data."""
        return self.consumer_of_mesh[2] if self.consumer_of_mesh else self.rank % self.replica_size


def find_ranks(
    rank: int | None,
    world_size: int | None,
    replica_size: int | None,
    mesh: Any = None,
    data_dims: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ranks:
    """Determines the ranks from the arguments, a ``DeviceMesh``, ``torch.distributed``, JAX, or the environment, in this order."""
    environment = os.environ if environment is None else environment
    run = _launch_name(environment)
    if replica_size is not None and replica_size < 1:
        raise WrongUse(f"replica_size is {replica_size}; expected the number of neighbouring ranks that receive the same data, at least 1")
    if mesh is not None:
        if (rank, world_size, replica_size) != (None, None, None):
            raise WrongUse("mesh= determines rank, world_size and replica_size; pass either mesh= or these arguments")
        return _ranks_of_mesh(mesh, data_dims, run)
    if data_dims is not None:
        raise WrongUse("data_dims= requires a mesh; pass mesh= too")
    if (rank is None) != (world_size is None):
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise WrongUse(f"{given}= is set without {missing}=; pass both or neither")
    if rank is None or world_size is None:
        rank, world_size = _torch_ranks() or _jax_ranks() or _environment_ranks(environment) or (0, 1)
    return Ranks(rank, world_size, replica_size or 1, run=run)


def _ranks_of_mesh(mesh: Any, data_dims: Sequence[str] | None, run: str | None) -> Ranks:
    """Determines the consumer from the coordinates along the data dimensions of a mesh. Ranks along all other dimensions are replicas,
    including dimensions of the root mesh."""
    if not hasattr(mesh, "mesh_dim_names") or not hasattr(mesh, "get_coordinate"):
        raise WrongUse(f"mesh is {shorten(mesh)}; expected a PyTorch DeviceMesh")
    names = list(mesh.mesh_dim_names or ())
    if data_dims is not None:
        data_dims = to_list("data_dims", data_dims)
    else:
        data_dims = [name for name in names if name in ("dp", "data", "fsdp", "hsdp", "dp_replicate", "dp_shard", "replicate", "shard")]
        if not data_dims:
            raise WrongUse(
                f"no dimension of the mesh has the name of a data dimension: {names}; pass the names of the data dimensions with data_dims=[...]"
            )
    unknown = [name for name in data_dims if name not in names]
    if unknown:
        raise WrongUse(f"data_dims contains {unknown[0]!r}, but the mesh has only the dimensions {names}")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise WrongUse("this process is not part of the mesh; open the job only on processes of the mesh")
    consumer, consumers = 0, 1
    for name, at, size in zip(names, coordinate, mesh.mesh.shape, strict=True):
        if name in data_dims:
            consumer, consumers = consumer * size + at, consumers * size
    along_data = tuple(slice(None) if name in data_dims else at for name, at in zip(names, coordinate, strict=True))
    replica = _replica_index(_mesh_ranks(_checked_root(mesh).mesh), _mesh_ranks(mesh.mesh[along_data]))
    return Ranks(consumer_of_mesh=(consumer, consumers, replica), run=run)


def _replica_index(all_ranks: Sequence[int], group: Sequence[int]) -> int:
    """Returns the index of ``group`` among the groups of ranks that each receive all of the data.

    All groups have the same shape in the root mesh, so they tile its flattened ranks. The tiling is unique: each tile starts at the first
    uncovered index. The computation does not use the names of dimensions, because flattened dimensions are not in the root mesh.
    """
    indexes = {rank: index for index, rank in enumerate(all_ranks)}
    own = sorted(indexes[rank] for rank in group)
    tiles: dict[int, int] = {}
    covered: set[int] = set()
    for first in range(len(all_ranks)):
        if first not in covered:
            tiles[first] = len(tiles)
            covered.update(first + index - own[0] for index in own)
    if len(tiles) * len(own) != len(all_ranks) or own[0] not in tiles:
        raise WrongUse(f"the ranks {sorted(group)} are not a regular part of their mesh; pass the root mesh and data_dims=")
    return tiles[own[0]]


def _mesh_ranks(part: Any) -> list[int]:
    return [int(rank) for rank in part.flatten().tolist()]


def _checked_root(mesh: Any) -> Any:
    """Returns the root mesh, which contains all processes that open the job.

    Raises:
        WrongUse: if ``torch.distributed`` has processes outside of the mesh, because their data is undetermined.
    """
    root = _root_mesh(mesh)
    size, (_, world_size) = len(_mesh_ranks(root.mesh)), _torch_ranks() or (0, 1)
    if size < world_size:
        raise WrongUse(
            f"the mesh has only {size} of the {world_size} processes of torch.distributed, so the data of the other processes cannot be determined; "
            "pass the root mesh and data_dims=, or rank=, world_size= and replica_size="
        )
    return root


def _root_mesh(mesh: Any) -> Any:
    """Returns the root of a mesh. PyTorch 2.2 to 2.8 stores it in a registry of meshes."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    registry = getattr(sys.modules.get(type(mesh).__module__), "_mesh_resources", None)
    for name in ("get_root_mesh", "get_parent_mesh"):
        if hasattr(registry, name):
            return getattr(registry, name)(mesh) or mesh
    return mesh


def _torch_ranks() -> tuple[int, int] | None:
    """Returns rank and world size of ``torch.distributed``, if it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _jax_ranks() -> tuple[int, int] | None:
    """Returns rank and world size of JAX, if several processes are initialised. Does not initialise JAX."""
    distributed = sys.modules.get("jax._src.distributed")
    state = getattr(distributed, "global_state", None)
    if state is None or state.client is None or not state.num_processes or state.process_id is None:
        return None
    return state.process_id, state.num_processes


_VARIABLES = [
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate, Lightning
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
]


def _environment_ranks(environment: Mapping[str, str]) -> tuple[int, int] | None:
    for rank, world_size in _VARIABLES:
        if rank in environment and world_size in environment:
            try:
                return int(environment[rank]), int(environment[world_size])
            except ValueError:
                raise WrongUse(
                    f"{rank}={environment[rank]!r} and {world_size}={environment[world_size]!r} in the environment are not "
                    "numbers; unset them, or pass rank= and world_size="
                ) from None
    return None


def _launch_name(environment: Mapping[str, str]) -> str | None:
    """Returns the name of the launch. A restart of all ranks is a new launch."""
    run_id = environment.get("TORCHELASTIC_RUN_ID")
    if run_id and run_id != "none":
        return f"{run_id}-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if "SLURM_JOB_ID" in environment:
        restarts = environment.get("SLURM_RESTART_COUNT", "0")
        return f"slurm-{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '0')}-{restarts}"
    for variable in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"):
        if environment.get(variable):
            return environment[variable]
    return None


def run_name(base: str, ranks: Ranks, is_remote: bool) -> str:
    """Returns the name of a run that the user has not named. The name is equal on all ranks.

    Raises:
        WrongUse: if several ranks share a coordinator and cannot agree on a name.
    """
    if ranks.consumers == 1:
        # Each replica has its own job, so replicas need no common name.
        return base
    if ranks.run is not None:
        return f"{base}-{ranks.run}"
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        suffix = [secrets.token_hex(4)]
        distributed.broadcast_object_list(suffix, src=0)
        return f"{base}-{suffix[0]}"
    if not is_remote:
        return base
    raise WrongUse(
        f"{ranks.consumers} ranks share this job, but cannot agree on a name of the run; pass name=, which must be equal on all ranks "
        "and new for each run"
    )
