"""Marks the missed targets of a measurement in its table. Lists them at the end and exits with status 1."""

import sys


class Limits:
    """The missed targets of a measurement."""

    def __init__(self):
        self.missed = []

    def mark(self, is_met, missed):
        """Returns the mark for a table cell, and records `missed` as a missed target if it is not met."""
        if is_met:
            return ""
        self.missed.append(missed)
        return " **!**"

    def end(self):
        """Prints the missed targets and exits with status 1 if there are any."""
        if self.missed:
            print(f"\nMissed: {'; '.join(self.missed)}.")
            sys.exit(1)
