"""Whether an address is free, and the error message when a broker cannot listen there."""

from __future__ import annotations

import errno
import socket

_OTHER = (
    "choose another address: --listen, listeners in the file, --base-port of `ottla cluster up`"
)


def why_not_free(host: str, port: int, other: str) -> str | None:
    """Why nobody can listen there now, with `other` as what to do; None when somebody can."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        return not_bound(host, port, error, other)
    return None


def not_bound(host: str, port: int, error: OSError | UnicodeError, other: str = _OTHER) -> str:
    """One line: which address, why not, and what to do about it."""
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
