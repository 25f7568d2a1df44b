"""Which part of a job's data this process gets."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline._native import WrongUse
from feedline._plain import several, shown


@dataclass(frozen=True)
class Ranks:
    """One process among those of a training job.

    ``rank`` of ``world_size`` takes part ``consumer`` of ``consumers`` parts of the data. Processes that must see the same data (tensor,
    pipeline and context parallel ranks) have the same ``consumer``, and differ in ``replica``.
    """

    rank: int = 0
    world_size: int = 1
    replica_size: int = 1
    """Neighbouring ranks that see the same data."""
    consumer_of_mesh: tuple[int, int, int] | None = None
    """Consumer, consumers and replica as a device mesh says it; ``None`` where neighbouring ranks are replicas."""
    run: str | None = None
    """What this launch is called by whoever launched it, the same on all ranks; ``None`` where nobody says."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise WrongUse(
                f"rank is {self.rank} and world_size {self.world_size}; ranks are numbered from 0 to world_size - 1"
            )
        if self.replica_size < 1 or self.world_size % self.replica_size:
            raise WrongUse(
                f"replica_size is {self.replica_size}, which does not divide world_size {self.world_size}; "
                "each group of ranks that see the same data must be whole"
            )

    @property
    def consumer(self) -> int:
        """The part of the data that this process gets, from 0."""
        return self.consumer_of_mesh[0] if self.consumer_of_mesh else self.rank // self.replica_size

    @property
    def consumers(self) -> int:
        """Parts that the data is dealt in."""
        return self.consumer_of_mesh[1] if self.consumer_of_mesh else self.world_size // self.replica_size

    @property
    def replica(self) -> int:
        """Which of the processes with the same part it is, from 0."""
        return self.consumer_of_mesh[2] if self.consumer_of_mesh else self.rank % self.replica_size


