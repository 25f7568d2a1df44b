"""Fixtures: small datasets, clusters of processes, and the ranks of one job."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feedline
import pytest

_ROOT = Path(__file__).resolve().parents[3]
_NUMBERS = itertools.count()


def binary() -> Path:
    """Returns the path of the binary `feedline`: of the debug build, or from FEEDLINE_BINARY."""
    return Path(os.environ.get("FEEDLINE_BINARY", _ROOT / "target/debug/feedline"))


def shared_data() -> Path:
    """Returns the directory with real data. Skips the test if it is missing, and fails it in continuous integration."""
    folder = Path(os.environ.get("FEEDLINE_SHARED_DATA", _ROOT / "../shared/data")).resolve()
    if not folder.exists() and os.environ.get("CI"):
        pytest.fail(f"no data in {folder} (set FEEDLINE_SHARED_DATA)")
    if not folder.exists():
        pytest.skip(f"no data in {folder} (set FEEDLINE_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feedline")


@pytest.fixture(scope="session")
def numbers(scratch: Path) -> feedline.Pipeline:
    """997 rows in five shards: `id` counts from 0, `kind` repeats every 7 rows."""
    folder = scratch / "numbers"
    folder.mkdir()
    rows = [f"{row},{row % 7}" for row in range(997)]
    for shard in range(5):
        (folder / f"{shard}.csv").write_text("\n".join(["id,kind", *rows[shard * 200 : (shard + 1) * 200]]) + "\n")
    return feedline.read(url=folder / "*.csv", format="csv", seed=3, name="numbers").shuffle(window=64)


@pytest.fixture(scope="session")
def local(scratch: Path) -> dict[str, Any]:
    """Options of a job in this process that uses no directory of the user."""
    return {"cores": 1, "memory": "64MiB", "index_dir": scratch / "index", "cache_dir": scratch / "cache"}


@contextlib.contextmanager
def running_cluster(folder: Path, workers: int) -> Iterator[str]:
    """Runs a coordinator and workers in one process. Yields the URL."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [binary(), "up", "--workers", workers, "--cores", workers, "--memory", "192MiB", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", folder / "data", "--cache-dir", folder / "cache", "--python", sys.executable]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, text=True, env={**os.environ, "FEEDLINE_LOG": "error"}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " listening on " in line, line
        yield "http://" + line.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=300)


@pytest.fixture(scope="session")
def clusters(scratch: Path) -> Iterator[Callable[[int], str]]:
    """Starts one cluster for each number of workers. Yields a function that returns the URL."""
    if not binary().exists():
        pytest.skip(f"{binary()} is not built")
    with contextlib.ExitStack() as stack:
        started: dict[int, str] = {}

        def url(workers: int) -> str:
            if workers not in started:
                started[workers] = stack.enter_context(running_cluster(scratch / f"cluster{workers}", workers))
            return started[workers]

        yield url


@pytest.fixture
def run_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Returns a function that returns a new name of a run."""
    return lambda: f"{request.node.name[:60]}-{os.getpid()}-{next(_NUMBERS)}"


def ranks_of(pipeline: feedline.Pipeline, count: int, name: str, **options: Any) -> list[feedline.Job]:
    """Opens all ranks of a job in this process."""
    return [feedline.open(pipeline, rank=rank, world_size=count, name=name, **options) for rank in range(count)]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program in a new process, with the same packages."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200, env=variables)


def has_program(name: str) -> bool:
    return shutil.which(name) is not None
