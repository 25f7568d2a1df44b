"""Limits that a measurement is held to: a mark in its table where one is missed, and a sentence and the exit status at its end."""

import sys


class Limits:
    """Those that were missed."""

    def __init__(self):
        self.missed = []

    def mark(self, is_kept, missed):
        """What stands behind a figure: nothing where its limit is kept, else a mark, and the sentence tells of what was missed."""
        if is_kept:
            return ""
        self.missed.append(missed)
        return " **!**"

    def end(self):
        """Where something was missed, says what and exits with status 1."""
        if self.missed:
            print(f"\nMissed: {'; '.join(self.missed)}.")
            sys.exit(1)
