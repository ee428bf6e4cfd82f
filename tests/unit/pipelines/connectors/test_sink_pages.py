"""What the pages of the sinks show can be written in a pipeline's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.option import Kind
from ottla.testing.connectors import made

PAGES = Path(__file__).parents[4] / "docs" / "pipelines" / "sinks"
NAMES = ("console.md", "files.md", "http.md", "postgres.md", "python.md", "spark.md")
NAMES += ("sqlite.md", "topic.md")


def test_every_sink_has_its_page_and_its_table_of_options():
    there = {path.name for path in PAGES.glob("*.md")}
    assert there == {f"{name}.md" for name in catalog.SINKS} == set(NAMES)
    for name in catalog.SINKS:
        text = (PAGES / f"{name}.md").read_text()
        assert f"<!-- options: sink {name} -->\n" in text


@pytest.mark.parametrize("page", NAMES)
def test_what_a_page_shows_is_a_sink(page: str):
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        [(name, options)] = yaml.safe_load(block)["sink"].items()
        declaration = catalog.sink(name)
        kinds = {option.name: option.kind for option in declaration.options}
        given = {key: as_read(kinds[key], value) for key, value in options.items()}
        needed = {option.name for option in declaration.options if option.required}
        assert needed <= given.keys()
        sink = made(declaration, **given)
        for method in ("prepare", "write", "probe"):
            assert callable(getattr(sink, method))


def as_read(kind: Kind, value: Any) -> Any:
    return [value] if kind is Kind.LIST and isinstance(value, str) else value
