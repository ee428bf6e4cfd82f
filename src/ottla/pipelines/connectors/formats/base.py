"""What most formats have in common; each overrides what is different for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from ottla.pipelines.connectors.formats.columns import parts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from ottla.pipelines.connectors.formats.contract import Decoded, Format


class Base(ABC):
    """A format whose schema is fixed by its options and never grows.

    `contract.Format` says what the methods are; those that are abstract differ in every format.
    """

    def bound(self, topic: str, part: Literal["key", "value"]) -> Format:
        """Most formats do not care which topic it is."""
        return self

    @abstractmethod
    def schema(self) -> StructType | None:
        """The fields that decoding yields, if the options tell."""

    def infer(self, sample: list[bytes]) -> StructType:
        """Only asked when `schema` says None."""
        raise ValueError("the fields cannot be told from the values: give a schema")

    def pin(self, schema: StructType) -> None:  # noqa: B027 - most formats have nothing to keep
        """Nothing to keep."""

    def grow(self, batch: DataFrame, data: Column, schema: StructType) -> StructType:
        """Nothing grows."""
        return schema

    @abstractmethod
    def column(self, data: Column, schema: StructType) -> Column:
        """Decodes: struct<value, error>."""

    def decode(self, data: Column, schema: StructType) -> Decoded:
        """The two parts of `column`."""
        return parts(self.column(data, schema))

    @abstractmethod
    def encode(self, row: Column, schema: StructType) -> Column:
        """Encodes: bytes."""
