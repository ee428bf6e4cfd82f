"""An exception from a rule of the linter or of mypy names the rule and says why, at its place.

mypy reads `src` and nothing else, so a note to it that stands elsewhere says nothing to anybody.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "bench", "examples", "docs")
EXPLAINED = re.compile(r"# noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* - \w.*")
TYPED = re.compile(r"# type: ignore\[[a-z, -]+\]  # \w.*")


def comments(source: str) -> list[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def unexplained(source: str) -> list[tuple[int, str]]:
    """Line and text of the exceptions that say nothing, or not what they except from."""
    return [
        (line, text)
        for line, text in comments(source)
        if ("noqa" in text and not EXPLAINED.search(text))
        or ("type: ignore" in text and not TYPED.search(text))
    ]


def test_every_exception_from_the_linter_says_why() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(paths)
        for line, text in unexplained(path.read_text())
    ]
    forms = "`# noqa: RULE - reason`, or `# type: ignore[rule]  # reason`"
    assert not found, f"write {forms}:\n" + "\n".join(found)


def test_notes_to_mypy_stand_where_mypy_reads_them() -> None:
    paths = [path for folder in FOLDERS[1:] for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(paths)
        for line, text in comments(path.read_text())
        if "type: ignore" in text
    ]
    assert not found, "mypy reads only src:\n" + "\n".join(found)


def test_a_bare_one_and_one_without_words_are_found() -> None:
    source = "\n".join(
        (
            "a = 1  # noqa",
            "b = 2  # noqa: C901",
            "c = 3  # noqa: C901, PLR0912 -",
            "d = 4  # noqa: C901, PLR0912 - one branch for each kind of record",
            "e = '# noqa'",
            "f = 6  # type: ignore",
            "g = 7  # type: ignore[misc]",
            "h = 8  # type: ignore[misc]  # kazoo has no types",
        )
    )
    assert [line for line, _text in unexplained(source)] == [1, 2, 3, 6, 7]
