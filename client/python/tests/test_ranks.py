"""Which part of the data a process gets: from arguments, a mesh, or the environment."""

from __future__ import annotations

import json
from types import SimpleNamespace

import feedline
import pytest
from conftest import run_python
from feedline import _ranks


def found(environment: dict[str, str], **options):
    given = {"rank": None, "world_size": None, "replica_size": None, **options}
    return _ranks.find(given.pop("rank"), given.pop("world_size"), given.pop("replica_size"), environment=environment, **given)


def test_one_process_gets_everything() -> None:
    ranks = found({})
    assert (ranks.consumer, ranks.consumers, ranks.replica, ranks.run) == (0, 1, 0, None)


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "3", "WORLD_SIZE": "8"},
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"},
        {"PMI_RANK": "3", "PMI_SIZE": "8"},
        {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"},
    ],
)
def test_launchers_tell(environment: dict[str, str]) -> None:
    ranks = found(environment)
    assert (ranks.consumer, ranks.consumers) == (3, 8)
    replicas = found(environment, replica_size=2)
    assert (replicas.consumer, replicas.consumers, replicas.replica) == (1, 4, 1)
    argued = found(environment, rank=0, world_size=2)
    assert (argued.consumer, argued.consumers) == (0, 2)


def test_runs_have_the_names_that_launchers_give() -> None:
    assert found({"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "2"}).run == "abc-2"
    assert found({"TORCHELASTIC_RUN_ID": "none"}).run is None
    assert found({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"}).run == "slurm-77.1-0"


def test_a_mesh_tells_which_dimensions_are_data() -> None:
    def mesh(coordinate: tuple[int, ...]):
        return SimpleNamespace(
            mesh_dim_names=("dp", "cp", "tp"), get_coordinate=lambda: coordinate, mesh=SimpleNamespace(shape=(3, 2, 4))
        )

    seen = {}
    for dp in range(3):
        for cp in range(2):
            for tp in range(4):
                ranks = found({}, mesh=mesh((dp, cp, tp)))
                assert (ranks.consumer, ranks.consumers) == (dp, 3)
                seen.setdefault(ranks.consumer, set()).add(ranks.replica)
    assert all(replicas == set(range(8)) for replicas in seen.values())
    both = found({}, mesh=mesh((2, 1, 3)), data_dims=["dp", "cp"])
    assert (both.consumer, both.consumers, both.replica) == (5, 6, 3)
    with pytest.raises(feedline.WrongUse, match="'ep'; the mesh has"):
        found({}, mesh=mesh((0, 0, 0)), data_dims=["ep"])


_SLICES = """
import json
import feedline
from feedline import _ranks
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed.device_mesh import init_device_mesh

told = []
for rank in range(8):
    dist.init_process_group("fake", rank=rank, world_size=8, store=FakeStore())
    whole = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    found = [_ranks.find(None, None, None, mesh) for mesh in (whole, whole["dp"], whole["dp", "tp"])]
    found.append(_ranks.find(None, None, None, whole["dp", "tp"], ["dp"]))
    try:
        _ranks.find(None, None, None, whole["dp", "cp"]._flatten("data"))
    except feedline.WrongUse as refusal:
        sentence = str(refusal)
    told.append([(one.consumer, one.consumers, one.replica) for one in found])
    dist.destroy_process_group()
print(json.dumps([told, sentence]))
"""


def test_a_slice_of_a_mesh_has_the_replicas_of_the_whole_one() -> None:
    pytest.importorskip("torch")
    done = run_python(_SLICES)
    assert done.returncode == 0, done.stderr
    told, sentence = json.loads(done.stdout.splitlines()[-1])
    whole, data, both, named = ([tuple(one) for one in found] for found in zip(*told, strict=True))
    assert whole == [(rank // 4, 2, rank % 4) for rank in range(8)]
    assert data == whole and named == whole
    assert both == [(rank // 4 * 2 + rank % 2, 4, rank // 2 % 2) for rank in range(8)]
    assert "give the whole mesh" in sentence


@pytest.mark.parametrize(
    ("options", "environment", "sentence"),
    [
        ({"rank": 1}, {}, "rank is given and world_size is not"),
        ({"rank": 2, "world_size": 2}, {}, "numbered from 0 to world_size - 1"),
        ({"replica_size": 3}, {"RANK": "0", "WORLD_SIZE": "8"}, "does not divide world_size 8"),
        ({}, {"RANK": "a", "WORLD_SIZE": "8"}, "RANK='a' and WORLD_SIZE='8'"),
        ({"data_dims": ["dp"]}, {}, "give mesh=, too"),
    ],
)
def test_what_cannot_be_is_told(options, environment, sentence: str) -> None:
    with pytest.raises(feedline.WrongUse, match=sentence):
        found(environment, **options)
