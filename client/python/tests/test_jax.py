"""JAX: 64-bit integers are delivered exactly, or are an error."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from conftest import run_python

# Runs in a new process, because JAX warns in all later tests that fork.
_SCRIPT = """
import json
import jax
import numpy as np
from feedline import WrongUse
from feedline._convert import Jax

class Arrays(dict):
    def numpy(self):
        return self

def convert(sharding, columns):
    try:
        converted, _ = Jax(sharding).start(Arrays(columns))
    except WrongUse as error:
        return str(error)
    return {name: [str(column.dtype), column.tolist()] for name, column in converted.items()}

lists = np.empty(1, object)
lists[0] = np.array([2**40])
given = [
    {
        "id": np.array([2**31 - 1, -(2**31)], np.int64),
        "hash": np.array([[2**32 - 1]], np.uint64),
        "empty": np.zeros(0, np.int64),
        "score": np.array([0.1]),
        "lists": lists,
        "text": np.array(["a"], object),
    },
    {"id": np.array([0, 2**40], np.int64)},
    {"id": np.array([-(2**31) - 1, 0], np.int64)},
    {"hash": np.array([[1, 2**32]], np.uint64)},
]
found = {}
for is_x64 in (False, True):
    jax.config.update("jax_enable_x64", is_x64)
    for name, sharding in [("device", None), ("sharding", jax.sharding.SingleDeviceSharding(jax.devices()[0]))]:
        found[f"{name} {64 if is_x64 else 32}"] = [convert(sharding, columns) for columns in given]
print(json.dumps(found, default=np.ndarray.tolist))
"""


@pytest.fixture(scope="module")
def converted() -> dict[str, list[Any]]:
    """The types and values of the columns, or the error, for each place and number of bits."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    done = run_python(_SCRIPT, JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", ["device", "sharding"])
def test_integers_that_do_not_fit_into_32_bits_are_rejected(place: str, converted: dict[str, list[Any]]) -> None:
    fits, *errors = converted[f"{place} 32"]
    assert fits["id"] == ["int32", [2**31 - 1, -(2**31)]]
    assert fits["hash"] == ["uint32", [[2**32 - 1]]]
    assert fits["empty"] == ["int32", []]
    assert fits["score"][0] == "float32" and fits["score"][1] == pytest.approx([0.1])
    # Lists and text are NumPy arrays of objects, which JAX does not convert.
    assert fits["lists"] == ["object", [[2**40]]] and fits["text"] == ["object", ["a"]]
    assert errors[0] == (
        f"column 'id' contains {2**40}, but JAX converts int64 to int32, which cannot represent this value; call "
        'jax.config.update("jax_enable_x64", True), or convert the column to another type with cast'
    )
    assert errors[1].startswith(f"column 'id' contains {-(2**31) - 1}, but JAX converts int64 to int32,")
    assert errors[2].startswith(f"column 'hash' contains {2**32}, but JAX converts uint64 to uint32,")


@pytest.mark.parametrize("place", ["device", "sharding"])
def test_integers_have_64_bits_if_jax_allows_them(place: str, converted: dict[str, list[Any]]) -> None:
    fits, *large = converted[f"{place} 64"]
    assert fits["id"] == ["int64", [2**31 - 1, -(2**31)]] and fits["score"] == ["float64", [0.1]]
    assert large == [{"id": ["int64", [0, 2**40]]}, {"id": ["int64", [-(2**31) - 1, 0]]}, {"hash": ["uint64", [[1, 2**32]]]}]
