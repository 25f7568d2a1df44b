"""What type checkers are told of the package is what it has."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import feedline
import pytest
from conftest import _ROOT
from feedline import _native

_PACKAGE = Path(feedline.__file__).parent
_SETTINGS = _ROOT / "client/python/pyproject.toml"


def _stubs() -> ast.Module:
    return ast.parse((_PACKAGE / "_native.pyi").read_text())


def test_the_native_part_has_what_its_stubs_say_and_no_more() -> None:
    stubs = {node.name: node for node in _stubs().body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    present = {name for name in dir(_native) if not name.startswith("_")}
    assert present == set(stubs)
    for name, node in stubs.items():
        if isinstance(node, ast.ClassDef) and not issubclass(getattr(_native, name), Exception):
            told = {part.name for part in node.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("__")}
            assert {member for member in dir(getattr(_native, name)) if not member.startswith("_")} == told, name


def test_functions_take_the_arguments_that_their_stubs_name() -> None:
    for node in _stubs().body:
        if isinstance(node, ast.FunctionDef):
            takes = list(inspect.signature(getattr(_native, node.name)).parameters)
            assert takes == [argument.arg for argument in node.args.args], node.name


def test_modules_import_each_other_in_one_direction() -> None:
    needs: dict[str, set[str]] = {}
    for file in _PACKAGE.glob("*.py"):
        # Those within functions, and for types alone, are nobody's need when a module is loaded.
        imports = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom)]
        names = [str(node.module) for node in imports] + [f"{node.module}.{name.name}" for node in imports for name in node.names]
        modules = {name.split(".")[1] for name in names if name.startswith("feedline.")}
        needs[file.stem] = {name for name in modules if (_PACKAGE / f"{name}.py").exists()}
    assert needs["_job"] and needs["_open"]
    graphlib.TopologicalSorter(needs).prepare()


def test_a_job_tells_what_its_methods_do() -> None:
    public = [name for name in dir(feedline.Job) if not name.startswith("_")]
    assert {"state_dict", "load_state_dict", "batches", "torch", "stats", "close"} <= set(public)
    assert [name for name in public if not inspect.getdoc(getattr(feedline.Job, name))] == []


def test_the_package_is_typed() -> None:
    assert (_PACKAGE / "py.typed").exists()
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--config-file", str(_SETTINGS), "--cache-dir=/dev/null", str(_PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