def find(
    rank: int | None,
    world_size: int | None,
    replica_size: int | None,
    mesh: Any = None,
    data_dims: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ranks:
    """The ranks that arguments, a ``DeviceMesh``, ``torch.distributed``, JAX or the environment tell, in this order."""
    environment = os.environ if environment is None else environment
    run = _run(environment)
    if replica_size is not None and replica_size < 1:
        raise WrongUse(f"replica_size is {replica_size}; set it to how many neighbouring ranks see the same data, 1 or more")
    if mesh is not None:
        if (rank, world_size, replica_size) != (None, None, None):
            raise WrongUse("a mesh tells rank, world_size and replicas; give either mesh= or these")
        return _of_mesh(mesh, data_dims, run)
    if data_dims is not None:
        raise WrongUse("data_dims names dimensions of a mesh; give mesh=, too")
    if (rank is None) != (world_size is None):
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise WrongUse(f"{given} is given and {missing} is not; give both or none")
    if rank is None or world_size is None:
        rank, world_size = _of_torch() or _of_jax() or _of_environment(environment) or (0, 1)
    return Ranks(rank, world_size, replica_size or 1, run=run)


def _of_mesh(mesh: Any, data_dims: Sequence[str] | None, run: str | None) -> Ranks:
    """The mesh's coordinates along the dimensions over which data differs; all others are replicas, also those of a bigger mesh that
    this one was cut out of."""
    if not hasattr(mesh, "mesh_dim_names") or not hasattr(mesh, "get_coordinate"):
        raise WrongUse(f"mesh is {shown(mesh)}; give a DeviceMesh of PyTorch")
    names = list(mesh.mesh_dim_names or ())
    if data_dims is not None:
        data_dims = several("data_dims", data_dims)
    else:
        data_dims = [name for name in names if name in ("dp", "data", "fsdp", "hsdp", "dp_replicate", "dp_shard", "replicate", "shard")]
        if not data_dims:
            raise WrongUse(
                f"the mesh has the dimensions {names}, and none is known to be one of data; name them by data_dims=[...]"
            )
    unknown = [name for name in data_dims if name not in names]
    if unknown:
        raise WrongUse(f"data_dims names {unknown[0]!r}; the mesh has {names}")
    place = mesh.get_coordinate()
    if place is None:
        raise WrongUse("this process is not part of the mesh; open the job on the mesh's processes alone")
    consumer, consumers = 0, 1
    for name, at, size in zip(names, place, mesh.mesh.shape, strict=True):
        if name in data_dims:
            consumer, consumers = consumer * size + at, consumers * size
    along_data = tuple(slice(None) if name in data_dims else at for name, at in zip(names, place, strict=True))
    replica = _replica(_ranks_in(_whole(mesh).mesh), _ranks_in(mesh.mesh[along_data]))
    return Ranks(consumer_of_mesh=(consumer, consumers, replica), run=run)


def _replica(everybody: Sequence[int], group: Sequence[int]) -> int:
    """Which of the groups that together get the data once ``group`` is.

    The groups lie in the whole mesh as copies of one shape. Copies of a shape fill a line in one way at most, which taking the first
    free place again and again finds; so this needs no names of dimensions, which flattened ones have not in common with the whole.
    """
    places = {rank: place for place, rank in enumerate(everybody)}
    own = sorted(places[rank] for rank in group)
    numbers: dict[int, int] = {}
    taken: set[int] = set()
    for first in range(len(everybody)):
        if first not in taken:
            numbers[first] = len(numbers)
            taken.update(first + place - own[0] for place in own)
    if len(numbers) * len(own) != len(everybody) or own[0] not in numbers:
        raise WrongUse(f"the ranks {sorted(group)} are no regular part of their mesh; give the whole mesh, and data_dims=")
    return numbers[own[0]]


def _ranks_in(part: Any) -> list[int]:
    return [int(rank) for rank in part.flatten().tolist()]


def _whole(mesh: Any) -> Any:
    """The mesh that this one was cut out of, or itself: all processes that open the job.

    Raises:
        WrongUse: when there are more processes, of which nothing tells whether they see the same data.
    """
    whole = _root(mesh)
    found, (_, world_size) = len(_ranks_in(whole.mesh)), _of_torch() or (0, 1)
    if found < world_size:
        raise WrongUse(
            f"the mesh has {found} of the {world_size} processes of torch.distributed, and nothing tells whether the others see the same "
            "data; give the whole mesh, and data_dims=, or in its place rank=, world_size= and replica_size="
        )
    return whole


def _root(mesh: Any) -> Any:
    """As each PyTorch says it: the mesh itself, or from 2.2 to 2.8 a registry of meshes."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    registry = getattr(sys.modules.get(type(mesh).__module__), "_mesh_resources", None)
    for name in ("get_root_mesh", "get_parent_mesh"):
        if hasattr(registry, name):
            return getattr(registry, name)(mesh) or mesh
    return mesh


def _of_torch() -> tuple[int, int] | None:
    """What ``torch.distributed`` says, where it was initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_jax() -> tuple[int, int] | None:
    """What JAX says, where several processes were initialised. JAX itself is not started by asking."""
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


def _of_environment(environment: Mapping[str, str]) -> tuple[int, int] | None:
    for rank, world_size in _VARIABLES:
        if rank in environment and world_size in environment:
            try:
                return int(environment[rank]), int(environment[world_size])
            except ValueError:
                raise WrongUse(
                    f"{rank}={environment[rank]!r} and {world_size}={environment[world_size]!r} in the environment are no "
                    "numbers; unset them, or give rank= and world_size="
                ) from None
    return None


def _run(environment: Mapping[str, str]) -> str | None:
    """The launch's name. A restarted group of ranks is another launch."""
    known = environment.get("TORCHELASTIC_RUN_ID")
    if known and known != "none":
        return f"{known}-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if "SLURM_JOB_ID" in environment:
        restarts = environment.get("SLURM_RESTART_COUNT", "0")
        return f"slurm-{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '0')}-{restarts}"
    for variable in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"):
        if environment.get(variable):
            return environment[variable]
    return None


def run_name(base: str, ranks: Ranks, is_remote: bool) -> str:
    """What a run is called for which nobody says it: the same on all of its ranks.

    Raises:
        WrongUse: when several ranks share a coordinator and nothing tells.
    """
    if ranks.consumers == 1:
        # Replicas share no job, so there is nothing to agree on.
        return base
    if ranks.run is not None:
        return f"{base}-{ranks.run}"
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        drawn = [secrets.token_hex(4)]
        distributed.broadcast_object_list(drawn, src=0)
        return f"{base}-{drawn[0]}"
    if not is_remote:
        return base
    raise WrongUse(
        f"{ranks.consumers} ranks share this job and nothing tells what this run is called; give name=, the same on all "
        "ranks and new for each run"
    )
