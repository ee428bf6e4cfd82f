"""Source text under construction, and the names it refers to; shared by both generators.

Generated code is meant to be read: it is registered with `linecache`, so a traceback shows
its lines, and the functions in it are named after what they do (`unpack_hiB` reads an int16,
an int32 and a byte).
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from typing import Any

from ottla.protocol.primitives import ZERO_UUID, DecodeError, EncodeError, Repeated
from ottla.protocol.schema import Field, schema_of

CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The `struct` code of each fixed-width wire type."""

TURN = 256
"""Elements after which a codec in turns gives way to others: some 0.2 ms."""

SHORT_ARRAY = 16
"""Arrays of integers shorter than this have a ready-made layout for each length."""

REPEATED = {name: Repeated(CODES[name]) for name in ("int8", "int16", "int32", "int64")}

_IMPLICIT: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "struct": None,
    "records": None,
}


def default_value(field: Field) -> Any:
    """The value Kafka gives a field that nobody set."""
    if field.type == "array" and field.default is not None:
        return []
    if field.required:
        return _IMPLICIT.get(field.type, 0)
    return field.default


def default_instance(struct_class: type) -> Any:
    """A structure in which nothing was set; a tagged one that equals it is not written."""
    return struct_class(**{f.name: default_value(f) for f in schema_of(struct_class).fields})


class Source:
    """Lines of one function with their indentation, and the globals they need."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.names: dict[str, Any] = {
            "DecodeError": DecodeError,
            "EncodeError": EncodeError,
            "StructError": struct.error,
            "new": object.__new__,
        }
        self._lines: list[str] = []
        self._depth = 0
        self._count = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def block(self, opening: str) -> Block:
        """`with source.block("if x:"):` indents what is written inside."""
        self.line(opening)
        return Block(self)

    def indent(self, by: int) -> None:
        self._depth += by

    def begin_turns(self) -> None:
        self.line(f"turn = {TURN}")
        with self.block("if not turn:"):  # so that it is a generator also without any array
            self.line("yield 0")

    def end_of_turn(self) -> None:
        """At the end of each element: yield when it was the last of a turn."""
        self.line("turn -= 1")
        with self.block("if not turn:"):
            self.line(f"turn = {TURN}")
            self.line("yield 0")

    def fresh(self, stem: str) -> str:
        """A local name nobody has used yet."""
        self._count += 1
        return f"{stem}{self._count}"

    def bind(self, name: str, value: Any) -> str:
        """Make `value` a global of the generated code; two values never share a name."""
        while self.names.setdefault(name, value) is not value:
            name += "_"
        return name

    def constant(self, value: Any) -> str:
        """An expression for a default."""
        if isinstance(value, list):
            return "[]"
        if value == ZERO_UUID and isinstance(value, bytes):
            return self.bind("ZERO_UUID", ZERO_UUID)
        return repr(value)

    def unpacker(self, codes: list[str]) -> tuple[str, int]:
        """The name of a bound `unpack_from` for these codes, and how many bytes it reads."""
        layout = _layout(codes)
        return self.bind(f"unpack_{_spell(codes)}", layout.unpack_from), layout.size

    def packer(self, codes: list[str]) -> str:
        return self.bind(f"pack_{_spell(codes)}", _layout(codes).pack)

    def array_packers(self, codes: list[str], element: str) -> str:
        """The name of a tuple: at n, a `pack` for these codes followed by n elements."""
        name = f"pack_{_spell(codes)}_{element}s"
        if name not in self.names:
            packers = [_layout([*codes, f"{n}{element}"]).pack for n in range(SHORT_ARRAY)]
            self.names[name] = tuple(packers)
        return name

    def compile(self, function: str) -> Callable[..., Any]:
        """Execute the text and return the function it defines."""
        text = "\n".join(self._lines) + "\n"
        filename = f"<ottla.protocol {self.title}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        exec(compile(text, filename, "exec"), self.names)
        compiled: Callable[..., Any] = self.names[function]
        return compiled


class Block:
    """One level of indentation, as a context manager."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __enter__(self) -> None:
        self._source.indent(1)

    def __exit__(self, *_: object) -> None:
        self._source.indent(-1)


class _Layout:
    """A `struct.Struct` with its bound methods kept, so that equal layouts are one object."""

    def __init__(self, codes: str) -> None:
        layout = struct.Struct(">" + codes)
        self.size = layout.size
        self.pack = layout.pack
        self.unpack_from = layout.unpack_from


_layouts: dict[str, _Layout] = {}


def _layout(codes: list[str]) -> _Layout:
    key = "".join(codes)
    layout = _layouts.get(key)
    if layout is None:
        layout = _layouts[key] = _Layout(key)
    return layout


def _spell(codes: list[str]) -> str:
    return "".join(codes).replace("?", "T").replace("16s", "U")
