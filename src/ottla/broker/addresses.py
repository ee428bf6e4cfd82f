"""The error message when the broker cannot listen where it was told to."""

from __future__ import annotations

import errno
import socket

_OTHER = (
    "choose another address: --listen, listeners in the file, --base-port of `ottla cluster up`"
)


def not_bound(host: str, port: int, error: OSError | UnicodeError, other: str = _OTHER) -> str:
    """One line: which address, why not, and what to do about it (`other` says how to choose
    another)."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"cannot listen on {address}: {_advice(host, port, error, other)}"


def _advice(host: str, port: int, error: OSError | UnicodeError, other: str) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return (
            f"{host} is not the name of a machine; listen on an address of this one, as 127.0.0.1, "
            f"or on all of them, as 0.0.0.0"
        )
    match error.errno:
        case errno.EADDRINUSE:
            return f"another program uses this port; stop it, or {other}"
        case errno.EADDRNOTAVAIL:
            return (
                f"this machine has no such address; listen on one that it has, or on all of them "
                f"(0.0.0.0), and tell clients {host} with --advertise"
            )
        case errno.EACCES:
            return f"this user may not use port {port}, one below 1024; {other}"
    return f"{error.strerror or error}; {other}"
