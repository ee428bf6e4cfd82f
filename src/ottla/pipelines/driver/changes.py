"""Whether a query is the one that a checkpoint was made by.

A checkpoint says how far something was read. It does not say what: another topic, another filter
or another table over the same checkpoint would leave rows out, or write them twice, and nobody
would notice. So what a pipeline does is remembered as digests, one for each of its parts, and a
start compares them. Secrets are left out: a password that was changed changes no row. Of an address
with a password in it, the place to which it leads is remembered: another database has other rows.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.pipelines.connectors.spec.values import Connector, PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def query_of(spec: PipelineSpec) -> dict[str, str]:
    """What a pipeline does: the names of its parts, each with a digest."""
    found = {"transform": _digest(_text(spec.transform))}
    for role, connector in (("source", spec.source), ("sink", spec.sink)):
        found[role] = connector.name
        found |= {
            f"{role}.{connector.name}.{name}": _digest(value)
            for name, value in _open_options(connector).items()
        }
    return dict(sorted(found.items()))


def without_secrets(before: Mapping[str, str], spec: PipelineSpec) -> dict[str, str]:
    """What was remembered, without options that have been taken for secrets only since."""
    secret = {
        f"{role}.{connector.name}.{option.name}"
        for role, connector in (("source", spec.source), ("sink", spec.sink))
        for option in connector.declaration.options
        if option.secret
    }
    return {part: digest for part, digest in before.items() if part not in secret}


def places_of(spec: PipelineSpec) -> dict[str, str]:
    """Where a pipeline reads and writes, as far as secrets say so: `source.postgres.dsn`."""
    return {
        f"{role}.{connector.name}.{option.name}": option.place(connector.options[option.name])
        for role, connector in (("source", spec.source), ("sink", spec.sink))
        for option in connector.declaration.options
        if option.place is not None and connector.options.get(option.name) is not None
    }


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What has changed, by name, in order: `transform`, `sink`, `sink.topic.name`."""
    changed = [
        part for part in sorted(before.keys() | now.keys()) if before.get(part) != now.get(part)
    ]
    roles = {part for part in changed if "." not in part}
    # Another sink has other options; to name them all would say nothing more.
    return [part for part in changed if "." not in part or part.split(".")[0] not in roles]


def _open_options(connector: Connector) -> dict[str, Any]:
    secret = {each.name for each in connector.declaration.options if each.secret}
    return {name: value for name, value in connector.options.items() if name not in secret}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(transform: str | Callable[[DataFrame], DataFrame] | None) -> str | None:
    if transform is None or isinstance(transform, str):
        return transform
    name = f"{transform.__module__}:{getattr(transform, '__qualname__', transform)}"
    try:
        return f"{name}\n{inspect.getsource(transform)}"
    except (OSError, TypeError):  # typed into a prompt, or no plain function
        return name
