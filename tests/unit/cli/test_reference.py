from __future__ import annotations

from pathlib import Path

from ottla.cli.reference import render

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == render(), (
        "run: python -m ottla.cli.reference > docs/reference/cli.md"
    )


def test_every_command_is_on_the_page() -> None:
    page = render()
    for command in (
        "ottla server start",
        "ottla topic create",
        "ottla topic list",
        "ottla topic describe",
        "ottla topic alter",
        "ottla topic delete",
        "ottla produce",
        "ottla consume",
        "ottla log dump",
        "ottla completion",
    ):
        assert f"\n## {command}\n" in page


def test_what_prints_json_says_which_fields() -> None:
    for section in render().split("\n## ")[1:]:
        if "--json" in section.partition("\n")[2]:
            assert "JSON" in section.partition("Options:")[0], section.partition("\n")[0]
