"""Detects whether other programs use the cores, and repeats disturbed rounds.

The CPU time of other programs is the CPU time of the cores minus the CPU time of the measured processes.
"""

import os
import pathlib
import sys
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Share of the cores that the kernel and background programs may use.
ALLOWED = 0.08
TURNS = 3
LOOK_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 20


def busy_seconds():
    """Returns the CPU time of this process's cores, including the time that the hypervisor took from them."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = (line.split() for line in pathlib.Path("/proc/stat").read_text().splitlines())
    # user nice system idle iowait irq softirq steal
    ticks = [list(map(int, line[1:9])) for line in lines if line and line[0] in cores]
    return sum(sum(each[:3]) + sum(each[5:]) for each in ticks) / TICKS_PER_SECOND


def own_seconds(process=None):
    """Returns the CPU time of this process, of its finished children, and of another measured process."""
    own = sum(os.times()[:4])
    if process is None:
        return own
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return own + (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


class Watch:
    """Measures the CPU time that other programs use after this object is created."""

    def __init__(self, process=None):
        self.process = process
        self.begun = self.now()

    def now(self):
        return time.monotonic(), busy_seconds(), own_seconds(self.process)

    def others(self):
        """Returns the CPU time of other programs as a share of the cores."""
        passed, busy, own = (now - then for now, then in zip(self.now(), self.begun))
        return max(0.0, (busy - own) / passed / len(os.sched_getaffinity(0)))


def wait():
    """Waits until other programs are idle, or until a time limit."""
    end = time.monotonic() + LONGEST_WAIT_SECONDS
    while time.monotonic() < end:
        watch = Watch()
        time.sleep(LOOK_SECONDS)
        if watch.others() <= ALLOWED:
            return


def undisturbed(turn, title):
    """Returns the rate of `turn` and the share of the cores that other programs used. Repeats disturbed rounds, and returns the least disturbed one."""
    taken = []
    for _ in range(TURNS):
        wait()
        taken.append(turn())
        if taken[-1][1] <= ALLOWED:
            return taken[-1]
    least = min(taken, key=lambda each: each[1])
    print(f"  {title}: other programs used {100 * least[1]:.0f} % of the cores", file=sys.stderr, flush=True)
    return least
