"""Marks the missed goals of a measurement in its table. Lists them at the end and exits with status 1."""

import sys


class Limits:
    """The missed goals of a measurement."""

    def __init__(self):
        self.missed = []

    def mark(self, is_met, missed):
        """Returns the mark for a table cell, and records `missed` as a missed goal if the goal is not met."""
        if is_met:
            return ""
        self.missed.append(missed)
        return " **!**"

    def end(self):
        """Prints the missed goals and exits with status 1 if there are any."""
        if self.missed:
            print(f"\nMissed: {'; '.join(self.missed)}.")
            sys.exit(1)
