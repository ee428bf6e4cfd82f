"""Values between a format and Arrow: one plain Python value for each of Spark's types.

    boolean                bool             decimal(p, s)          the unscaled int
    tinyint … bigint       int              date                   days since 1970
    float, double          float            timestamp, …_ntz       microseconds since 1970, UTC
    string                 str              array                  list
    binary                 bytes            map<string, …>         list of (name, value)
                                            struct                 tuple, in the order of the fields

Formats read and write these, never `datetime` or `Decimal`: they are slower, and hold less than
Spark's types do (years after 9999). Both directions keep every value exactly; a value that its type
has no room for raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import types as t

Row: TypeAlias = tuple[Any, ...]

_SIMPLE: Final[dict[type[t.DataType], Any]] = {
    t.BooleanType: pa.bool_(),
    t.ByteType: pa.int8(),
    t.ShortType: pa.int16(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DoubleType: pa.float64(),
    t.StringType: pa.string(),
    t.BinaryType: pa.binary(),
    t.DateType: pa.date32(),
    t.TimestampType: pa.timestamp("us", tz="UTC"),
    t.TimestampNTZType: pa.timestamp("us"),
}
_UNSCALED_BYTES: Final = 16


class Unsuitable(ValueError):
    """A type of Spark that a format has no place for; names the column."""


def check(schema: t.StructType) -> None:
    """Refuse a schema with types that no format has, or with two columns of one name."""
    _check(schema, "")


def _check(kind: t.DataType, path: str) -> None:
    if isinstance(kind, t.StructType):
        seen: set[str] = set()
        for field in kind.fields:
            name = f"{path}.{field.name}" if path else field.name
            if field.name.lower() in seen:
                raise Unsuitable(
                    f"there are two columns {name} (Spark ignores upper and lower case)"
                )
            seen.add(field.name.lower())
            _check(field.dataType, name)
    elif isinstance(kind, t.ArrayType):
        _check(kind.elementType, f"{path}[]")
    elif isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType):
            raise Unsuitable(
                f"column {path} is a map from {kind.keyType.simpleString()}: only maps from string "
                "can be records' values; make it an array of structs"
            )
        _check(kind.valueType, f"{path}[]")
    elif type(kind) not in _SIMPLE and not isinstance(kind, t.DecimalType):
        raise Unsuitable(
            f"column {path} has the type {kind.simpleString()}, which formats cannot keep"
        )


def loose(kind: t.DataType) -> Any:
    """The same type, and everything in it may be null.

    What may not be null is checked while it is decoded; a row that could not be decoded is null as
    a whole, and Spark must not believe that its fields are not.
    """
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(f.name, loose(f.dataType)) for f in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(loose(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, loose(kind.valueType))
    return kind


def arrow_type(kind: t.DataType) -> Any:
    """What Spark's Arrow calls this type."""
    if isinstance(kind, t.StructType):
        return pa.struct([_arrow_field(field) for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, t.MapType):
        item = pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull)
        return pa.map_(pa.field("key", arrow_type(kind.keyType), nullable=False), item)
    if isinstance(kind, t.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _SIMPLE[type(kind)]


def _arrow_field(field: t.StructField) -> Any:
    return pa.field(field.name, arrow_type(field.dataType), field.nullable)


def to_arrow(kind: t.DataType, values: Sequence[Any]) -> Any:  # noqa: PLR0911 - by type
    """Plain values, or None, as an Arrow array."""
    if isinstance(kind, t.StructType):
        return _structs_to_arrow(kind, values)
    if isinstance(kind, t.ArrayType):
        items = list(chain.from_iterable(value for value in values if value is not None))
        listed = pa.ListArray.from_arrays(_offsets(values), to_arrow(kind.elementType, items))
        return listed.cast(arrow_type(kind)) if len(values) else pa.array([], arrow_type(kind))
    if isinstance(kind, t.MapType):
        pairs = list(chain.from_iterable(value for value in values if value is not None))
        keys = pa.array([pair[0] for pair in pairs], pa.string())
        items = to_arrow(kind.valueType, [pair[1] for pair in pairs])
        mapped = pa.MapArray.from_arrays(_offsets(values), keys, items)
        return mapped.cast(arrow_type(kind)) if len(values) else pa.array([], arrow_type(kind))
    if isinstance(kind, t.DecimalType):
        return _decimals_to_arrow(kind, values)
    if isinstance(kind, t.DateType):
        return pa.array(values, pa.int32()).view(pa.date32())
    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        return pa.array(values, pa.int64()).view(_SIMPLE[type(kind)])
    return pa.array(values, _SIMPLE[type(kind)])


def _offsets(values: Sequence[Any]) -> Any:
    """Where each list begins; a null offset makes its list null."""
    offsets: list[int | None] = []
    place = 0
    for value in values:
        if value is None:
            offsets.append(None)
        else:
            offsets.append(place)
            place += len(value)
    offsets.append(place)
    return pa.array(offsets, pa.int32())


def _structs_to_arrow(kind: t.StructType, values: Sequence[Row | None]) -> Any:
    if not kind.fields:
        return pa.array([None if value is None else {} for value in values], pa.struct([]))
    missing = [value is None for value in values]
    if any(missing):
        nothing = (None,) * len(kind.fields)
        columns = list(zip(*(nothing if value is None else value for value in values), strict=True))
        mask = pa.array(missing, pa.bool_())
    else:
        columns = list(zip(*values, strict=True))
        mask = None
    if not columns:
        columns = [()] * len(kind.fields)
    arrays = [
        to_arrow(field.dataType, column) for field, column in zip(kind.fields, columns, strict=True)
    ]
    # Fields are said to be nullable: where the whole struct is null, they are, whatever it says.
    fields = [pa.field(field.name, arrow_type(field.dataType)) for field in kind.fields]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _decimals_to_arrow(kind: t.DecimalType, values: Sequence[int | None]) -> Any:
    limit = 10**kind.precision
    if any(value is not None and not -limit < value < limit for value in values):
        raise ValueError(f"a value has more than {kind.precision} digits")
    data = b"".join(
        (value or 0).to_bytes(_UNSCALED_BYTES, "little", signed=True) for value in values
    )
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(arrow_type(kind), len(values), [valid, pa.py_buffer(data)])


def from_arrow(kind: t.DataType, array: Any) -> list[Any]:
    """The plain values of an Arrow array of this type."""
    if isinstance(kind, t.StructType):
        return _structs_from_arrow(kind, array)
    if isinstance(kind, t.ArrayType):
        return _slices(array, from_arrow(kind.elementType, array.values))
    if isinstance(kind, t.MapType):
        items = from_arrow(kind.valueType, array.items)
        return _slices(array, list(zip(array.keys.to_pylist(), items, strict=True)))
    found: list[Any]
    if isinstance(kind, t.DecimalType):
        found = _decimals_from_arrow(array)
    elif isinstance(kind, t.DateType):
        found = array.view(pa.int32()).to_pylist()
    elif isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        found = array.view(pa.int64()).to_pylist()
    else:
        found = array.to_pylist()
    return found


def _slices(array: Any, items: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [
        items[offsets[number] : offsets[number + 1]] if there else None
        for number, there in enumerate(valid)
    ]


def _structs_from_arrow(kind: t.StructType, array: Any) -> list[Row | None]:
    if not kind.fields:
        return [() if there else None for there in array.is_valid().to_pylist()]
    # `field` does not heed the slice that an array may be, `flatten` does.
    columns = [
        from_arrow(field.dataType, column)
        for field, column in zip(kind.fields, array.flatten(), strict=True)
    ]
    rows: list[Row | None] = list(zip(*columns, strict=True))
    if array.null_count:
        for number, there in enumerate(array.is_valid().to_pylist()):
            if not there:
                rows[number] = None
    return rows


def _decimals_from_arrow(array: Any) -> list[int | None]:
    data = memoryview(array.buffers()[1]) if len(array) else memoryview(b"")
    begin = array.offset * _UNSCALED_BYTES
    places = range(begin, begin + len(array) * _UNSCALED_BYTES, _UNSCALED_BYTES)
    read: Callable[..., int] = int.from_bytes
    found: list[int | None] = [
        read(data[place : place + _UNSCALED_BYTES], "little", signed=True) for place in places
    ]
    if array.null_count:
        for number, there in enumerate(array.is_valid().to_pylist()):
            if not there:
                found[number] = None
    return found
