"""The tables of options in docs/pipelines, made from the declarations.

`python -m ottla.pipelines.connectors.reference docs/pipelines` writes them between the marks that
pages have for them, and a test fails when a page and the declarations differ:

    <!-- options: source postgres -->
    …
    <!-- end -->

The mark names a kind (source, sink, format) and which; or a part of the file: `options: file`,
`options: on_error`, `options: retry`, `options: stop_at`, `options: test`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.option import Kind, Option
from ottla.pipelines.connectors.spec import fields
from ottla.pipelines.connectors.units import duration_text

_MARK: Final = re.compile(r"(<!-- options: ([a-z_ ]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_KINDS: Final = {
    Kind.TEXT: "text",
    Kind.INTEGER: "whole number",
    Kind.NUMBER: "number",
    Kind.FLAG: "true, false",
    Kind.DURATION: "time",
    Kind.SIZE: "size",
    Kind.LIST: "list",
    Kind.MAP: "mapping",
    Kind.PATH: "path",
    Kind.CHOICE: "name, or {name: options}",
}
_PARTS: Final = {
    "file": fields.FILE,
    "on_error": fields.ON_ERROR,
    "retry": fields.RETRY,
    "stop_at": fields.STOP_AT,
    "test": fields.TEST,
}
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def filled(page: str) -> str:
    """The page with its tables as they are now."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{options_table(_options(match[2]))}\n{match[3]}"

    return _MARK.sub(table, page)


def options_table(options: Sequence[Option]) -> str:
    """One row for each option."""
    if not options:
        return "There are no options.\n"
    rows = ["| option | value | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{option.name}` | {_value(option)} | {_default(option)} | {_cell(option.doc)} |"
        for option in options
    ]
    return "\n".join(rows) + "\n"


def _options(mark: str) -> Sequence[Option]:
    kind, _, name = mark.partition(" ")
    if not name:
        return _PARTS[kind]
    if kind == "format":
        # Formats are listed where they are; the same way as sources and sinks.
        formats = importlib.import_module("ottla.pipelines.connectors.formats")
        found: Sequence[Option] = formats.declaration(name).options
        return found
    return (catalog.source if kind == "source" else catalog.sink)(name).options


def _value(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    return _KINDS[option.kind]


def _default(option: Option) -> str:
    if option.required:
        return "required"
    if option.default in (None, (), []):
        return ""
    return f"`{_shown(option.kind, option.default)}`"


def _shown(kind: Kind, value: Any) -> str:
    if kind is Kind.DURATION:
        return duration_text(value)
    if kind is Kind.FLAG:
        return str(value).lower()
    if kind is Kind.LIST:
        return ", ".join(map(str, value))
    if kind is Kind.SIZE:
        for unit, word in _UNITS:
            if value and value % unit == 0:
                return f"{value // unit}{word}"
    return str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(folder: Path) -> None:
    """Write the tables into every page."""
    for path in sorted(folder.rglob("*.md")):
        page = path.read_text()
        now = filled(page)
        if now != page:
            path.write_text(now)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
