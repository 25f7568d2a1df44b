"""An exhaustive search over the settings that a user can fix.

All settings run for a short time, and the fastest settings run again for a longer time. The results are stored next to the
rows, so that --go-on continues an interrupted search.
"""

import itertools
import statistics

import saved_rounds
from paths import Failed
from running import CORES, Setting

# Cores and workers, with the limits of the most expensive operator. One core needs fewer limits, because it runs one execution at a
# time anyway.
MACHINES = (((1, 1), (1, None)), ((2, 1), (1, 2, 3, 4, None)), ((3, 1), (1, 2, 3, 4, None)), ((2, 2), (1, None)))
# Limits of the second most expensive operator and of batching.
OTHER_LIMITS = (1, None)
# For each pass: seconds before the measured window, seconds of the window, and number of settings that continue to the next pass.
PASSES = ((1, 1.5, 6), (1.5, 3, 2))


def grid(shape):
    """Returns all settings except the tuned setting, which is measured anyway."""
    heavy, other = shape.heavy
    settings = []
    for (cores, workers), limits in MACHINES:
        for heavy_limit, other_limit, batch_limit in itertools.product(limits, OTHER_LIMITS, OTHER_LIMITS):
            pins = ((heavy, heavy_limit), (other, other_limit), ("batch", batch_limit))
            pins = tuple((name, limit) for name, limit in pins if limit is not None)
            # Skip the tuned setting, which uses all cores without limits.
            if pins or (cores, workers) != (CORES, 1):
                settings.append(Setting(pins, cores, workers))
    return settings


def finalists(shape, feedline, say):
    """Returns the fastest settings after all passes of the search."""
    settings = grid(shape)
    for number, (after, seconds, best) in enumerate(PASSES, 1):
        found = saved_rounds.SavedRounds(shape, f"search{number}")
        rates = []
        for setting in settings:
            try:
                rate = found.get(setting.title(), lambda: feedline.rate(shape, setting, after, seconds))
                rates.append((rate, setting))
            except Failed as failure:
                say(f"  {setting.title()}: {failure}")
        if not rates:
            raise Failed("all settings failed")
        rates.sort(key=lambda each: -each[0])
        middle = statistics.median(rate for rate, _ in rates)
        say(f"{shape.title}: search {number}, {len(rates)} settings, median {middle:.0f}, best {rates[0][0]:.0f}: {rates[0][1].title()}")
        settings = [setting for _, setting in rates[:best]]
    return settings
