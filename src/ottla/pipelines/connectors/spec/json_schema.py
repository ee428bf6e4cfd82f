"""The JSON schema of a pipeline's file, from the same declarations as the check of it.

An editor that knows YAML and JSON schema completes names, shows what each means, and underlines
what is wrong: `ottla pipeline schema > pipeline.schema.json`, and in the file's first line
`# yaml-language-server: $schema=pipeline.schema.json`.

A variable may stand wherever a number or a flag may, so each of these takes text that holds `${`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.spec import fields
from ottla.pipelines.connectors.units import duration_text

_VARIABLE: Final = {"type": "string", "pattern": r"\$\{"}
_TEXT: Final = {"type": ["string", "number"]}
_TYPES: Final[Mapping[Kind, dict[str, Any]]] = {
    Kind.TEXT: _TEXT,
    Kind.INTEGER: {"anyOf": [{"type": "integer"}, _VARIABLE]},
    Kind.NUMBER: {"anyOf": [{"type": "number"}, _VARIABLE]},
    Kind.FLAG: {"anyOf": [{"type": "boolean"}, _VARIABLE]},
    Kind.DURATION: {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$|\$\{"},
    Kind.SIZE: {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(B|[KMGT]i?B)?\s*$|\$\{"},
        ]
    },
    Kind.LIST: {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    Kind.MAP: {"type": "object"},
    Kind.PATH: _TEXT,
    Kind.CHOICE: {"anyOf": [{"type": "string"}, {"type": "object", "maxProperties": 1}]},
}
_ROWS: Final = {"type": "array", "items": {"type": "object"}}


def json_schema() -> dict[str, Any]:
    """The whole, as JSON schema of 2020-12."""
    properties = _properties(fields.FILE)
    ordered = {
        "name": properties.pop("name"),
        "bootstrap": properties.pop("bootstrap"),
        "source": _connector("where rows come from", catalog.SOURCES, catalog.source),
        "transform": {
            "description": "SQL over the view source, row by row; or {python: module:function}",
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"python": {"type": "string"}},
                    "required": ["python"],
                    "additionalProperties": False,
                },
            ],
        },
        "sink": _connector("where rows go", catalog.SINKS, catalog.sink),
        "on_error": _on_error(),
        **properties,
        "tests": {
            "description": "rows, and what is to come of them",
            "type": "array",
            "items": _object(
                _properties(fields.TEST) | {"given": _ROWS, "expect": _ROWS},
                ["name", "given", "expect"],
            ),
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of Ottla",
        **_object(ordered, ["name", "source", "sink"]),
    }


def _on_error() -> dict[str, Any]:
    properties = _properties(fields.ON_ERROR)
    properties["retry"] = _object(_properties(fields.RETRY), [])
    stop_at = _properties(fields.STOP_AT)
    stop_at["share"]["type"] = ["string", "number"]
    properties["stop_at"] = _object(stop_at, [])
    return {"description": "what happens to rows that fail", **_object(properties, [])}


def _connector(
    doc: str, known: Iterable[str], load: Callable[[str], Declaration]
) -> dict[str, Any]:
    names = list(known)
    declared = {name: load(name) for name in names}
    return {
        "description": doc,
        "anyOf": [
            {"type": "string", "enum": names},
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
                "properties": {name: _options(each) for name, each in declared.items()},
            },
        ],
    }


def _options(declaration: Declaration) -> dict[str, Any]:
    required = [option.name for option in declaration.options if option.required]
    whole = _object(_properties(declaration.options), required)
    short = [{"type": ["string", "number", "null"]}] if declaration.options else [{"type": "null"}]
    return {"description": declaration.doc, "anyOf": [whole, *short]}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": required} if required else found


def _properties(options: Iterable[Option]) -> dict[str, Any]:
    return {option.name: _property(option) for option in options}


def _property(option: Option) -> dict[str, Any]:
    found: dict[str, Any] = {"description": option.doc, **_TYPES[option.kind]}
    if option.choices:
        choice = {"enum": list(option.choices)}
        if option.kind is Kind.LIST:
            found["anyOf"] = [choice, {"type": "array", "items": choice}]
        else:
            found = {"description": option.doc, "anyOf": [choice, _VARIABLE]}
    if option.default is not None:
        is_time = option.kind is Kind.DURATION
        found["default"] = duration_text(option.default) if is_time else option.default
    return found
