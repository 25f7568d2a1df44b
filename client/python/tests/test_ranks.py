"""The part of the data of a process: from arguments, a mesh, or the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import feedline
import numpy as np
import pytest
from conftest import run_python
from feedline import _ranks


def find(environment: dict[str, str], **options):
    given = {"rank": None, "world_size": None, "replica_size": None, **options}
    return _ranks.find_ranks(given.pop("rank"), given.pop("world_size"), given.pop("replica_size"), environment=environment, **given)


def test_one_process_receives_all_data() -> None:
    ranks = find({})
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
def test_launchers_provide_ranks(environment: dict[str, str]) -> None:
    ranks = find(environment)
    assert (ranks.consumer, ranks.consumers) == (3, 8)
    replicas = find(environment, replica_size=2)
    assert (replicas.consumer, replicas.consumers, replicas.replica) == (1, 4, 1)
    argued = find(environment, rank=0, world_size=2)
    assert (argued.consumer, argued.consumers) == (0, 2)


def test_launchers_provide_the_name_of_a_run() -> None:
    assert find({"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "2"}).run == "abc-2"
    assert find({"TORCHELASTIC_RUN_ID": "none"}).run is None
    assert find({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"}).run == "slurm-77.1-0"


def test_data_dimensions_of_a_mesh_determine_the_consumer() -> None:
    def mesh(coordinate: tuple[int, ...]):
        return SimpleNamespace(
            mesh_dim_names=("dp", "cp", "tp"), get_coordinate=lambda: coordinate, mesh=np.arange(24).reshape(3, 2, 4)
        )

    seen = {}
    for dp in range(3):
        for cp in range(2):
            for tp in range(4):
                ranks = find({}, mesh=mesh((dp, cp, tp)))
                assert (ranks.consumer, ranks.consumers) == (dp, 3)
                seen.setdefault(ranks.consumer, set()).add(ranks.replica)
    assert all(replicas == set(range(8)) for replicas in seen.values())
    both = find({}, mesh=mesh((2, 1, 3)), data_dims=["dp", "cp"])
    assert (both.consumer, both.consumers, both.replica) == (5, 6, 3)
    with pytest.raises(feedline.WrongUse, match="'ep', but the mesh has only"):
        find({}, mesh=mesh((0, 0, 0)), data_dims=["ep"])


MESHES = """
import json
import torch.distributed
from feedline import WrongUse, _ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

def seen(mesh, data_dims=None):
    return _ranks.find_ranks(None, None, None, mesh, data_dims, {}).consumer_of_mesh

for rank in range(8):
    torch.distributed.init_process_group("fake", rank=rank, world_size=8, store=FakeStore())
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    found = {"whole": seen(mesh), "part": seen(mesh["dp"]), "two": seen(mesh["dp", "cp"]), "inner": seen(mesh["cp"], ["cp"])}
    found["whole, outer and inner"] = seen(mesh, ["dp", "tp"])
    found["outer and inner"] = seen(mesh["dp", "tp"], ["dp", "tp"])
    found["whole, flat"] = seen(mesh, ["dp", "cp"])
    found["flat"] = seen(mesh["dp", "cp"]._flatten("dp_cp"), ["dp_cp"])
    try:
        seen(DeviceMesh.from_group(mesh["dp"].get_group(), "cpu", mesh_dim_names=("dp",)))
    except WrongUse as error:
        found["error"] = str(error)
    print(json.dumps(found))
    torch.distributed.destroy_process_group()
"""


def test_dimensions_of_the_root_mesh_are_replicas() -> None:
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    done = run_python(MESHES)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["whole"] for one in found] == [[rank // 4, 2, rank % 4] for rank in range(8)]
    for part, whole in [("part", "whole"), ("two", "whole"), ("outer and inner", "whole, outer and inner"), ("flat", "whole, flat")]:
        assert [one[part] for one in found] == [one[whole] for one in found], part
    assert [one["inner"] for one in found] == [[rank // 2 % 2, 2, rank // 4 * 2 + rank % 2] for rank in range(8)]
    assert all("the mesh has only 2 of the 8 processes of torch.distributed" in one["error"] for one in found)


RANK = """
import json, os, sys
import feedline
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh

torch.distributed.init_process_group("gloo", init_method=sys.argv[3], rank=int(os.environ["RANK"]), world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
received = {}
for name, part, dims in [("dp", mesh["dp"], ["dp"]), ("tp alone", mesh, [])]:
    with feedline.open(sys.argv[1], coordinator=sys.argv[2], mesh=part, data_dims=dims, epochs=1) as job:
        received[name] = [number for batch in job for number in batch["id"].tolist()]
    torch.distributed.barrier()
print(json.dumps(received))
torch.distributed.destroy_process_group()
"""


def test_tensor_parallel_ranks_receive_the_same_rows(numbers: feedline.Pipeline, clusters: Callable[[int], str], tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    file = tmp_path / "mesh.yaml"
    file.write_text(numbers.batch(10).to_yaml())
    arguments = [sys.executable, "-c", RANK, str(file), clusters(1), f"file://{tmp_path}/store"]
    shared = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(arguments, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    try:
        outputs = [process.communicate(timeout=1200) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * 4, [error for _, error in outputs]
    received = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    # Ranks 0 and 1 are one tensor-parallel group, 2 and 3 the other.
    assert received[0]["dp"] == received[1]["dp"] and received[2]["dp"] == received[3]["dp"]
    assert sorted(received[0]["dp"] + received[2]["dp"]) == list(range(997))
    assert all(sorted(one["tp alone"]) == list(range(997)) for one in received)


@pytest.mark.parametrize(
    ("options", "environment", "sentence"),
    [
        ({"rank": 1}, {}, "rank= is set without world_size="),
        ({"rank": 2, "world_size": 2}, {}, "expected a rank from 0 to world_size - 1"),
        ({"replica_size": 3}, {"RANK": "0", "WORLD_SIZE": "8"}, "does not divide world_size 8"),
        ({}, {"RANK": "a", "WORLD_SIZE": "8"}, "RANK='a' and WORLD_SIZE='8'"),
        ({"data_dims": ["dp"]}, {}, "pass mesh= too"),
    ],
)
def test_invalid_ranks_raise_one_sentence(options, environment, sentence: str) -> None:
    with pytest.raises(feedline.WrongUse, match=sentence):
        find(environment, **options)
