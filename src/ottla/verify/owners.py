"""Which process has connected: looked up in Linux's tables of connections and descriptors."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_CONNECTIONS = "/proc/net/tcp"
_LOOPBACK = f"{int.from_bytes(bytes([127, 0, 0, 1]), sys.byteorder):08X}"


def owner_of(port: int, target: int, processes: Mapping[str, int]) -> str | None:
    """The name of that of these processes whose connection goes from one port of 127.0.0.1 to
    another. Connections to other ports may come from the same one."""
    inode = _inode_of(port, target)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for name, process in processes.items():
        folder = f"/proc/{process}/fd"
        try:
            descriptors = os.listdir(folder)
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                if os.readlink(f"{folder}/{descriptor}") == wanted:
                    return name
            except OSError:
                continue
    return None


def _inode_of(port: int, target: int) -> str | None:
    ends = [f"{_LOOPBACK}:{port:04X}", f"{_LOOPBACK}:{target:04X}"]
    with open(_CONNECTIONS, encoding="ascii") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[1:3] == ends and fields[9] != "0":
                return fields[9]
    return None
