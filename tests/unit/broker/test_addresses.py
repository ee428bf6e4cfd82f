"""What is said when an address cannot be bound."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from ottla.broker.addresses import not_bound


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(-2, "Name or service not known"), "box is not the name of a machine"),
        (errno.EADDRINUSE, "another program uses this port; stop it, or choose another"),
        (errno.EADDRINUSE, "--base-port of `ottla cluster up`"),
        (errno.EADDRNOTAVAIL, "this machine has no such address"),
        (errno.EACCES, "this user may not use port 80, one below 1024"),
        (errno.ENOBUFS, "No buffer space available; choose another"),
    ],
)
def test_each_reason_has_its_own_advice(error: OSError | int, said: str) -> None:
    if isinstance(error, int):
        error = OSError(error, os.strerror(error))
    line = not_bound("box", 80, error)
    assert line.startswith("cannot listen on box:80: ")
    assert said in line


def test_an_ipv6_address_is_in_brackets() -> None:
    error = OSError(errno.EADDRINUSE, "Address already in use")
    assert not_bound("::1", 9092, error).startswith("cannot listen on [::1]:9092: ")
