"""docs/reliability.md: what it promises of several brokers is tested, cell by cell."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
TESTS = ROOT / "tests" / "system" / "test_cluster_promises.py"
NOTHING = "nothing"


@pytest.fixture(scope="module")
def promises() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cluster_promises", TESTS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, line by line; the header is the first."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1]
    table = section.split("\n|", 1)[1].split("\n\n", 1)[0]
    lines = [line.strip("|").split(" | ") for line in f"|{table}".splitlines()]
    return [[cell.strip() for cell in line] for line in lines if not set(line[0]) <= {"-", "|"}]


def test_every_cell_that_promises_something_has_its_test(promises: ModuleType) -> None:
    header, *rows = rows_below("Several brokers")
    assert header[1:] == list(promises.COLUMNS)
    promised = {
        (row[0], column)
        for row in rows
        for column, cell in zip(header[1:], row[1:], strict=True)
        if cell.startswith(NOTHING)
    }
    assert promised == set(promises.PROMISES)


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert named
    for path, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (path, name)
