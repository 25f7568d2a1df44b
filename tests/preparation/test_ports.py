"""Tests of free ports."""

import socket

from preparation.ports import SHARED, Ports


def test_a_port_that_is_used_is_left_out_and_none_is_returned_twice():
    [first] = Ports(SHARED).take(1)
    with socket.create_server(("127.0.0.1", first)):
        ports = Ports(SHARED)
        taken = ports.take(20) + ports.take(20)
    assert len(set(taken)) == 40
    assert first not in taken
    assert all(port in SHARED for port in taken)
