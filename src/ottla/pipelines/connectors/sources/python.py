"""A source of one's own, from a module that Python finds.

    source: {python: {object: "shop.sources:Orders", options: {url: …}}}

The object is called with the options by name and returns what `contract.Source` says: `stream`,
`sample` and `rows`. An object that has these methods already is taken as it is.
`ottla.testing.connectors.check_source` says whether it keeps the promises.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option

_METHODS: Final = ("stream", "sample", "rows")


def load(target: str, options: Mapping[str, Any], methods: tuple[str, ...] = _METHODS) -> Any:
    """The object, made with its options; Mistake with a sentence if that cannot be."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise Mistake("object", f"{target} does not name an object: write module:object")
    try:
        found: Any = importlib.import_module(name)
    except ImportError as error:
        raise Mistake(
            "object",
            f"the module {name} cannot be imported: {error}. It has to be where Python looks for "
            "modules, for example in a folder of PYTHONPATH",
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Mistake("object", f"the module {name} has no {attribute}")
        found = getattr(found, part)
    if isinstance(found, type) or not _is(found, methods):
        if not callable(found):
            raise Mistake("object", f"{target} is neither a source nor a function that makes one")
        try:
            found = found(**options)
        except TypeError as error:
            raise Mistake("options", f"{target} does not take these options: {error}") from None
    elif options:
        raise Mistake("options", f"{target} is made already, and takes no options")
    missing = [method for method in methods if not callable(getattr(found, method, None))]
    if missing:
        raise Mistake("object", f"what {target} gives has no {' and no '.join(missing)}")
    return found


def _is(found: Any, methods: tuple[str, ...]) -> bool:
    return all(callable(getattr(found, method, None)) for method in methods)


def _make(values: Mapping[str, Any]) -> Any:
    return load(values["object"], values["options"] or {})


SOURCE: Final = Declaration(
    "python",
    "a source of one's own, written in Python",
    (
        Option("object", Kind.TEXT, "what makes the source: `module:object`", required=True),
        Option("options", Kind.MAP, "what the object is called with", secret=True),
    ),
    _make,
)
