"""What a format is: from the bytes of a record to columns, and back.

A format is made from its options and works on Spark's columns, so that it runs in the tasks. What
it cannot decode is never a null: it is an error beside the row.

`reading.py` is how a source uses one: it finds or makes the schema, lets it grow, and decodes once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Literal

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


class Decoded(NamedTuple):
    """Two columns.

    value   a struct with the fields of the schema; null where `error` is not, and where the bytes
            are null (a tombstone)
    error   struct<kind: string, message: string>; null where the bytes could be decoded
    """

    value: Column
    error: Column


class Format(Protocol):
    """One format with its options."""

    def bound(self, topic: str, part: Literal["key", "value"]) -> Format:
        """The same for this part of this topic's records: a registry's subject is named so."""

    def schema(self) -> StructType | None:
        """The fields that decoding yields, if the options tell; None if the user must, or `infer`.

        May raise ValueError with a sentence, and `Outage`.
        """

    def infer(self, sample: list[bytes]) -> StructType:
        """The fields of these values; raises ValueError with a sentence if that cannot be."""

    def pin(self, schema: StructType) -> None:
        """Keep this schema in the file that the options name, if they name one."""

    def grow(self, batch: DataFrame, data: Column, schema: StructType) -> StructType:
        """`schema` and the fields that this batch brings, if the options ask for that (`add`)."""

    def column(self, data: Column, schema: StructType) -> Column:
        """`data` is a binary column; the result is struct<value, error>, as in `Decoded`.

        Put it into a column of its own before its parts are used: it is computed once for each
        place that mentions it.
        """

    def decode(self, data: Column, schema: StructType) -> Decoded:
        """The two parts of `column`."""

    def encode(self, row: Column, schema: StructType) -> Column:
        """`row` is a struct column of `schema`; the result is binary, null where `row` is null.

        Raises ValueError with a sentence for a schema that this format has no place for.
        """
