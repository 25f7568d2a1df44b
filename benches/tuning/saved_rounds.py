"""Saves the results of undisturbed rounds next to the rows, so that an interrupted measurement can continue."""

import json

import quiet
import rows


class SavedRounds:
    """The rounds of one stage of a pipeline, by title."""

    def __init__(self, shape, stage):
        self.path = rows.FOLDER / f"{shape.key}-{stage}.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.figures = dict(map(json.loads, lines))

    def get(self, title, turn):
        """Returns the saved rate of a round. Without a saved rate, runs `turn` and saves its rate if other programs did not disturb it."""
        if title in self.figures:
            return self.figures[title]
        rate, others = turn()
        if others <= quiet.ALLOWED:
            with open(self.path, "a") as file:
                file.write(json.dumps([title, rate]) + "\n")
        return rate


def begin(shape, options, go_on):
    """Deletes the saved rounds of a pipeline, unless `go_on` is set and they have the same options."""
    stamp = rows.FOLDER / f"{shape.key}-options.json"
    text = json.dumps(options, sort_keys=True, default=str)
    if go_on and stamp.exists() and stamp.read_text() == text:
        return
    for path in rows.FOLDER.glob(f"{shape.key}-*.jsonl"):
        path.unlink()
    stamp.write_text(text)
