"""Why rows were not written, and which.

A task reads an endless-looking stream of rows and sends them somewhere else in another order. What
a person needs when one is refused is the way back to it: the partition of Spark, the number of the
row in it, where it was to go, and the broker's own words.
"""

from __future__ import annotations

from ottla.errors import ErrorCode


class RowFailed(Exception):
    """A row of the Arrow batch at hand cannot be written; the writer knows where that batch is."""

    def __init__(self, row: int, reason: str, code: ErrorCode | None = None) -> None:
        super().__init__(row, reason, code)
        self.row = row
        self.reason = reason
        self.code = code


class WriteFailed(RuntimeError):
    """The task's rows are not all in their topics. Nothing of them is reported as written."""

    def __init__(self, message: str, code: ErrorCode | None = None, row: int | None = None) -> None:
        super().__init__(message, code, row)
        self.message = message
        self.code = code
        self.row = row

    def __str__(self) -> str:
        return self.message


def row_failed(task: str, row: int, reason: str, code: ErrorCode | None = None) -> WriteFailed:
    """`task` is where the row is, such as "Spark partition 3"; rows count from 0."""
    return WriteFailed(f"row {row} (counted from 0) of {task} was not written: {reason}", code, row)
