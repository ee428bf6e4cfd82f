"""Files stay small: a module is one idea."""

from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
LIMIT = 800


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_no_module_outgrows_a_readers_patience(path: Path):
    lines = len(path.read_text().splitlines())
    assert lines <= LIMIT, f"{path.name} has {lines} lines: which two ideas are in it?"
