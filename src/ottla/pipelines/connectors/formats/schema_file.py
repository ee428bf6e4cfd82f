"""Where a format's schema comes from, and what happens to a field that it does not have.

    schema: id bigint not null, customer string        in the pipeline's file
    schema_file: orders.schema                         in a file of its own

A schema file that is not there yet is made: the schema is inferred from the first records, or asked
of the registry, and pinned in the file, which the user can read, change and commit. From then on it
is what the file says. `evolution` says what a record with a field that is not in it does:

    add          the field goes into the schema and its file, from this batch on
    fail         the pipeline stops at it; the message says what to add where
    dead_letter  the record becomes a dead letter
    ignore       the field is left out
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import plain, schema_text
from ottla.pipelines.connectors.formats.failure import NEW_FIELDS, SCHEMA_CHANGED
from ottla.pipelines.connectors.option import Kind, Mistake, Option

ADD: Final = "add"
FAIL: Final = "fail"
DEAD_LETTER: Final = "dead_letter"
IGNORE: Final = "ignore"

EVOLUTION: Final = Option(
    "evolution",
    Kind.TEXT,
    "What a record does that has a field which the schema lacks: `add` it to the schema and its "
    "file, `fail` to stop the pipeline, make the record a `dead_letter`, or `ignore` the field.",
    default=ADD,
    choices=(ADD, FAIL, DEAD_LETTER, IGNORE),
)
SCHEMA_FILE: Final = Option(
    "schema_file",
    Kind.PATH,
    "A file with the schema. If it is not there, it is made from the first records.",
)
SCHEMA: Final = Option(
    "schema",
    Kind.TEXT,
    "The fields and their types in Spark's notation: `id bigint not null, customer string`.",
)
_HEAD: Final = "-- The fields of a pipeline's records. It was inferred; change it as you like.\n"


def failure_kind(evolution: str) -> str | None:
    """What a new field makes of its record when it is met while decoding."""
    return {FAIL: SCHEMA_CHANGED, IGNORE: None}.get(evolution, NEW_FIELDS)


@dataclass(frozen=True, slots=True)
class SchemaPlace:
    """The schema's text, or its file, or neither; frozen, since it goes to the tasks."""

    text: str | None = None
    file: str | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> SchemaPlace:
        """Raises `Mistake` for both at once."""
        if options["schema"] is not None and options["schema_file"] is not None:
            raise Mistake("schema_file", "give a schema or a schema_file, not both")
        return cls(options["schema"], options["schema_file"])

    def read(self) -> str | None:
        """The text, wherever it is; None if there is none yet."""
        if self.text is not None or self.file is None:
            return self.text
        try:
            return Path(self.file).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def load(self, parse: Callable[[str], t.StructType] = schema_text.read) -> t.StructType | None:
        """The schema; ValueError with a sentence that names the file."""
        text = self.read()
        if text is None:
            return None
        try:
            schema = parse(text)
            plain.check(schema)
        except ValueError as error:
            raise ValueError(f"{self.file or 'schema'}: {error}") from None
        return schema

    def pin(self, schema: t.StructType) -> None:
        """Write the schema into the file, if there is one; what is there is replaced as a whole."""
        self.replace(_HEAD + schema_text.write(schema))

    def replace(self, text: str) -> None:
        """The file holds all of `text`, or what it held before, whenever the process dies."""
        if self.file is None:
            return
        path = Path(self.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


NOWHERE: Final = SchemaPlace()
"""No schema is given: it is inferred, and forgotten with the process."""
