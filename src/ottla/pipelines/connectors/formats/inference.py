"""The schema that JSON values have, and what a schema lacks of it.

Numbers without a fraction are bigint, with one double; texts are string, also those that look like
a date: a schema that is written by hand may call them date or timestamp. A field that is null, [],
{} or made of these in every value says nothing of its type and is left out until one does; so is
one whose name no schema can hold. A field of two types is no guess of ours: the user is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats.json_values import blank

_LARGEST: Final = 2**63
_MOST_DIGITS: Final = 10**38
_DEEPEST: Final = 40


class Ambiguous(ValueError):
    """Values of which no schema can be made; says what to do."""


def infer(values: Iterable[Any]) -> t.StructType:
    """The fields of JSON objects, in the order in which they are met first."""
    found = t.StructType([])
    for value in values:
        if not isinstance(value, dict):
            raise Ambiguous("the values are no JSON objects: choose another format, or string")
        found = merge(found, _of_object(value, ""), "")
    if not found.fields:
        raise Ambiguous("no field has a value from which its type could be told: give a schema")
    return found


def _of_object(value: dict[str, Any], path: str, depth: int = 0) -> t.StructType:
    fields: dict[str, t.StructField] = {}
    for name, item in value.items():
        if blank(item) or not is_name(name):
            continue
        full = f"{path}.{name}" if path else name
        if name.lower() in fields:
            raise _capitals(full)
        kind = _of_value(item, full, depth + 1)
        if not _is_empty(kind):
            fields[name.lower()] = t.StructField(name, kind)
    return t.StructType(list(fields.values()))


def _is_empty(kind: t.DataType) -> bool:
    """An object of which no name could be kept."""
    while isinstance(kind, t.ArrayType):
        kind = kind.elementType
    return isinstance(kind, t.StructType) and not kind.fields


def is_name(name: str) -> bool:
    """Whether a schema can hold it: it is not empty, and a text (no half of a surrogate pair)."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def _capitals(path: str) -> Ambiguous:
    return Ambiguous(f"field {path} is there with other capitals, too, which Spark ignores")


def _of_value(value: Any, path: str, depth: int) -> t.DataType:
    if depth > _DEEPEST:
        raise Ambiguous(f"field {path[:60]}… is nested too deeply: give a schema")
    if isinstance(value, dict):
        return _of_object(value, path, depth)
    if isinstance(value, list):
        found: t.DataType | None = None
        for item in value:
            if not blank(item):
                kind = _of_value(item, f"{path}[]", depth + 1)
                found = kind if found is None else _merge_types(found, kind, f"{path}[]")
        assert found is not None  # `blank` has said so
        return t.ArrayType(found)
    if isinstance(value, bool):
        return t.BooleanType()
    if isinstance(value, int):
        if -_LARGEST <= value < _LARGEST:
            return t.LongType()
        return t.DecimalType(38, 0) if abs(value) < _MOST_DIGITS else t.DoubleType()
    return t.DoubleType() if isinstance(value, float) else t.StringType()


_NUMBERS: Final = (t.LongType, t.DecimalType, t.DoubleType)
"""From the narrowest to the widest of those that are inferred."""


def _merge_types(first: t.DataType, second: t.DataType, path: str) -> t.DataType:
    if isinstance(first, t.StructType) and isinstance(second, t.StructType):
        return merge(first, second, path)
    if isinstance(first, t.ArrayType) and isinstance(second, t.ArrayType):
        item = _merge_types(first.elementType, second.elementType, f"{path}[]")
        return t.ArrayType(item)
    if isinstance(first, t.MapType) and isinstance(second, t.MapType):
        return t.MapType(first.keyType, _merge_types(first.valueType, second.valueType, path))
    if isinstance(first, _NUMBERS) and isinstance(second, _NUMBERS):
        return max(first, second, key=lambda kind: _NUMBERS.index(type(kind)))
    if first != second:
        raise Ambiguous(
            f"field {path} is {first.simpleString()} in some values and {second.simpleString()} in "
            "others: give a schema that says which, and the others become dead letters"
        )
    return first


def merge(first: t.StructType, second: t.StructType, path: str = "") -> t.StructType:
    """A schema for the values of both."""
    fields = {field.name: field for field in first.fields}
    for field in second.fields:
        there = fields.get(field.name)
        name = f"{path}.{field.name}" if path else field.name
        if there is not None:
            kind = _merge_types(there.dataType, field.dataType, name)
            fields[field.name] = t.StructField(field.name, kind)
        elif any(field.name.lower() == other.lower() for other in fields):
            raise _capitals(name)
        else:
            fields[field.name] = field
    return t.StructType(list(fields.values()))


def grown(schema: t.StructType, found: t.StructType) -> t.StructType:
    """`schema`, and behind its fields those that only `found` has; no type of a field changes."""
    theirs = {field.name: field for field in found.fields}
    fields = []
    for field in schema.fields:
        kind = field.dataType
        other = theirs.pop(field.name, None)
        if other is not None:
            kind = _grown_type(kind, other.dataType)
        fields.append(t.StructField(field.name, kind, field.nullable))
    taken = {field.name.lower() for field in fields}
    fields += [
        t.StructField(field.name, field.dataType)
        for field in theirs.values()
        if field.name.lower() not in taken
    ]
    return t.StructType(fields)


def _grown_type(kind: t.DataType, found: t.DataType) -> t.DataType:
    if isinstance(kind, t.StructType) and isinstance(found, t.StructType):
        return grown(kind, found)
    if isinstance(kind, t.ArrayType) and isinstance(found, t.ArrayType):
        return t.ArrayType(_grown_type(kind.elementType, found.elementType), kind.containsNull)
    if isinstance(kind, t.MapType) and isinstance(found, t.MapType):
        value = _grown_type(kind.valueType, found.valueType)
        return t.MapType(kind.keyType, value, kind.valueContainsNull)
    return kind
