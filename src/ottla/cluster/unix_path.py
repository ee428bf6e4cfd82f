"""Paths of Unix sockets: the system takes a hundred characters, a data folder may have more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 100


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """The same file under a path that is short enough, for as long as it is needed."""
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
