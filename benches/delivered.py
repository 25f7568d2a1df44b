"""The rows that a running `feedline run` has delivered, by what its metrics say."""

import http.client
import re
import socket
import time

ROWS_DELIVERED = re.compile(rb"^feedline_client_rows_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)
# Looks are close where a batch's arrival is awaited, so that a rate counts whole batches over the time between two of them.
LOOK_SECONDS = 0.005
LONGEST_WAIT_SECONDS = 60


class Ended(Exception):
    """The process ended, or gives nothing; with its last words."""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Delivered:
    """The rows of a process that serves metrics on a port of this machine, and its standard error where that is a pipe."""

    def __init__(self, process, port):
        self.process = process
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT_SECONDS)

    def look(self):
        """Their number; None where the process does not answer."""
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
        """The time of the first arrival after a time, and the rows by then."""
        time.sleep(max(0, not_before - time.monotonic()))
        before = None
        while time.monotonic() < not_before + LONGEST_WAIT_SECONDS:
            now = self.look()
            if None not in (before, now) and now != before:
                return time.monotonic(), now
            before = now if before is None else before
            time.sleep(LOOK_SECONDS)
        raise Ended(f"no batch came for {LONGEST_WAIT_SECONDS} s")
