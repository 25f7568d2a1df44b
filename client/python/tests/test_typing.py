"""The type stubs match the package, and its modules have no import cycle."""

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


def test_the_stubs_match_the_native_module() -> None:
    stubs = {node.name: node for node in _stubs().body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    present = {name for name in dir(_native) if not name.startswith("_")}
    assert present == set(stubs)
    for name, node in stubs.items():
        if isinstance(node, ast.ClassDef) and not issubclass(getattr(_native, name), Exception):
            declared = {part.name for part in node.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("__")}
            assert {member for member in dir(getattr(_native, name)) if not member.startswith("_")} == declared, name


def test_the_stubs_match_the_arguments_of_functions() -> None:
    for node in _stubs().body:
        if isinstance(node, ast.FunctionDef):
            arguments = list(inspect.signature(getattr(_native, node.name)).parameters)
            assert arguments == [argument.arg for argument in node.args.args], node.name


class _Imports(ast.NodeVisitor):
    """Collects the imports of a module, including those within functions, and without those for type checkers."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.names += [name.name for name in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.names += [str(node.module), *(f"{node.module}.{name.name}" for name in node.names)]


def test_modules_have_no_import_cycle() -> None:
    imported: dict[str, set[str]] = {}
    for file in _PACKAGE.glob("*.py"):
        imports = _Imports()
        imports.visit(ast.parse(file.read_text()))
        modules = {name.split(".")[1] for name in imports.names if name.startswith("feedline.")}
        imported[file.stem] = {name for name in modules if (_PACKAGE / f"{name}.py").exists()}
    assert imported["_job"] and imported["_open"]
    graphlib.TopologicalSorter(imported).prepare()


def test_public_methods_of_a_job_have_docstrings() -> None:
    public = [name for name in dir(feedline.Job) if not name.startswith("_")]
    assert {"state_dict", "load_state_dict", "batches", "torch", "stats", "close"} <= set(public)
    assert [name for name in public if not inspect.getdoc(getattr(feedline.Job, name))] == []


def test_the_package_is_typed() -> None:
    assert (_PACKAGE / "py.typed").exists()
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--config-file", str(_SETTINGS), "--cache-dir=/dev/null", str(_PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, timeout=12000)
    assert done.returncode == 0, done.stdout + done.stderr
