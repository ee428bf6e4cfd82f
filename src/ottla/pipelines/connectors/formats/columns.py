"""Functions of one record as functions of Spark's columns.

A format says how one value is read (`bytes` to a row of plain values, or `Undecodable`) and how one
row is written; this module runs that over Arrow arrays in the tasks. A reader that can read many
values at once (`Bulk`) is asked first, and reads one by one what it has left out. What is sent to
the tasks is the name of the function that makes the reader and its arguments, and each Python
worker makes a reader once.

`decoded` is one column with the value and the error. Mention it once, in a column of its own, and
take its two parts from there, as `reading.py` does: Spark evaluates a function for every place that
mentions it, and it would push a filter on the error below the function and decode everything twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import plain
from ottla.pipelines.connectors.formats.contract import Decoded
from ottla.pipelines.connectors.formats.failure import WRONG_TYPE, Undecodable
from ottla.pipelines.connectors.formats.plain import Row

if TYPE_CHECKING:
    from pyspark.sql import Column

ERROR: Final = t.StructType(
    [t.StructField("kind", t.StringType()), t.StructField("message", t.StringType())]
)
_LONGEST_MESSAGE: Final = 1_000
_READERS: Final = 64


class Found(NamedTuple):
    """Some values of an array, read.

    rows    which they are, ascending
    array   a struct for each of them
    """

    rows: Any
    array: Any


@runtime_checkable
class Bulk(Protocol):
    """A reader that can do better than value by value."""

    def __call__(self, data: bytes) -> Row:
        """One value; raises `Undecodable`."""

    def many(self, values: Any) -> list[Found]:
        """What can be read at once of an Arrow array of bytes; each value in one part at most."""


def decoded(
    data: Column,
    schema: t.StructType,
    maker: Callable[..., Callable[[bytes], Row]],
    *arguments: Any,
) -> Column:
    """struct<value, error> of a binary column; `maker(*arguments)` makes a record's function."""
    wanted = plain.loose(schema)
    result = t.StructType([t.StructField("value", wanted), t.StructField("error", ERROR)])

    def decode(values: pa.Array) -> pa.Array:
        return decode_array(values, wanted, _made(maker, arguments))

    # Nondeterministic, so that Spark does not move a filter below it and a copy of it with that.
    return in_tasks(decode, result, deterministic=False)(data)


def parts(column: Column) -> Decoded:
    """The two columns of what `decoded` gave."""
    return Decoded(column["value"], column["error"])


def encoded(
    row: Column, schema: t.StructType, maker: Callable[..., Callable[[Row], bytes]], *arguments: Any
) -> Column:
    """A binary column of a struct column."""

    def encode(rows: pa.Array) -> pa.Array:
        return encode_array(rows, schema, _made(maker, arguments))

    return in_tasks(encode, t.BinaryType())(row)


def in_tasks(
    function: Callable[[pa.Array], pa.Array], result: t.DataType, deterministic: bool = True
) -> Callable[[Column], Column]:
    """A function from one Arrow array to another as one from a column to another.

    Spark finds out what kind of function it is by its annotations, which must be `pa.Array`.
    """
    from pyspark.sql.pandas import functions

    make: Any = functions.arrow_udf  # its overloads do not know all of Spark's types
    made = make(function, result)
    wrapped: Callable[[Column], Column] = made if deterministic else made.asNondeterministic()
    return wrapped


@lru_cache(maxsize=_READERS)
def _made(maker: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return maker(*arguments)


def decode_array(values: Any, schema: t.StructType, read: Callable[[bytes], Row]) -> Any:
    """struct<value, error> of an Arrow array of bytes."""
    parts = read.many(values) if isinstance(read, Bulk) else []
    if not parts:
        return _one_at_a_time(values, schema, read)
    if len(parts[0].rows) < len(values):
        return _put_together(values, schema, read, parts)
    nothing = pa.nulls(len(values), plain.arrow_type(ERROR))
    return pa.StructArray.from_arrays([parts[0].array, nothing], names=["value", "error"])


def _put_together(
    values: Any, schema: t.StructType, read: Callable[[bytes], Row], parts: list[Found]
) -> Any:
    """Read what is in no part, and bring all of it into the order of the values."""
    left = np.ones(len(values), np.bool_)
    for part in parts:
        left[part.rows] = False
    rest = np.flatnonzero(left)
    error = plain.arrow_type(ERROR)
    arrays = [_one_at_a_time(values.take(pa.array(rest)), schema, read)]
    for part in parts:
        found = [part.array, pa.nulls(len(part.rows), error)]
        arrays.append(pa.StructArray.from_arrays(found, names=["value", "error"]))
    order = np.empty(len(values), np.int64)
    order[np.concatenate([rest, *(part.rows for part in parts)])] = np.arange(len(values))
    return pa.concat_arrays(arrays).take(pa.array(order))


def _one_at_a_time(values: Any, schema: t.StructType, read: Callable[[bytes], Row]) -> Any:
    rows: list[Row | None] = []
    errors: dict[int, Row] = {}
    for data in values.to_pylist():
        try:
            rows.append(None if data is None else read(data))
        except Undecodable as error:
            errors[len(rows)] = _described(error)
            rows.append(None)
    try:
        found = plain.to_arrow(schema, rows)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        # A value that its type has no room for, and that no reader has caught: find its row.
        found = _one_by_one(schema, rows, errors)
    if errors:
        why = plain.to_arrow(ERROR, [errors.get(number) for number in range(len(rows))])
    else:
        why = pa.nulls(len(rows), plain.arrow_type(ERROR))
    return pa.StructArray.from_arrays([found, why], names=["value", "error"])


def _described(error: Undecodable) -> Row:
    text = str(error).encode(errors="backslashreplace").decode()
    return error.kind, text[:_LONGEST_MESSAGE]


def _one_by_one(schema: t.StructType, rows: list[Row | None], errors: dict[int, Row]) -> Any:
    for number, row in enumerate(rows):
        if row is None:
            continue
        for field, value in zip(schema.fields, row, strict=True):
            try:
                plain.to_arrow(field.dataType, [value])
            except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
                rows[number] = None
                what = Undecodable(WRONG_TYPE, f"field {field.name}: {error}")
                errors[number] = _described(what)
                break
    return plain.to_arrow(schema, rows)


def encode_array(rows: Any, schema: t.StructType, write: Callable[[Row], bytes]) -> Any:
    """Bytes of an Arrow array of structs; null where the struct is."""
    found: Sequence[Row | None] = plain.from_arrow(schema, rows)
    return pa.array([None if row is None else write(row) for row in found], pa.binary())
