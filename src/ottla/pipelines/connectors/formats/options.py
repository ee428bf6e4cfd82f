"""What `format` and `key_format` say in a pipeline's file, as a format.

    format: json
    format: {avro: {registry: "http://127.0.0.1:8081"}}

Either a name, or one name with its options.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from ottla.pipelines.connectors.formats import FORMATS, declaration
from ottla.pipelines.connectors.formats.contract import Format
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option
from ottla.pipelines.connectors.units import seconds, size


def read_format(value: Any, option: str = "format") -> Format:
    """The format; `Mistake` with a sentence if there is no such one."""
    for mistake in mistakes_of(value, option):
        raise mistake
    name, given = _parted(value, option)
    found = declaration(name)
    made: Format = found.make(_values(found, given))
    return made


def mistakes_of(value: Any, option: str = "format") -> list[Mistake]:
    """Everything that is wrong with it; each points at `option`, or at a place below."""
    try:
        name, given = _parted(value, option)
    except Mistake as mistake:
        return [mistake]
    if name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, 1)
        hint = f": did you mean {near[0]}?" if near else f": there are {', '.join(FORMATS)}"
        return [Mistake(option, f"{name} is no format{hint}")]
    found = declaration(name)
    known = {one.name: one for one in found.options}
    wrong = []
    for key, said in given.items():
        try:
            if key in known:
                _checked(name, known[key], said)
                continue
            near = difflib.get_close_matches(key, known, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise ValueError(f"{key} is no option of the format {name}{hint}")
        except ValueError as error:
            wrong.append(Mistake(f"{option}.{name}.{key}", str(error)))
    if wrong:
        return wrong
    try:
        found.make(_values(found, given))
    except Mistake as mistake:
        sentence = f"{mistake.option} of the format {name}: {mistake}"
        return [Mistake(f"{option}.{name}.{mistake.option}", sentence)]
    return []


def _values(found: Declaration, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        one.name: _checked(found.name, one, given[one.name]) if one.name in given else one.default
        for one in found.options
    }


def _parted(value: Any, option: str) -> tuple[str, Mapping[str, Any]]:
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, given),) = value.items()
        if given is None:
            return str(name), {}
        if isinstance(given, Mapping):
            return str(name), given
    raise Mistake(option, "write a format's name, or {name: {option: value}}")


def _checked(name: str, one: Option, value: Any) -> Any:
    where = f"{one.name} of the format {name}"
    try:
        value = _read(one.kind, value)
        if one.check is not None:
            one.check(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if one.choices and value not in one.choices:
        raise ValueError(f"{where} is one of {', '.join(one.choices)}")
    return value


def _read(kind: Kind, value: Any) -> Any:
    if kind is Kind.LIST:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise ValueError("is a list of texts")
        return listed
    if kind is Kind.DURATION:
        return seconds(value)
    if kind is Kind.SIZE:
        return size(value)
    wanted = {Kind.TEXT: str, Kind.PATH: str, Kind.FLAG: bool, Kind.INTEGER: int}.get(kind, object)
    if not isinstance(value, wanted):
        raise ValueError(f"is a {kind.value}")
    return value
