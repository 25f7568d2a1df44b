"""The exhaustive search over what a user can set: every setting runs for a short time, the fastest again for longer.

What it found is kept beside the rows, so that with --go-on a search that was stopped goes on.
"""

import itertools
import statistics

import kept
from places import Failed
from running import CORES, Setting

# Cores and workers, and the limits of the costliest operator there: one core runs one at a time anyway.
MACHINES = (((1, 1), (1, None)), ((2, 1), (1, 2, 3, 4, None)), ((3, 1), (1, 2, 3, 4, None)), ((2, 2), (1, None)))
# Limits of the second operator and of batching.
OTHERS = (1, None)
# Seconds before and in the window of each pass, and how many of the fastest go on to the next.
PASSES = ((1, 1.5, 6), (1.5, 3, 2))


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


def finalists(shape, feedline, say):
    """The fastest settings."""
    settings = grid(shape)
    for number, (after, seconds, best) in enumerate(PASSES, 1):
        found = kept.Turns(shape, f"search{number}")
        rates = []
        for setting in settings:
            try:
                rate = found.get(setting.title(), lambda: feedline.rate(shape, setting, after, seconds))
                rates.append((rate, setting))
            except Failed as failure:
                say(f"  {setting.title()}: {failure}")
        if not rates:
            raise Failed("no setting runs")
        rates.sort(key=lambda each: -each[0])
        middle = statistics.median(rate for rate, _ in rates)
        say(f"{shape.title}: search {number}, {len(rates)} settings, median {middle:.0f}, best {rates[0][0]:.0f}: {rates[0][1].title()}")
        settings = [setting for _, setting in rates[:best]]
    return settings
