"""Spark's masters: which of them run tasks elsewhere, and how this machine reaches one.

Executors call the driver back. Spark gives them the address of this machine's name, which on a
machine with several networks, or with its name in /etc/hosts, may be one that they cannot reach.
The address from which this machine reaches the master is a better one: whoever sees the master
sees it.
"""

from __future__ import annotations

import re
import socket
from typing import Final

STANDALONE: Final = "spark://"
_MASTER: Final = re.compile(
    r"local|local\[(?:\*|\d+)\s*(?:,\s*\d+)?\]|local-cluster\[.+\]|yarn|k8s://.+"
    r"|spark://(?:[^\s,:/]+|\[[0-9A-Fa-f:.]+\]):\d+(?:,(?:[^\s,:/]+|\[[0-9A-Fa-f:.]+\]):\d+)*"
)


def is_master(master: str) -> bool:
    """Whether Spark knows such a master."""
    return _MASTER.fullmatch(master) is not None


def is_remote(master: str) -> bool:
    """Whether tasks of this master run on other machines."""
    return not master.startswith("local")


def addresses(master: str) -> list[tuple[str, int]]:
    """Where a standalone master listens; several with standby masters, none for other kinds."""
    if not master.startswith(STANDALONE):
        return []
    found = []
    for each in master.removeprefix(STANDALONE).split(","):
        host, _, port = each.rpartition(":")
        found.append((host.strip("[]"), int(port)))
    return found


def own_address(master: str, timeout: float) -> str | None:
    """The address of this machine from which it reaches the master; None where nobody can say.

    OSError if the master cannot be reached; of standby masters, one is enough.
    """
    failure: OSError | None = None
    for address in addresses(master):
        try:
            with socket.create_connection(address, timeout) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return None
