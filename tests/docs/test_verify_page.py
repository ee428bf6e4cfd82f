"""The page about `ottla verify` lists the faults and the checks that there are."""

from __future__ import annotations

import re
from pathlib import Path

from ottla.verify.checks import promises
from ottla.verify.faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"


def table(heading: str) -> dict[str, str]:
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE))


def test_every_fault_is_on_the_page_in_its_own_words() -> None:
    found = table("On a cluster that is broken on purpose")
    assert found == {kind.name: kind.about for kind in FAULTS}


def test_every_check_is_on_the_page_in_its_own_words() -> None:
    assert table("What is checked") == promises()
