"""A filled-in instance of any message in any version, for tests that go through all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.protocol.apis import APIS
from ottla.protocol.schema import Field, schema_of

VALUES: dict[str, Any] = {
    "bool": True,
    "int8": 5,
    "int16": 6,
    "uint16": 7,
    "int32": 8,
    "int64": 9,
    "float64": 1.5,
    "uuid": bytes(range(16)),
    "string": "Ottla ö",
    "bytes": b"bytes",
    "records": b"some records",
}


def filled(cls: type, version: int) -> Any:
    """Every field of the version set to something that is not its default; arrays hold two."""
    values = {}
    for field in schema_of(cls).fields:
        if field.versions.includes(version):
            values[field.name] = _value(field, version)
    return cls(**values)


def _value(field: Field, version: int) -> Any:
    if field.type == "struct":
        assert isinstance(field.element, type)
        return filled(field.element, version)
    if field.type == "array":
        if isinstance(field.element, type):
            return [filled(field.element, version) for _ in range(2)]
        assert field.element is not None
        return [VALUES[field.element]] * 2
    return VALUES[field.type]


@pytest.fixture(scope="session")
def fill() -> Callable[[type, int], Any]:
    return filled


@pytest.fixture(scope="session")
def every_version() -> list[tuple[type[Any], int]]:
    """All (message class, version) there are."""
    return [
        (cls, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
        for cls in (api.request, api.response)
    ]
