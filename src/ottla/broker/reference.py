"""`docs/reference/protocol-support.md`, made from the table of handlers and their docstrings."""

from __future__ import annotations

import re
import sys

from ottla.dispatch.table import Handler, Table
from ottla.handlers import HANDLERS

HEAD = """\
# Protocol support

Made by `make docs` from the table of handlers, which is also what ApiVersions answers from.
Ranges are those of Apache Kafka 4.2 unless a note says otherwise.

| key | API | versions | notes |
|---:|---|---|---|
"""


def render() -> str:
    """The whole page."""
    table = Table(HANDLERS)
    rows = "".join(
        f"| {int(handler.key)} | {handler.spec.name} "
        f"| {handler.versions[0]}-{handler.versions[-1]} | {_not_done(handler)} |\n"
        for handler in table
    )
    modules = sorted({handler.function.__module__ for handler in table})
    sections = "".join(f"\n{_section(sys.modules[name].__doc__ or '')}" for name in modules)
    return HEAD + rows + sections


def _not_done(handler: Handler) -> str:
    """The "Not done" paragraph of the handler's module, where it names this API or stands alone."""
    doc = sys.modules[handler.function.__module__].__doc__ or ""
    found = re.search(r"^Not done\s+(.+?)(?=^\S|\Z)", doc, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def _section(doc: str) -> str:
    """A module's docstring as a section: its first line is the title, the rest stays as written."""
    title, _, rest = doc.partition("\n")
    return f"## {title.rstrip('.')}\n\n```text\n{rest.strip()}\n```\n"
