"""All sources, sinks and formats, by the names that a pipeline's file gives them.

A row says where the declaration is; nothing is imported until it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from ottla.pipelines.connectors.option import Declaration

SOURCES: Final[Mapping[str, str]] = {
    "topic": "ottla.pipelines.connectors.sources.topic:SOURCE",
    "files": "ottla.pipelines.connectors.sources.files:SOURCE",
    "postgres": "ottla.pipelines.connectors.sources.postgres:SOURCE",
    "sqlite": "ottla.pipelines.connectors.sources.sqlite:SOURCE",
    "http": "ottla.pipelines.connectors.sources.http:SOURCE",
    "generator": "ottla.pipelines.connectors.sources.generator:SOURCE",
    "spark": "ottla.pipelines.connectors.sources.spark:SOURCE",
    "python": "ottla.pipelines.connectors.sources.python:SOURCE",
}

SINKS: Final[Mapping[str, str]] = {
    "topic": "ottla.pipelines.connectors.sinks.topic:SINK",
    "files": "ottla.pipelines.connectors.sinks.files:SINK",
    "postgres": "ottla.pipelines.connectors.sinks.postgres:SINK",
    "sqlite": "ottla.pipelines.connectors.sinks.sqlite:SINK",
    "http": "ottla.pipelines.connectors.sinks.http:SINK",
    "console": "ottla.pipelines.connectors.sinks.console:SINK",
    "spark": "ottla.pipelines.connectors.sinks.spark:SINK",
    "python": "ottla.pipelines.connectors.sinks.python:SINK",
}


def source(name: str) -> Declaration:
    """The declaration of a source; KeyError if there is none."""
    return _load(SOURCES[name])


def sink(name: str) -> Declaration:
    """The declaration of a sink; KeyError if there is none."""
    return _load(SINKS[name])


def _load(target: str) -> Declaration:
    module, _, attribute = target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, Declaration):
        raise TypeError(f"{target} is no declaration of a source or sink")
    return found
