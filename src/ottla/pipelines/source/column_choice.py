"""Which columns a read has: all that a topic gives, or those that `columns` names.

Spark (4.3) tells no Python source which columns a query uses: whatever the schema has is sent to
the JVM for every row, and `count()` ships keys and values to throw them away. So a query that needs
little says so itself, `columns=key,timestamp`, and the schema has just these.
"""

from __future__ import annotations

from typing import Final

from ottla.pipelines.errors import OptionError
from ottla.pipelines.options import Options

OPTION: Final = "columns"
HEADERS: Final = "headers"
USUAL: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
ALL: Final = (*USUAL, HEADERS)

_BY_NAME: Final = {name.lower(): name for name in ALL}


def chosen(options: Options) -> tuple[str, ...]:
    """The columns of a read, in the order in which `columns` names them."""
    with_headers = options.truth("includeHeaders")
    text = options.text(OPTION)
    if text is None:
        return ALL if with_headers else USUAL
    names: list[str] = []
    for part in text.split(","):
        name = _BY_NAME.get(part.strip().lower())
        if name is None:
            raise OptionError(
                OPTION,
                f"{OPTION} names {part.strip()!r}, which a topic does not have: give some of "
                f"{', '.join(ALL)}.",
            )
        if name in names:
            raise OptionError(OPTION, f"{OPTION} names {name} twice: name it once.")
        names.append(name)
    if with_headers and HEADERS not in names:
        raise OptionError(
            OPTION,
            f"includeHeaders=true contradicts {OPTION}={text}: name {HEADERS} there, or leave "
            "includeHeaders out.",
        )
    return tuple(names)
