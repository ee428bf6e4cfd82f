"""The documentation of the settings cannot drift from the settings."""

from __future__ import annotations

from pathlib import Path

from ottla.config.broker import BrokerConfig
from ottla.config.group import GroupConfig
from ottla.config.reference import render
from ottla.config.retired import RETIRED
from ottla.config.topic import TopicConfig

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "config.md"


def test_the_page_on_disk_is_what_the_declarations_say() -> None:
    assert PAGE.read_text() == render(), "run: python -m ottla.config.reference > " + str(PAGE.name)


def test_the_page_has_every_setting() -> None:
    page = render()
    for name in (*BrokerConfig.settings, *TopicConfig.settings, *GroupConfig.settings, *RETIRED):
        assert f"| `{name}` |" in page


def test_the_page_lists_every_default_that_is_not_kafkas() -> None:
    section = render().partition("## Defaults that differ")[2].partition("\n## ")[0]
    listed = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert listed == {s.name for s in BrokerConfig.settings.values() if s.differs is not None}
    assert listed == {
        "listeners",
        "log.dir",
        "node.id",
        "process.roles",
        "controller.listener.names",
    }


def test_a_name_is_not_both_retired_and_declared() -> None:
    assert not RETIRED.keys() & BrokerConfig.settings.keys()
