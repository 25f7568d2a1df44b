"""Whether others use the cores: on a shared machine a turn that they disturbed is taken again.

What the chosen cores did in a time, less what the processes of the turn took, is others'.
"""

import os
import pathlib
import sys
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# The part of the cores that the kernel and what always runs may take.
ALLOWED = 0.08
TURNS = 3
LOOK_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 20


def busy_seconds():
    """CPU time of all that ran on this process's cores, what the hypervisor took from them included."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = (line.split() for line in pathlib.Path("/proc/stat").read_text().splitlines())
    # user nice system idle iowait irq softirq steal
    ticks = [list(map(int, line[1:9])) for line in lines if line and line[0] in cores]
    return sum(sum(each[:3]) + sum(each[5:]) for each in ticks) / TICKS_PER_SECOND


def own_seconds(process=None):
    """CPU time of this process, of those that it ran to their end, and of another that it measures."""
    own = sum(os.times()[:4])
    if process is None:
        return own
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return own + (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


class Watch:
    """What others take of the cores from now on."""

    def __init__(self, process=None):
        self.process = process
        self.begun = self.now()

    def now(self):
        return time.monotonic(), busy_seconds(), own_seconds(self.process)

    def others(self):
        """As a part of the cores."""
        passed, busy, own = (now - then for now, then in zip(self.now(), self.begun))
        return max(0.0, (busy - own) / passed / len(os.sched_getaffinity(0)))


def wait():
    """Waits until the others are quiet, or for a time."""
    end = time.monotonic() + LONGEST_WAIT_SECONDS
    while time.monotonic() < end:
        watch = Watch()
        time.sleep(LOOK_SECONDS)
        if watch.others() <= ALLOWED:
            return


def undisturbed(turn, title):
    """What a `turn` gave, a rate with the part of others; the least disturbed of several where all were."""
    taken = []
    for _ in range(TURNS):
        wait()
        taken.append(turn())
        if taken[-1][1] <= ALLOWED:
            return taken[-1]
    least = min(taken, key=lambda each: each[1])
    print(f"  {title}: others took {100 * least[1]:.0f} % of the cores", file=sys.stderr, flush=True)
    return least
