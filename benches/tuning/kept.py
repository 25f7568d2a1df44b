"""Figures of turns, kept beside the rows: a measurement that was stopped goes on where it was."""

import json

import rows


class Turns:
    """The turns of a shape's stage, by title."""

    def __init__(self, shape, stage):
        self.path = rows.FOLDER / f"{shape.key}-{stage}.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.figures = dict(map(json.loads, lines))

    def get(self, title, turn):
        """The figure of a turn, which is taken if it is not kept."""
        if title not in self.figures:
            self.figures[title] = turn()
            with open(self.path, "a") as file:
                file.write(json.dumps([title, self.figures[title]]) + "\n")
        return self.figures[title]


def forget(shape):
    """Begins anew."""
    for path in rows.FOLDER.glob(f"{shape.key}-*.jsonl"):
        path.unlink()
