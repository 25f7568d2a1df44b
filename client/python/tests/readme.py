"""Runs the Python lines of a document as they are written: ``readme.py README.md``."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main() -> None:
    text = Path(sys.argv[1]).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [block for block in blocks if "feedline.open(" in block]
    assert lines, f"{sys.argv[1]} has no Python lines that open a job"
    for block in lines:
        exec(compile(block, sys.argv[1], "exec"), {"__name__": "__main__"})
        print(f"ran {len(block.splitlines())} lines of {sys.argv[1]}")


if __name__ == "__main__":
    main()
