"""An exception from a rule of the linter names the rule, and says why in words, at its place."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "bench", "examples", "docs")
EXPLAINED = re.compile(r"# noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* - \w.*")


def unexplained(source: str) -> list[tuple[int, str]]:
    """Line and text of the exceptions that say nothing, or not what they except from."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [
        (token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT
    ]
    return [
        (line, text) for line, text in comments if "noqa" in text and not EXPLAINED.search(text)
    ]


def test_every_exception_from_the_linter_says_why() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(paths)
        for line, text in unexplained(path.read_text())
    ]
    assert not found, "write `# noqa: RULE - reason`:\n" + "\n".join(found)


def test_a_bare_one_and_one_without_words_are_found() -> None:
    source = "\n".join(
        (
            "a = 1  # noqa",
            "b = 2  # noqa: C901",
            "c = 3  # noqa: C901, PLR0912 -",
            "d = 4  # noqa: C901, PLR0912 - one branch for each kind of record",
            "e = '# noqa'",
        )
    )
    assert [line for line, _text in unexplained(source)] == [1, 2, 3]
