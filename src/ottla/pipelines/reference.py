"""The tables of docs/spark.md, made from the declarations.

`python -m ottla.pipelines.reference docs/spark.md` writes them into their places in the page; a
test fails when the page and the declarations differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from ottla.pipelines.kafka_settings import SETTINGS, KafkaSetting, Standing
from ottla.pipelines.option_table import OPTIONS, Option, Status

_FOR = {"both": "read", "all": "read, write", "batch": "batch", "stream": "stream"}


def options_table() -> str:
    """Every option: what it is for, its default, its meaning."""
    return _table(
        ("option", "for", "default", "meaning"),
        (
            (
                f"`{option.name}`",
                _FOR.get(option.applies_to, "write"),
                option.default,
                _meaning(option),
            )
            for option in OPTIONS
        ),
    )


def kafka_table() -> str:
    """Kafka's settings that are followed, and those that are refused, with the reasons."""
    return _table(
        ("setting", "read", "write", "default"),
        (
            (
                f"`kafka.{setting.name}`",
                _verdict(setting.reader),
                _verdict(setting.writer),
                f"`{setting.default}`" if setting.default else "",
            )
            for setting in SETTINGS.values()
            if not _harmless(setting)
        ),
    )


def harmless_table() -> str:
    """Kafka's settings that are taken without effect, by reason."""
    reasons: dict[str, list[str]] = {}
    for setting in SETTINGS.values():
        if _harmless(setting):
            reason = next(side.reason for side in (setting.reader, setting.writer) if side)
            reasons.setdefault(reason, []).append(f"`{setting.name}`")
    return _table(
        ("no effect, because", "settings"),
        ((reason, ", ".join(sorted(names))) for reason, names in reasons.items()),
    )


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _meaning(option: Option) -> str:
    if option.elsewhere:
        return f"{option.meaning}; **refused** for a stream: {option.elsewhere}"
    if option.status is Status.ACCEPTED:
        return option.meaning
    verdict = "refused" if option.status is Status.REFUSED else "no effect"
    return f"{option.meaning}; **{verdict}**: {option.reason}"


def _harmless(setting: KafkaSetting) -> bool:
    sides = [side for side in (setting.reader, setting.writer) if side]
    return all(side.status is Status.HARMLESS for side in sides)


def _verdict(standing: Standing | None) -> str:
    if standing is None:
        return ""
    if standing.status is Status.ACCEPTED:
        return "yes"
    verdict = "**refused**" if standing.status is Status.REFUSED else "no effect"
    return f"{verdict}: {standing.reason}"


def filled(page: str) -> str:
    """The page with each table between its two marks."""
    tables = {"options": options_table, "kafka": kafka_table, "harmless": harmless_table}
    for name, made in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        head, _, rest = page.partition(begin)
        _, mark, tail = rest.partition(end)
        if not mark:
            raise ValueError(f"the page has no place for the table {name!r}")
        page = f"{head}{begin}{made()}{end}{tail}"
    return page


def main() -> None:
    page = Path(sys.argv[1])
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
