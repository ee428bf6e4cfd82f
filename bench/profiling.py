"""Where the broker's time went, when it was started under cProfile."""

from __future__ import annotations

import pstats
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN = 40


def show(folder: Path) -> None:
    """Print the functions that took the most time by themselves, over all sessions."""
    files = sorted(str(file) for file in folder.glob("*.prof") if file.stat().st_size)
    if not files:
        print("no profile was written: the broker did not end by itself")
        return
    statistics = pstats.Stats(files[0])
    statistics.add(*files[1:])
    statistics.strip_dirs().sort_stats("tottime").print_stats(_SHOWN)
