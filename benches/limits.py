"""Goals of a measurement: marks missed goals in its table, and lists them at the end with exit status 1."""

import sys


class Limits:
    """The missed goals."""

    def __init__(self):
        self.missed = []

    def mark(self, is_met, missed):
        """Returns the mark after a value: empty if the goal is met, else a mark, and adds `missed` to the list of missed goals."""
        if is_met:
            return ""
        self.missed.append(missed)
        return " **!**"

    def end(self):
        """If goals were missed, prints them and exits with status 1."""
        if self.missed:
            print(f"\nMissed: {'; '.join(self.missed)}.")
            sys.exit(1)
