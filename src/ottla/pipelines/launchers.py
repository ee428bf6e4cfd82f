"""Small programs that stand before others: kept in the user's cache folder, written once.

Spark starts Java and Python by a path and with words of its own choosing. Where one of those words
is in the way, a launcher takes it out and becomes the program that was meant.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def launcher(place: str, text: str, environ: Mapping[str, str]) -> Path:
    """The path of a program with this text, at `place` below our cache folder."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "ottla" / place
    try:
        if path.read_text() == text and os.access(path, os.X_OK):
            return path
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: another process may start Spark at this moment.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o755)
    os.replace(file.name, path)
    return path
