"""How a sink encodes: rows into keys and values, and tombstones where a condition says so.

`delete_when` is a condition in SQL over the columns of the sink's rows. Where it is true, the value
is null: a tombstone, which makes a compacted topic, and everybody who keeps a table of it, forget
the key. Null is not true: such a row is written as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.pipelines.connectors.contract import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from ottla.pipelines.connectors.formats.contract import Format

_NO_KEY: Final = "a tombstone needs a key: name the key's columns beside delete_when"


def visible(schema: StructType) -> StructType:
    """The columns without those that the pipeline keeps to itself."""
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name != HIDDEN])


def chosen(schema: StructType, names: Sequence[str]) -> StructType:
    """The columns of these names, in their order; ValueError for one that is not there."""
    from pyspark.sql.types import StructType

    known = {field.name.lower(): field for field in schema.fields}
    missing = [name for name in names if name.lower() not in known]
    if missing:
        raise ValueError(
            f"there is no column {missing[0]}; there are {', '.join(visible(schema).names)}"
        )
    return StructType([known[name.lower()] for name in names])


def encoded_value(form: Format, rows: DataFrame, columns: StructType) -> Column:
    """A binary column: these columns of `rows` in this format."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    fields = [rows[f"`{name.replace('`', '``')}`"] for name in columns.names]
    return form.encode(F.struct(*fields), columns)


def with_tombstones(value: Column, delete_when: str | None, has_key: bool) -> Column:
    """`value`, and null where the condition holds."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    if delete_when is None:
        return value
    if not has_key:
        raise ValueError(_NO_KEY)
    deleted = F.coalesce(F.expr(delete_when).cast("boolean"), F.lit(False))
    return F.when(~deleted, value)
