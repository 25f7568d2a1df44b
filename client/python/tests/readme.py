"""Runs the Python code blocks of a document, also with PyTorch tensors if PyTorch is installed: ``readme.py README.md``."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import feedline


def main() -> None:
    text = Path(sys.argv[1]).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [block for block in blocks if "feedline.open(" in block]
    assert lines, f"{sys.argv[1]} has no Python code block that opens a job"
    run(lines, "NumPy arrays")
    if importlib.util.find_spec("torch") is not None:
        import torch

        feedline.open = functools.partial(feedline.open, device="cpu")
        for names in run(lines, "PyTorch tensors"):
            assert isinstance(names["batch"]["image"], torch.Tensor), type(names["batch"]["image"])


def run(blocks: list[str], arrays: str) -> list[dict[str, Any]]:
    """Runs the code blocks. Returns the variables of each."""
    found = []
    for block in blocks:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(block, sys.argv[1], "exec"), names)
        print(f"ran {len(block.splitlines())} lines of {sys.argv[1]} with {arrays}")
        found.append(names)
    return found


if __name__ == "__main__":
    main()
