#!/usr/bin/env python3
"""Writes the table of values in `helm/feedline/README.md` from the comments in `values.yaml`.

    readme.py          writes the table
    readme.py --check  fails if the table is not current
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

CHART = Path(__file__).parent / "feedline"
START, END = "<!-- values: written by helm/readme.py -->\n", "<!-- end of values -->\n"


@dataclass(frozen=True)
class Value:
    """A key of `values.yaml`. The default of a key with inner keys is empty."""

    key: str
    default: str
    comment: str


def read_values(text: str) -> list[Value]:
    """Reads keys with their comments. Each key needs a comment directly above it, and its default on its line."""
    values, parents, comment = [], [], []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
            continue
        match = re.fullmatch(r"( *)([A-Za-z]+):(?: (.+))?", line)
        if match:
            depth = len(match[1]) // 2
            if not comment:
                raise ValueError(f"values.yaml:{number}: the key {match[2]} has no comment in the line above")
            parents[depth:] = [match[2]]
            values.append(Value(".".join(parents), match[3] or "", " ".join(comment)))
        elif stripped:
            raise ValueError(f"values.yaml:{number}: expected `key: default` or a comment, found `{stripped}`")
        comment = []
    return values


def build_table(values: list[Value]) -> str:
    """Returns a Markdown table with one row for each key that has a default."""
    rows = ["| key | default | meaning |\n|---|---|---|\n"]
    for value in values:
        if value.default:
            rows.append(f"| `{value.key}` | `{_escape(value.default)}` | {_escape(value.comment)} |\n")
        else:
            rows.append(f"| **`{value.key}`** | | {_escape(value.comment)} |\n")
    return "".join(rows)


def updated(readme: str, table: str) -> str:
    """Replaces the table between the markers."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"README.md does not contain the lines `{START.strip()}` and `{END.strip()}`")
    return f"{before}{START}\n{table}\n{END}{after}"


def main() -> None:
    path = CHART / "README.md"
    old = path.read_text()
    new = updated(old, build_table(read_values((CHART / "values.yaml").read_text())))
    if sys.argv[1:] == ["--check"]:
        if new != old:
            sys.exit("helm/feedline/README.md is not current: run `python3 helm/readme.py`")
    else:
        path.write_text(new)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
