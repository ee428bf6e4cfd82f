"""docs/reference/python.md: everything that `import ottla` gives, in its own words."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, ForwardRef

import ottla
from ottla.client.consumer_options import ConsumerOptions
from ottla.client.options import options_of
from ottla.client.producer import ProducerOptions

_INTRODUCTION = """\
# Python

<!-- Made by `make docs` from the classes' own signatures and docstrings; a test compares. -->

Everything here is imported from `ottla`. The asyncio variants have the same methods, to be
awaited, with the same arguments. Programs that use them are in
[examples](../../examples/README.md) and in the [quickstart](../quickstart.md).

Not there yet: TLS and SASL for those methods of `Admin` that are about groups,
transactions, data folders and elections.
"""

_CLIENTS = (
    *("Producer", "Transaction", "Consumer", "Admin"),
    *("AsyncProducer", "AsyncTransaction", "AsyncConsumer", "AsyncAdmin"),
)
_OPTIONS = {"Producer": ProducerOptions, "Consumer": ConsumerOptions}

ALIASES = {
    "Acks": 'what `acks=` takes: `"all"`, 1, 0 (or -1, which is "all")',
    "Compression": "the name of a codec",
    "DecodeErrorHandler": "a function of a stored record and the `RecordDecodeError`",
    "DeliveryCallback": "a function of a `Delivery` or None, and a `KafkaError` or None",
    "Deserializer": "a `Serde`, or a function from bytes",
    "Headers": "a mapping, or (name, value) pairs; values are bytes, str or None",
    "OffsetSpec": '`"earliest"`, `"latest"`, `"max-timestamp"` or a datetime',
    "Partitioner": "a function of a key and the number of partitions",
    "Partitions": "a topic's name for all of its partitions, or (topic, number) pairs",
    "Position": 'an offset, -N for N before the end, a datetime, `"earliest"` or `"latest"`',
    "RebalanceCallback": "a function of the partitions concerned",
    "Serializer": "a `Serde`, or a function to bytes",
    "StatisticsCallback": "a function of a dictionary",
    "TimestampType": '`"create"`, `"append"` or `"none"`',
}


def render() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for name in _CLIENTS:
        parts += _client(name, getattr(ottla, name))
    parts.append("## Values\n")
    others = (*_CLIENTS, *ALIASES, *(declared.__name__ for declared in _OPTIONS.values()))
    names = [name for name in ottla.__all__ if name not in others and name[0] != "_"]
    kinds = {name: getattr(ottla, name) for name in names}
    errors = [name for name, kind in kinds.items() if _is_error(kind)]
    for name in names:
        if name not in errors:
            parts += _value(name, kinds[name])
    parts.append("## Names for types\n")
    parts += [f"- `{name}`: {words}" for name, words in ALIASES.items()]
    parts.append("\n## Errors\n")
    for name in errors:
        parts += [f"### {name}\n", f"{_words(kinds[name])}\n"]
    return "\n".join(parts)


def _client(name: str, kind: type) -> Iterator[str]:
    yield f"## {name}\n"
    words = _words(kind).partition("\n\nOptions,")[0]
    yield f"{_paragraphs(words)}\n"
    declared = _OPTIONS.get(name)
    if declared is not None:
        yield "| option | type | default | |\n|---|---|---|---|"
        for option in options_of(declared):
            kind_text = option.kind.replace("|", "\\|")
            yield f"| `{option.name}` | `{kind_text}` | `{option.default}` | {option.doc} |"
        yield ""
    blocking = getattr(ottla, name.removeprefix("Async"))
    same = [method for method, function in _methods(kind) if _is_same(function, method, blocking)]
    if blocking is not kind:
        listed = ", ".join(f"`{method}`" for method in same)
        yield f"As in `{blocking.__name__}`, awaited where that waits: {listed}.\n"
    for method, function in _methods(kind):
        if blocking is not kind and method in same:
            continue
        yield f"### {name}.{method}\n"
        if isinstance(function, property):
            yield f"{_words(function)}\n"
        else:
            yield f"```python\n{method}{_signature(function)}\n```\n"
            yield f"{_paragraphs(_words(function))}\n"


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in inspect.getmembers_static(kind):
        if name[0] != "_" and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


def _is_same(function: Any, name: str, blocking: type) -> bool:
    """Whether a method has a namesake that takes the same arguments and gives the same."""
    other = getattr(blocking, name, None)
    if isinstance(function, property) or other is None:
        return other is not None
    return _signature(function) == _signature(other)


def _signature(function: Any) -> str:
    """The parameters as they are written, without the quotes of postponed annotations."""
    signature = inspect.signature(function)
    parts: list[str] = []
    starred = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        text = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            text = f"*{text}"
            starred = True
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        parts.append(text)
    result = _annotation(signature.return_annotation)
    line = f"({', '.join(parts)}) -> {result}"
    if len(line) <= 90:
        return line
    body = "".join(f"    {part},\n" for part in parts)
    return f"(\n{body}) -> {result}"


def _default(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _annotation(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return getattr(annotation, "__name__", str(annotation)).replace("NoneType", "None")


def _value(name: str, kind: Any) -> Iterable[str]:
    yield f"### {name}\n"
    if not isinstance(kind, type):
        yield f"A `Serde`: {kind.name}.\n"
        return
    yield f"{_paragraphs(_words(kind))}\n"
    fields: list[str] = []
    if dataclasses.is_dataclass(kind):
        fields = [f"{field.name}: {_annotation(field.type)}" for field in dataclasses.fields(kind)]
    elif hasattr(kind, "_fields"):
        hints = kind.__annotations__
        fields = [f"{field}: {_annotation(hints[field])}" for field in kind._fields]
    if fields:
        yield "```python\n" + "\n".join(fields) + "\n```\n"
    for method, function in _methods(kind):
        yield f"- `{method}`: {_words(function)}".replace("\n", " ")
    yield ""


def _words(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _paragraphs(words: str) -> str:
    """A docstring as Markdown: lines that are lined up by hand keep their places."""
    blocks = []
    for block in words.split("\n\n"):
        lines = block.split("\n")
        table = any("   " in line.strip() for line in lines) or lines[0].startswith(" ")
        blocks.append("```text\n" + block + "\n```" if table else block)
    return "\n\n".join(blocks)


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)
