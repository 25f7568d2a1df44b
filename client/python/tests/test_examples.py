"""Every example runs. Each example checks that it resumes exactly."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import _ROOT, binary

NEEDS = {
    "pytorch": ["torch"],
    "stateful_dataloader": ["torch", "torchdata"],
    "lightning_module": ["torch", "lightning"],
    "hugging_face": ["torch", "transformers", "accelerate"],
    "accelerate_loop": ["torch", "accelerate"],
    "jax_orbax": ["jax", "orbax"],
    "keras_fit": ["tensorflow", "keras"],
}


def test_every_example_is_run() -> None:
    assert {file.stem for file in (_ROOT / "examples/python").glob("*.py")} == set(NEEDS)


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
    missing = [module for module in NEEDS[name] if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(demo / "cache"))
    script = _ROOT / "examples/python" / f"{name}.py"
    done = subprocess.run([sys.executable, str(script)], cwd=demo, capture_output=True, text=True, timeout=12000)
    assert done.returncode == 0, done.stderr[-3000:]
