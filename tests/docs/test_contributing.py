"""CONTRIBUTING.md names what is there: targets of make, files, programs, rules of the linter."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("CONTRIBUTING.md", "tests/README.md", "README.md", "docs/compatibility.md")
LIMITS = {"C901", "PLR0911", "PLR0912", "PLR0913", "PLR0915"}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_every_target_that_a_page_names_is_one(page: str) -> None:
    named = set(re.findall(r"`make ([a-z]+)", (ROOT / page).read_text()))
    assert named <= targets()


def test_every_target_is_declared_and_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    [declared] = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    explained = re.findall(r"^([a-z]+):.* ## \w", text, re.MULTILINE)
    assert sorted(declared.split()) == sorted(explained) == sorted(targets())


def test_every_path_that_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:src|tests|docs|bench)/[\w./-]*)`", text)
    named += re.findall(r"pytest (tests/[\w./]+)", text)
    named += [
        f"src/ottla/{path}" for path in re.findall(r"`((?:protocol|handlers)/\w+\.py)`", text)
    ]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_programs_of_make_lint_are_those_that_contributing_names() -> None:
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    programs = re.findall(r"\$\(BIN\)/(\S+)", lint)
    assert programs == ["ruff", "ruff", "mypy", "lint-imports"]


def test_the_limits_on_functions_are_on() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    on = tuple(settings["select"])
    assert all(rule.startswith(on) for rule in LIMITS)
    assert not LIMITS & set(settings["ignore"])
