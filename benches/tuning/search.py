"""The exhaustive search over what a user can set: every setting runs for a short time, the fastest again for longer.

What it found is kept beside the rows: the settings that take part in the rounds.
"""

import dataclasses
import itertools
import json
import sys

import rows
from places import Failed
from running import CORES, Setting

# Cores and workers, and the limits of the costliest operator there: one core runs one at a time anyway.
MACHINES = (((1, 1), (1, None)), ((2, 1), (1, 2, 3, 4, None)), ((3, 1), (1, 2, 3, 4, None)), ((2, 2), (1, None)))
# Limits of the second operator and of batching.
OTHERS = (1, None)
# Seconds before and in the window of each pass, and how many of the fastest go on to the next.
PASSES = ((1.5, 2, 8), (2, 4, 3))


def grid(shape):
    """Every setting but the tuned one, which takes part anyway."""
    heavy, other = shape.heavy
    settings = []
    for (cores, workers), limits in MACHINES:
        for of_heavy, of_other, of_batch in itertools.product(limits, OTHERS, OTHERS):
            pins = ((heavy, of_heavy), (other, of_other), ("batch", of_batch))
            pins = tuple((name, limit) for name, limit in pins if limit is not None)
            # Nothing pinned on all cores is the tuned setting.
            if pins or (cores, workers) != (CORES, 1):
                settings.append(Setting(pins, cores, workers))
    return settings


def finalists(shape, feedline, again):
    """The fastest settings: those kept from an earlier search, unless `again`."""
    kept = rows.FOLDER / f"{shape.key}.json"
    if kept.exists() and not again:
        return [Setting(**{**each, "pins": tuple(map(tuple, each["pins"]))}) for each in json.loads(kept.read_text())["fastest"]]
    settings, tried = grid(shape), []
    for number, (after, seconds, best) in enumerate(PASSES):
        print(f"{shape.title}: search {number + 1}, {len(settings)} settings", file=sys.stderr, flush=True)
        rates = []
        for setting in settings:
            try:
                rates.append((feedline.rate(shape, setting, after, seconds), setting))
            except Failed as failure:
                print(f"  {setting.title()}: {failure}", file=sys.stderr, flush=True)
        rates.sort(key=lambda each: -each[0])
        tried.append([{"rate": rate, "setting": setting.title()} for rate, setting in rates])
        settings = [setting for _, setting in rates[:best]]
    fastest = [dataclasses.asdict(setting) for setting in settings]
    kept.write_text(json.dumps({"fastest": fastest, "tried": tried}, indent=1))
    return settings
