"""Ports for the servers of tests."""

from __future__ import annotations

import socket
import subprocess
import sys

from ottla.testing.process import BLOCK, PORTS, free_port

CHOOSE = "from ottla.testing.process import free_port; print(free_port(), flush=True); input()"


def block(port: int) -> int:
    return (port - PORTS.start) // BLOCK


def test_no_port_is_given_twice_in_a_while() -> None:
    given = [free_port() for _ in range(BLOCK // 4)]
    assert len(set(given)) == len(given)
    assert set(given) <= set(PORTS)


def test_ports_of_a_row_are_not_given_to_others() -> None:
    first = free_port(row=5)
    others = {free_port() for _ in range(20)} | {free_port(row=3)}
    assert not others & set(range(first, first + 5))


def test_what_is_taken_is_passed_over() -> None:
    first = free_port()
    following = range(first + 1, first + 3)
    with socket.socket() as one, socket.socket() as two:
        for taken, port in zip((one, two), following, strict=True):
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
        assert free_port(row=2) not in range(first, first + 3)


def test_another_process_chooses_from_another_block() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHOOSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert block(port) != block(free_port())
        other.communicate("\n")
