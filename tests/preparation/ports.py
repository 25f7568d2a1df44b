"""Loopback ports for programs that do not report theirs."""

import itertools
import os
import socket

# Ports that Linux does not give to outgoing connections, so that nothing else takes one before the program listens, or while it is
# stopped. The tests in Rust and of Kafka have the lower ports; a process begins at a place of its own.
SHARED = range(10_000, 32_000)
STORES = range(61_000, 63_000)
MONITORING = range(63_000, 65_000)
PORTS_OF_A_PROCESS = 100


class Ports:
    """The free ports of a range. No port is returned twice."""

    def __init__(self, ports: range):
        first = os.getpid() * PORTS_OF_A_PROCESS
        self._next = (ports[(first + used) % len(ports)] for used in itertools.count())

    def take(self, count: int) -> list[int]:
        return list(itertools.islice(filter(_is_free, self._next), count))


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
