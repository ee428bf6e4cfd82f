"""A table of a database as a source of a pipeline, whichever database it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import HIDDEN, Needs, Outage, Place
from ottla.pipelines.connectors.databases import DatabaseError, Missing
from ottla.pipelines.connectors.sources.hidden import (
    as_json,
    hidden,
    letters_of_json,
    quoted,
)
from ottla.pipelines.connectors.sources.staged import ERROR, ROW, staged_stream
from ottla.pipelines.connectors.sources.table_plan import Engine, Mode, Plan, Table
from ottla.pipelines.connectors.sources.table_poller import TablePoller

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_NO_ROOM: Final = "ValueOutOfRange"


class TableSource(Needs):
    """Rows of a table (`contract.Source`).

    where   the database, as a message names it
    """

    def __init__(self, engine: Engine, plan: Plan, where: str) -> None:
        self._engine = engine
        self._plan = plan
        self._where = where
        self._table: Table | None = None

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        table = self._look(place)
        poller = TablePoller(self._engine, self._plan, table)
        return staged_stream(spark, place, poller, spark_schema(table))

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import LongType, StructField, StructType

        from ottla.pipelines.connectors.sources.staging import conform

        table = self._look(place)
        poller = TablePoller(self._engine, self._plan, table)
        try:
            found = poller.some(count)
        finally:
            poller.drop()
        found = found.append_column(ROW, pa.array(range(found.num_rows), pa.int64()))
        schema = spark_schema(table)
        whole = StructType([*schema.fields, StructField(ROW, LongType(), False)])
        arrow = to_arrow_schema(whole, timezone="UTC")
        batches = [conform(batch, arrow) for batch in found.to_batches()]
        return spark.createDataFrame(pa.Table.from_batches(batches, arrow), whole)

    def rows(self, batch: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        names = [name for name in batch.columns if name not in (ROW, ERROR)]
        own = self._table.key if self._table is not None else ()
        key = own or self._plan.columns
        if self._plan.mode is Mode.INCREMENTING:
            # A number that every change of a row sets anew: the row comes again, as another one.
            key = (*key, *(name for name in self._plan.columns if name not in key))
        position: dict[str, Any] = {"table": F.lit(self._plan.shown)}
        if key:
            position["key"] = F.struct(*(F.col(quoted(name)).alias(name) for name in key))
        if self._plan.timestamp is not None:
            position["timestamp"] = F.col(quoted(self._plan.timestamp))
        if not own or not self._plan.columns:
            # Several rows may have one timestamp, and a table that is read as a whole comes again.
            position["row"] = F.col(ROW)
        message = F.col(ERROR)
        error = F.when(
            message.isNotNull(),
            F.struct(F.lit(_NO_ROOM).alias("kind"), message.alias("message")),
        )
        made = hidden(position, sequence=F.col(ROW), value=as_json(names), error=error)
        return batch.select(*(F.col(quoted(name)) for name in names), made)

    def of_letters(self, letters: DataFrame, schema: StructType) -> DataFrame:
        """See `redrive`. A value that no column has room for is a null in the letter: only the
        database has it, so such a row fails again."""
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        why = F.col("undecoded")
        error = F.when(why["kind"] == _NO_ROOM, why).otherwise(F.col("error"))
        return letters_of_json(letters, schema).withColumn("error", error)

    # -- what `validate` asks

    def stages(self) -> bool:
        return True

    def _look(self, place: Place) -> Table:
        try:
            with self._engine.open() as database:
                self._table = self._engine.describe(database, self._plan)
        except Missing as error:
            raise Missing(
                f"pipeline {place.pipeline}: {self._where}, table {self._plan.shown}: {error}"
            ) from None
        except Outage as outage:
            raise Outage(outage.what, f"pipeline {place.pipeline}: {outage}") from None
        except (DatabaseError, ValueError) as error:
            raise ValueError(f"pipeline {place.pipeline}: {error}") from None
        for column in self._table.columns:
            if column.name.startswith(HIDDEN):
                raise ValueError(
                    f"pipeline {place.pipeline}: {self._plan.shown} has a column {column.name}, "
                    f"and names that begin with {HIDDEN} are the pipeline's own: read a view that "
                    "names it otherwise"
                )
        return self._table


def spark_schema(table: Table) -> StructType:
    """The table's columns as Spark has them, and `ERROR`."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType(
        [
            *(
                StructField(each.name, from_arrow_type(each.type, prefer_timestamp_ntz=True))
                for each in table.columns
            ),
            StructField(ERROR, StringType()),
        ]
    )
