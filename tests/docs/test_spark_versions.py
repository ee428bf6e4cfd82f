"""Which versions of Spark there are a source and a sink for, and which of them were tried."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRA = PROJECT["project"]["optional-dependencies"]["pipelines"]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def requirement(name: str) -> str:
    [found] = [each for each in EXTRA if re.match(rf"{name}\b", each)]
    return str(found)


def tried(name: str) -> tuple[list[str], str]:
    """The versions of a library in the table of the page, the oldest first, and its bounds."""
    page = (ROOT / "docs" / "spark.md").read_text()
    found = re.search(rf"^\| {name} \| ([\d.]+) \| ([\d.]+) \| `(.*?)` \|$", page, re.MULTILINE)
    assert found is not None, f"the versions of {name} are not in docs/spark.md"
    return [found[1], found[2]], found[3]


def locked(name: str) -> set[tuple[int, ...]]:
    """The versions of a library that `make setup` may install."""
    lock = (ROOT / "uv.lock").read_text()
    found = re.findall(rf'^name = "{name}"\nversion = "([\d.]+)"', lock, re.MULTILINE)
    return {numbers(each) for each in found}


def test_a_new_minor_version_of_pyspark_is_not_taken_unseen() -> None:
    bounds = re.fullmatch(r"pyspark>=([\d.]+),<([\d.]+)", requirement("pyspark"))
    assert bounds is not None, "pyspark has no upper bound"
    newest = numbers(version("pyspark"))
    assert numbers(bounds[1]) <= newest
    assert numbers(bounds[2]) == (newest[0], newest[1] + 1), "the bound is not what was tried"


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "numpy"])
def test_the_page_says_what_was_tried(name: str) -> None:
    versions, bounds = tried(name)
    assert f"{name}{bounds}" == requirement(name)
    lowest = re.search(r">=([\d.]+)", bounds)
    assert lowest is not None
    # `make interop` tries the lower bound itself, `make test` what is installed; which version that
    # is may depend on the Python.
    assert (*numbers(lowest[1]), 0)[:2] == numbers(versions[0])
    assert max(locked(name)) == numbers(versions[1])
    assert numbers(version(name)) in locked(name)


def test_the_oldest_versions_are_part_of_make_interop() -> None:
    assert "-m bench.spark.oldest" in (ROOT / "Makefile").read_text()
