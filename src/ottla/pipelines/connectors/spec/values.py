"""What a pipeline is, whether a file or a Python program has said it: frozen values, all checked.

A `PipelineSpec` is complete: every default is filled in, every variable replaced. So it may hold
secrets, and its repr leaves the values of options out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.option import Declaration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRIGGER: Final = 2.0
"""Seconds between the starts of two batches: each costs a quarter of a second, however small."""


@dataclass(frozen=True, slots=True)
class Connector:
    """A source or sink with its options.

    name         as the file calls it: "postgres"
    options      the values of all declared options by name, defaults included
    declaration  where its options and its making are declared
    """

    name: str
    options: Mapping[str, Any] = field(repr=False)
    declaration: Declaration = field(repr=False)

    def make(self) -> Any:
        """The `Source` or `Sink` itself, which has connected to nothing yet."""
        return self.declaration.make(self.options)


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What happens to rows that fail, and to batches.

    attempts       how often a batch is tried that fails without saying why, before the rows to
                   blame are looked for
    backoff        seconds before the second attempt, and at most; each wait is twice the one before
    dead_letter    the topic of rows that fail; None: the first of them stops the pipeline
    most_letters   the pipeline stops when a run has more letters than this …
    most_share     … and more than this share of its rows
    """

    attempts: int = 5
    backoff: tuple[float, float] = (1.0, 60.0)
    dead_letter: str | None = None
    most_letters: int = 100
    most_share: float = 0.01


STOP: Final = ErrorPolicy()
"""What happens when nothing is said: outages are waited for, the first row that fails stops."""


@dataclass(frozen=True, slots=True)
class Case:
    """A test of the pipeline: rows that its transform is given, and what is to come of them.

    line      where the file says it
    rows      columns by name; what a source would have decoded
    expected  the rows that are to reach the sink, in any order
    fails     how many rows are to become dead letters
    """

    name: str
    rows: tuple[Mapping[str, Any], ...]
    expected: tuple[Mapping[str, Any], ...]
    fails: int = 0
    schema: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """One pipeline.

    transform   SQL over the view `source`, or a function from DataFrame to DataFrame, or None
    trigger     seconds between the starts of two batches; 0: as soon as there is something
    checkpoint  the folder of the checkpoint, if it is not to be beside the others
    kafka       settings of Kafka clients for every connection to `bootstrap`
    spark       Spark's properties for the session
    secrets     what `variables.scrubbed` removes from every message
    path        the file that says all this, if one does
    """

    name: str
    bootstrap: str
    source: Connector
    sink: Connector
    transform: str | Callable[[DataFrame], DataFrame] | None = None
    on_error: ErrorPolicy = STOP
    trigger: float = TRIGGER
    checkpoint: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    tests: tuple[Case, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    path: str | None = None

    @property
    def group(self) -> str:
        """The group that shows the pipeline's progress to every Kafka tool."""
        return f"ottla-{self.name}"
