"""Every example runs. Each example checks that it resumes exactly."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import _ROOT, binary, shared_data

NEEDS = {
    "pytorch": ["torch"],
    "stateful_dataloader": ["torch", "torchdata"],
    "lightning_module": ["torch", "lightning"],
    "hugging_face": ["torch", "transformers", "accelerate"],
    "accelerate_loop": ["torch", "accelerate"],
    "jax_orbax": ["jax", "orbax"],
    "keras_fit": ["tensorflow", "keras"],
}


# The arguments of the examples with graphs: graphs that the test builds, and directories with data.
GRAPHS = {
    "cora": ["data"],
    "debian": ["debian"],
    "hetero": ["types"],
    "link_prediction": ["debian", "data"],
    "temporal": ["temporal-graph", "temporal"],
    "layerwise": ["debian", "data"],
}


def test_every_example_is_run() -> None:
    assert {file.stem for file in (_ROOT / "examples/python").glob("*.py")} == set(NEEDS)
    assert {file.stem for file in (_ROOT / "examples/graphs").glob("*.py")} == set(GRAPHS)


def _require(modules: list[str]) -> None:
    """Skips the test if a module is missing. In continuous integration, fails it."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"{missing[0]} is not installed")
    if missing:
        pytest.skip(f"{missing[0]} is not installed")


@pytest.fixture(scope="session")
def demo(scratch: Path) -> Path:
    """A directory with the data of the examples."""
    if not binary().exists():
        pytest.skip(f"{binary()} is not built")
    folder = scratch / "demo"
    images = folder / "target/demo/images"
    images.parent.mkdir(parents=True)
    command = [binary(), "make-data", "images", images, "--rows", "400", "--format", "tfrecord", "--seed", "1"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    (folder / "examples").symlink_to(_ROOT / "examples")
    return folder


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_an_example_runs(name: str, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _require(NEEDS[name])
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(demo / "cache"))
    script = _ROOT / "examples/python" / f"{name}.py"
    done = subprocess.run([sys.executable, str(script)], cwd=demo, capture_output=True, text=True, timeout=12000)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="session")
def graphs(scratch: Path) -> dict[str, Path]:
    """The graphs and the data of the examples with graphs."""
    if not binary().exists():
        pytest.skip(f"{binary()} is not built")
    data, folder = shared_data() / "graph", scratch / "graphs"
    folder.mkdir()

    def feedline(*arguments: str | Path) -> None:
        command = [str(part) for part in (binary(), *arguments)]
        subprocess.run(command, check=True, capture_output=True, cwd=data)

    edges, features, labels = "debian/edges.parquet", "x=debian/x.npy", "y=debian/packages.parquet:section"
    places = {name: folder / name for name in ("debian", "types", "temporal", "temporal-graph")}
    build = ("--edges", edges, "--columns", "from,to", "--undirected", "--feature", features, "--label", labels, "--seeds", "all=all")
    feedline("graph", "build", places["debian"], *build)
    feedline("graph", "build", places["types"], "--from", _ROOT / "examples/graphs/debian.yaml")
    sizes = ("--nodes", "20000", "--edges", "200000", "--features", "16", "--times", "--format", "npy", "--seed", "1")
    feedline("make-data", "graph", places["temporal"], *sizes)
    edges_at, time, x = (places["temporal"] / f"{name}.npy" for name in ("edges", "time", "x"))
    flags = ("--edges", edges_at, "--time", time, "--edge-feature", f"time={time}", "--feature", f"x={x}")
    feedline("graph", "build", places["temporal-graph"], *flags)
    return {**places, "data": data}


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_an_example_with_graphs_runs(name: str, graphs: dict[str, Path], scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _require(["torch", "torch_geometric", "pyarrow"])
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(scratch / "cache"))
    command = [sys.executable, _ROOT / "examples/graphs" / f"{name}.py", *(graphs[argument] for argument in GRAPHS[name])]
    done = subprocess.run([str(part) for part in command], cwd=scratch, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
