"""Figures of turns, kept beside the rows unless others disturbed them: a measurement that was stopped goes on where it was."""

import json

import quiet
import rows


class Turns:
    """The turns of a shape's stage, by title."""

    def __init__(self, shape, stage):
        self.path = rows.FOLDER / f"{shape.key}-{stage}.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.figures = dict(map(json.loads, lines))

    def get(self, title, turn):
        """The figure of a turn, which is taken if it is not kept: a rate, with the part of the cores that others took."""
        if title in self.figures:
            return self.figures[title]
        rate, others = turn()
        if others <= quiet.ALLOWED:
            with open(self.path, "a") as file:
                file.write(json.dumps([title, rate]) + "\n")
        return rate


def begin(shape, options, go_on):
    """Begins anew, unless what is kept was taken with the same options and shall be kept."""
    stamp = rows.FOLDER / f"{shape.key}-options.json"
    text = json.dumps(options, sort_keys=True, default=str)
    if go_on and stamp.exists() and stamp.read_text() == text:
        return
    for path in rows.FOLDER.glob(f"{shape.key}-*.jsonl"):
        path.unlink()
    stamp.write_text(text)
