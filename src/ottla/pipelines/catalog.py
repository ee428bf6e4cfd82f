"""Tables of Spark's catalog: `CREATE TABLE orders USING ottla OPTIONS (…)`.

Spark (4.3) gives a Python source the options of a table once, when the table is created and its
schema is asked for, among the table's properties: `option.subscribe`, beside `provider`, `owner`
and others. Whoever reads the table later is made with no options at all, but with the table's
schema. So the schema carries them: as metadata of one column, which the catalog keeps and which
SELECT and `readStream.table` hand to the reader.

An INSERT has the schema of the rows, and no word of the table. What metadata these have may be of
the table written to, if Spark had to cast something, or of a table that they were selected from:
taking options from there would put rows into the wrong topic. So an INSERT brings its own, `INSERT
INTO orders WITH (…)`, or goes to a temporary view, whose options Spark does hand over.

Metadata goes with a column wherever a DataFrame is taken or stored, so options that have no effect
on a read, passwords among them, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.pipelines.errors import OptionError
from ottla.pipelines.kafka_settings import SETTINGS
from ottla.pipelines.option_table import Status, Use
from ottla.pipelines.options import KAFKA, option_named
from ottla.pipelines.source.strategy import OPTIONS as STRATEGIES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

METADATA: Final = "ottla.options"
_PREFIX: Final = "option."
_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_CHECKPOINT: Final = "checkpointlocation"
_STRATEGIES: Final = frozenset(map(str.lower, STRATEGIES))
_NO_COLUMNS: Final = (
    "The table has no options, since it was created with columns: create it with CREATE TABLE … "
    "USING ottla OPTIONS (…) and without any, a topic has its own."
)
_BRING_YOUR_OWN: Final = (
    "No options are given, and Spark tells a Python sink neither a table's options nor its name: "
    "give them with the rows, INSERT INTO … WITH ('kafka.bootstrap.servers' = '…', topic = '…'), "
    "or insert into a TEMPORARY VIEW … USING ottla OPTIONS (…)."
)


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """What OPTIONS says, from the properties of a table; None when they are of no table."""
    if "provider" not in given:
        return None
    if "path" in given or "location" in given:
        raise OptionError("path", "A topic has no LOCATION: name it with the option subscribe.")
    return {
        name.lower().removeprefix(_PREFIX): value
        for name, value in given.items()
        if name.lower().startswith(_PREFIX)
    }


def metadata(options: Mapping[str, str]) -> dict[str, str]:
    """The metadata of the column that carries the options of its table."""
    kept = {
        name: value
        for name, value in sorted(options.items())
        if _is_for(name, Use.BATCH) or _is_for(name, Use.STREAM)
    }
    return {METADATA: json.dumps(kept)}


def read_options(given: Mapping[str, str], schema: StructType, use: Use) -> dict[str, str]:
    """The options of a query: its own, which win, and those that a table's schema carries."""
    options = {name.lower(): value for name, value in given.items()}
    for field in schema.fields:
        if METADATA in (field.metadata or {}):
            kept: dict[str, str] = json.loads(field.metadata[METADATA])
            other = _STRATEGIES if _STRATEGIES & options.keys() else frozenset()
            table = {name: kept[name] for name in kept if _is_for(name, use) and name not in other}
            return table | options
    if not options:
        raise OptionError(_BOOTSTRAP, _NO_COLUMNS)
    return options


def write_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a write: its own, and never those of a table."""
    options = {name.lower(): value for name, value in given.items()}
    if not options.keys() - {_CHECKPOINT}:
        raise OptionError(_BOOTSTRAP, _BRING_YOUR_OWN)
    return options


def _is_for(name: str, use: Use) -> bool:
    """Whether it has an effect there, be it that it is refused."""
    if name.startswith(KAFKA):
        setting = SETTINGS.get(name.removeprefix(KAFKA))
        return setting is None or setting.side(use).status is not Status.HARMLESS
    option = option_named(name)
    return option is None or option.status_in(use)[0] is not Status.HARMLESS
