"""Reads the number of delivered rows of a running `feedline run` from its metrics."""

import http.client
import re
import socket
import time

ROWS_DELIVERED = re.compile(rb"^feedline_client_rows_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)
# Interval between two reads of the metrics. It is short, so that a rate covers whole batches.
LOOK_SECONDS = 0.005
LONGEST_WAIT_SECONDS = 60


class Ended(Exception):
    """The process exited or delivers no rows. The exception contains its last output."""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Delivered:
    """Reads the delivered rows of a process that serves metrics on a local port. Errors contain its standard error if it is a pipe."""

    def __init__(self, process, port):
        self.process = process
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT_SECONDS)

    def look(self):
        """Returns the number of delivered rows, or None if the process does not answer."""
        if self.process.poll() is not None:
            said = self.process.stderr.read() if self.process.stderr else ""
            complaint = said.strip().splitlines()
            raise Ended((complaint or [f"exit status {self.process.returncode}"])[-1])
        try:
            self.connection.request("GET", "/metrics")
            found = ROWS_DELIVERED.search(self.connection.getresponse().read())
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return None
        return int(found[1]) if found else 0

    def next_change(self, not_before):
        """Returns the time of the first batch after a given time, and the number of rows delivered until this batch."""
        time.sleep(max(0, not_before - time.monotonic()))
        before = None
        while time.monotonic() < not_before + LONGEST_WAIT_SECONDS:
            now = self.look()
            if None not in (before, now) and now != before:
                return time.monotonic(), now
            before = now if before is None else before
            time.sleep(LOOK_SECONDS)
        raise Ended(f"no batch arrived for {LONGEST_WAIT_SECONDS} s")
