"""The pages about a pipeline's file: what they show is valid, and their tables are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.pipelines import Pipeline
from ottla.pipelines.connectors import catalog, reference
from ottla.pipelines.connectors.spec.check import read_text
from ottla.pipelines.connectors.spec.json_schema import json_schema

PAGES = Path(__file__).parents[4] / "docs" / "pipelines"
NAMES = ("index.md", "errors.md", "from-kafka-connect.md")
TYPED = re.compile(r"<!-- typed: begin \S+/test_file_pages\.py -->\n(.*?)<!-- typed: end -->", re.S)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ENVIRONMENT = {"PG_DSN": "postgresql://shop:secret@127.0.0.1/shop"}


def blocks(page: str) -> list[tuple[str, str]]:
    text = (PAGES / page).read_text()
    return [block for typed in TYPED.findall(text) for block in BLOCK.findall(typed)]


@pytest.mark.parametrize("page", NAMES)
def test_what_a_page_shows_is_a_pipeline(page: str, tmp_path: Path) -> None:
    shown = blocks(page)
    for language, text in shown:  # modules first, since files name them
        if language == "python" and text.startswith("# "):
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    for language, text in shown:
        if language == "yaml":
            assert read_text(text, ENVIRONMENT, tmp_path).name
        elif "Pipeline(" in text:
            scope: dict[str, object] = {}
            exec(text, scope)
            assert isinstance(scope["pipeline"], Pipeline)


@pytest.mark.parametrize("path", sorted(PAGES.rglob("*.md")), ids=lambda path: str(path.name))
def test_the_tables_of_options_are_current(path: Path) -> None:
    page = path.read_text()
    assert reference.filled(page) == page, "run: make docs"


def test_every_part_of_the_file_has_its_table() -> None:
    text = "".join(path.read_text() for path in PAGES.rglob("*.md"))
    for part in ("file", "on_error", "retry", "stop_at", "test"):
        assert f"<!-- options: {part} -->" in text
    assert (
        "ottla.pipelines.connectors.reference docs/pipelines"
        in (PAGES.parents[1] / "Makefile").read_text()
    )


def test_the_schema_knows_every_source_sink_and_option() -> None:
    found = json_schema()["properties"]
    for part, known, load in (
        ("source", catalog.SOURCES, catalog.source),
        ("sink", catalog.SINKS, catalog.sink),
    ):
        named = found[part]["anyOf"][1]["properties"]
        assert list(named) == list(known)
        for name in known:
            options = named[name]["anyOf"][0]["properties"]
            assert list(options) == [option.name for option in load(name).options]
