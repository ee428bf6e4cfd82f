"""A sink of one's own: `{python: {object: "package.module:name", options: {…}}}`.

The object is one of

    a class, or a function of keyword arguments   called with `options`, it makes a `Sink`
    a `Sink`                                      used as it is
    a function write(rows, batch)                 called with the DataFrame of every batch, without
                                                  `HIDDEN`, and a `Batch`

A guarantee is what the `Sink` says, and `ottla.testing.connectors.check_sink` tells whether that is
true; a function promises at least once, if it returns only when the rows are durable.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import HIDDEN, Batch, Guarantee, Needs, Place, Sink
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_METHODS: Final = ("prepare", "write", "probe")


class FunctionSink(Needs):
    """A function that writes a batch."""

    def __init__(self, function: Callable[[DataFrame, Batch], object]) -> None:
        self._function = function

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        """A function has nothing to prepare."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self._function(rows.drop(HIDDEN), batch)

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        """The rows are computed; a function has nowhere to try them."""
        rows.drop(HIDDEN).write.format("noop").mode("overwrite").save()


def sink_of(target: str, options: Mapping[str, Any]) -> Sink:
    """The sink that `package.module:name` leads to; `Mistake` if none does."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise Mistake("object", f"{target!r} names no object: write package.module:name.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise Mistake("object", f"{module} cannot be imported: {error}") from None
    except AttributeError:
        raise Mistake("object", f"there is no {name} in {module}.") from None
    if _is_sink(found) and not inspect.isclass(found):
        return _without_options(found, target, options)
    if not callable(found):
        raise Mistake("object", f"{target} is no sink, and cannot be called to make one.")
    if _takes_batches(found):
        return _without_options(FunctionSink(found), target, options)
    try:
        made = found(**options)
    except TypeError as error:
        raise Mistake("options", f"{target} does not take these options: {error}") from None
    if not _is_sink(made):
        raise Mistake("object", f"{target} has made a {type(made).__name__}, which is no sink.")
    sink: Sink = made
    return sink


def _is_sink(found: Any) -> bool:
    return all(callable(getattr(found, name, None)) for name in _METHODS)


def _takes_batches(found: Any) -> bool:
    """Whether it is a function write(rows, batch)."""
    if not inspect.isfunction(found):
        return False
    return list(inspect.signature(found).parameters) == ["rows", "batch"]


def _without_options(sink: Sink, target: str, options: Mapping[str, Any]) -> Sink:
    if options:
        raise Mistake("options", f"{target} takes no options: it is made already.")
    return sink


def _make(options: Mapping[str, Any]) -> Sink:
    return sink_of(options["object"], dict(options["options"] or {}))


SINK: Final = Declaration(
    "python",
    "a sink of one's own",
    (
        Option("object", Kind.TEXT, "where it is: `package.module:name`", required=True),
        Option(
            "options", Kind.MAP, "what a class or function is called with to make it", secret=True
        ),
    ),
    _make,
)
