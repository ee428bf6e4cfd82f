"""Formats: from the bytes of a record to columns, and back.

`FORMATS` lists them by the names that `format` and `key_format` take. A format is made from its
options (`format: json`, or `format: {avro: {registry: …}}`): `options.py`. What one is, is said in
`contract.py`; how a source uses one, in `reading.py`; how a sink does, in `writing.py`.

A row says where the declaration is; nothing is imported until it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from ottla.pipelines.connectors.option import Declaration

_HERE: Final = "ottla.pipelines.connectors.formats"

FORMATS: Final[Mapping[str, str]] = {
    "json": f"{_HERE}.json:JSON",
    "json_envelope": f"{_HERE}.json_envelope:JSON_ENVELOPE",
    "avro": f"{_HERE}.avro:AVRO",
    "csv": f"{_HERE}.csv:CSV",
    "string": f"{_HERE}.text:STRING",
    "bytes": f"{_HERE}.text:BYTES",
}


def declaration(name: str) -> Declaration:
    """The declaration of a format; KeyError if there is none."""
    module, _, attribute = FORMATS[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, Declaration):
        raise TypeError(f"{FORMATS[name]} is no declaration of a format")
    return found
