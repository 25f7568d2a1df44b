"""The version of a function: equal in all processes, independent of its place in a file, and different when its behaviour changes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import feedline
import pytest
from conftest import run_python

pytest.importorskip("cloudpickle")

_SCRIPT = """
import dataclasses, enum, functools, json, re
import numpy as np
import feedline

SIZES = {"small", "large", "huge", "tiny"}
TABLE = np.arange(6.0).reshape(2, 3)
PATTERN = re.compile("a+")

class Kind(enum.Enum):
    ONE = 1
    TWO = 2

@dataclasses.dataclass
class Shape:
    size: int = 3
    names: frozenset = frozenset({"x", "y", "z"})
    def area(self):
        return self.size**2

def helper(x):
    return x if x in {"p", "q", "r"} else None

def function(batch, scale=2.0, *, shape=Shape()):
    inner = lambda x: helper(x) or Kind.TWO
    return {"y": TABLE.sum() * scale * shape.area() + len(SIZES) + len(PATTERN.pattern) + len(batch)}

class Adds:
    def __init__(self, by):
        self.by = by
    def __call__(self, batch):
        return {"y": batch["x"] + self.by}

def closed(by):
    return lambda batch: {"y": batch["x"] + by}

given = [function, functools.partial(function, scale=3.0), Adds(3), closed(4), np.sort, Adds(3).__call__]
read = feedline.read(url="x", format="text")
operators = [read.map(one, outputs={"y": "float64"})._spec["operators"][0]["map"] for one in given]
print(json.dumps([operator["version"] for operator in operators]))
"""


def versions(script: str, seed: int = 0) -> list[str]:
    done = run_python(script, PYTHONHASHSEED=str(seed))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_version_of_a_function_is_equal_in_all_processes() -> None:
    expected = versions(_SCRIPT)
    assert len(set(expected)) == len(expected) and all(len(version) == 16 for version in expected)
    for seed in (1, 2):
        assert versions(_SCRIPT, seed) == expected
    assert versions("# A line above.\n\n" + _SCRIPT.replace("def helper", "# Another.\ndef helper")) == expected


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('{"p", "q", "r"}', '{"p", "q", "s"}', [0, 1]),
        ("scale=2.0", "scale=2.5", [0, 1]),
        ("scale=3.0", "scale=3.5", [1]),
        ('"huge", "tiny"', '"huge", "giant"', [0, 1]),
        ("np.arange(6.0)", "np.arange(1.0, 7.0)", [0, 1]),
        ('re.compile("a+")', 're.compile("a*")', [0, 1]),
        ("TWO = 2", "TWO = 3", [0, 1]),
        ("self.size**2", "self.size**3", [0, 1]),
        ("size: int = 3", "size: int = 4", [0, 1]),
        ("Adds(3), closed", "Adds(4), closed", [2]),
        ("closed(4)", "closed(5)", [3]),
        ('batch["x"] + self.by', 'batch["x"] - self.by', [2, 5]),
        ("np.sort, ", "np.argsort, ", [4]),
    ],
)
def test_a_change_of_a_function_or_its_globals_changes_the_version(old: str, new: str, changed: list[int]) -> None:
    assert old in _SCRIPT
    before, now = versions(_SCRIPT), versions(_SCRIPT.replace(old, new))
    assert [place for place, (one, other) in enumerate(zip(before, now, strict=True)) if one != other] == changed


def test_a_state_is_valid_until_the_function_changes(
    numbers: feedline.Pipeline, local: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def job(text: str) -> feedline.Job:
        (tmp_path / "mine_of_states.py").write_text(text)
        sys.modules.pop("mine_of_states", None)
        importlib.invalidate_caches()
        module = importlib.import_module("mine_of_states")
        return numbers.filter(module.odd, timeout_s=20 + len(text)).batch(50).open(epochs=1, **local)

    odd = "def odd(batch):\n    return batch['id'] % 2 == 1\n"
    with job(odd) as first:
        loop = first.batches()
        received = [next(loop)["id"].tolist() for _ in range(3)]
        state = json.loads(json.dumps(first.state_dict()))
        rest = [batch["id"].tolist() for batch in loop]
    assert all(row % 2 for batch in received + rest for row in batch)
    with job("# Keeps some rows.\n\n\n" + odd) as second:
        second.load_state_dict(state)
        assert [batch["id"].tolist() for batch in second.batches()] == rest
    with job(odd.replace("== 1", "== 0")) as third, pytest.raises(feedline.WrongUse, match=r"operators\[0\] \(filter_function\) changed"):
        third.load_state_dict(state)
