"""Every command and program on a page is typed by a test, or says why it is not.

A block of code is accounted for in one of three ways:

- It is part of a tour (`<!-- tour: begin -->` … `<!-- tour: end -->`), which test_tour.py types.
- It stands between `<!-- typed: begin tests/…/test_x.py -->` and `<!-- typed: end -->`, and that
  test types it.
- The line before it is `<!-- not typed: REASON -->`.
"""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "reference"  # from docstrings and help, which have tests of their own
TYPED = {"sh", "bash", "console", "python", "sql", "yaml"}
READ = {"text", "properties"}

WHAT_TO_DO = (
    "put it between `<!-- tour: begin -->` and `<!-- tour: end -->` (tests/docs/test_tour.py), or "
    "between `<!-- typed: begin tests/…/test_x.py -->` and `<!-- typed: end -->` if that test "
    "types it, or put `<!-- not typed: the reason -->` on the line before it"
)


class Block(NamedTuple):
    """A block of code, and what the comments of its page say about who types it."""

    line: int
    language: str
    in_tour: bool
    typed_by: str | None
    why_not: str | None


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    found = [ROOT / name for name in names if name] or [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        ROOT / "tests" / "README.md",
    ]
    return sorted(path for path in found if path.exists() and path.parent != GENERATED)


@functools.cache
def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    in_tour, typed_by, why_not, fence = False, None, None, False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        text = line.strip()
        place = f"{page.relative_to(ROOT)}:{number}"
        if text.startswith("```"):
            fence = not fence
            if fence:
                found.append(Block(number, text.removeprefix("```"), in_tour, typed_by, why_not))
                why_not = None
        elif not fence and text:
            assert why_not is None, f"{place}: there is no block behind `not typed`"
            if text.startswith("<!-- tour: begin"):
                in_tour = True
            elif text == "<!-- tour: end -->":
                in_tour = False
            elif text == "<!-- typed: end -->":
                assert typed_by, f"{place}: nothing to end"
                typed_by = None
            elif named := re.fullmatch(r"<!-- typed: begin (\S+) -->", text):
                assert typed_by is None, f"{place}: one inside of another"
                typed_by = named[1]
            elif reason := re.fullmatch(r"<!-- not typed: (.+) -->", text):
                why_not = reason[1]
            else:
                assert not re.match(r"<!-- (not )?typed", text), f"{place}: {text} means nothing"
    assert typed_by is None, f"{page.relative_to(ROOT)}: `typed: begin` has no end"
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_typed_by_a_test_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        place = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language in READ:
            assert block.why_not is None, f"{place}: a block of {block.language} is never typed"
            continue
        assert block.language in TYPED, (
            f"{place}: {block.language or 'no language'}? Name one of {sorted(TYPED | READ)}"
        )
        ways = [block.in_tour, block.typed_by is not None, block.why_not is not None]
        assert any(ways), f"{place}: no test types this block: {WHAT_TO_DO}"
        assert not (block.in_tour and block.why_not), f"{place}: it is typed, as part of the tour"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_tests_that_a_page_names_read_it(page: Path) -> None:
    for name in {block.typed_by for block in blocks(page)} - {None}:
        assert name is not None
        test = ROOT / name
        assert test.is_file(), f"{page.name} names {name}, which does not exist"
        reads_it = page.name in test.read_text() or test.name == "test_tour.py"
        assert reads_it, f"{name} does not read {page.name}"
