"""The pages of the sources: postgres.md, sqlite.md, files.md, topic.md, http.md and the others.

Every example on them is a source that can be made, and every source has its page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.option import Kind

PAGES = Path(__file__).parents[4] / "docs" / "pipelines" / "sources"
TYPED = ("postgres.md", "sqlite.md", "files.md", "topic.md", "http.md", "generator.md", "spark.md")


def test_every_source_has_its_page_and_a_place_for_its_options() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(catalog.SOURCES)
    for name in catalog.SOURCES:
        assert f"<!-- options: source {name} -->" in (PAGES / f"{name}.md").read_text()


def examples() -> list[Any]:
    found = []
    for page in TYPED:
        blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
        assert blocks, page
        found += [pytest.param(block, id=f"{page}-{at}") for at, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize("block", examples())
def test_the_examples_can_be_made(block: str) -> None:
    ((name, given),) = yaml.safe_load(block)["source"].items()
    declaration = catalog.source(name)
    options = {option.name: option for option in declaration.options}
    assert set(given) <= set(options), "an option that is not declared"
    values = {each: option.default for each, option in options.items()}
    for each, value in given.items():
        one = options[each].kind is Kind.LIST and isinstance(value, str)
        values[each] = [value] if one else value
    made = declaration.make(values)
    assert all(callable(getattr(made, method)) for method in ("stream", "sample", "rows"))
