"""Why bytes could not be decoded: the kinds that dead letters carry, and who raises them."""

from __future__ import annotations

import reprlib
from typing import Final

DAMAGED: Final = "Damaged"
"""The bytes are not of this format: malformed, cut short, too long, no UTF-8."""
WRONG_TYPE: Final = "WrongType"
"""They are, and a field is not what the schema says it is, or has no room in its type."""
MISSING: Final = "Missing"
"""A field that may not be null is not there, or none of the fields is."""
NEW_FIELDS: Final = "NewFields"
"""There are fields that the schema does not have, and `evolution` is `dead_letter`."""
SCHEMA_CHANGED: Final = "SchemaChanged"
"""The same where `evolution` is `fail`: the pipeline stops at such a row and loses none."""
UNKNOWN_SCHEMA: Final = "UnknownSchema"
"""The registry has no schema of this id."""
SCHEMA_MISMATCH: Final = "SchemaMismatch"
"""The schema that the record was written with cannot be read as the one that is wanted."""

STOPPING: Final = frozenset({SCHEMA_CHANGED})
"""Kinds that are no dead letters: a pipeline that meets one stops before it commits the batch."""


class Undecodable(Exception):
    """One record that cannot be decoded; `kind` is one of the above."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    return _SHORT.repr(value)
