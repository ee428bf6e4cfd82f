"""Avro's bytes into plain values (`plain.py`): a function written for one pair of schemas.

The schema that a record was written with and the one that it is to be read as are resolved once,
and become straight-line Python: a field that nobody wants is stepped over, a promotion is one call,
a default is a constant. Walking both schemas for every record takes several times as long.

Nothing that a schema says is ever part of the program's text: names, symbols and defaults come in
through its scope. Bytes are believed nothing: every length is compared with what is left, a block
of an array cannot have more items than bytes, and what is left over at the end is an error. So
memory is bounded by the size of the record, and a damaged one ends in `Undecodable`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from ottla.pipelines.connectors.formats.avro_resolve import (
    chosen,
    decimal_of,
    default_value,
    described,
    fields_read,
    least_size,
    members_of,
    reads,
    unit,
    written_decimal,
)
from ottla.pipelines.connectors.formats.avro_schema import (
    NULL,
    Array,
    AvroError,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    is_choice,
    nullable,
    others,
    widest,
)
from ottla.pipelines.connectors.formats.failure import (
    DAMAGED,
    MISSING,
    SCHEMA_MISMATCH,
    WRONG_TYPE,
    Undecodable,
)
from ottla.pipelines.connectors.formats.plain import Row

_MOST_EMPTY_ITEMS: Final = 10_000
"""In a record, not in an array: arrays of arrays of these take two bytes for each ten thousand."""
_MOST_LOOPS: Final = 18
_DEEPEST: Final = 90
"""CPython compiles 20 loops within each other, and a hundred indentations."""

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_INT64: Final = 1 << 63


def _cut() -> None:
    raise Undecodable(DAMAGED, "the bytes end within a field") from None


def _no_text() -> None:
    raise Undecodable(DAMAGED, "a string is no UTF-8") from None


def _long(data: bytes, place: int, value: int) -> tuple[int, int]:
    """The rest of a variable-length number of 64 bits, not yet zig-zag decoded.

    Each byte's continuation bit is taken away together with the next byte's arrival: b << 7k minus
    128 << 7(k - 1) is (b - 1) << 7k.
    """
    shift = 7
    for byte in data[place : place + 9]:
        value += (byte - 1) << shift
        place += 1
        if byte < 128:
            if value >> 64:
                break
            return value, place
        shift += 7
    else:
        if shift < 70:
            _cut()
    raise Undecodable(DAMAGED, "a number has more than 64 bits")


def _int(data: bytes, place: int, first: int) -> tuple[int, int]:
    value, place = _long(data, place, first)
    if value >> 32:
        raise Undecodable(DAMAGED, "an int has more than 32 bits")
    return value, place


def compile_reader(writer: Node, reader: Node) -> Callable[[bytes, int], Row]:
    """A function of a record's bytes and the place where they begin.

    Raises `AvroError` if nothing that is written so can be read as `reader`.
    """
    program = _Program()
    if isinstance(reader, Record):
        target = program.read(writer, reader, "")
    else:
        target = f"({program.read(writer, reader, 'value')},)"
    # The handlers are part of the function: around it they would cost a call for every record.
    text = "\n".join(
        [
            "def read(data, p):",
            " try:",
            "  end = len(data); empty = 0",
            *program.lines,
            "  if p != end: left(end - p)",
            f"  return {target}",
            " except (IndexError, short): cut()",
            " except UnicodeDecodeError: no_text()",
        ]
    )
    try:
        exec(text, program.scope)
    except (SyntaxError, MemoryError, RecursionError):
        raise AvroError("the schema is nested too deeply") from None
    made: Callable[[bytes, int], Row] = program.scope["read"]
    return made


class _Program:
    """The lines of a function, as they are written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {
            "cut": _cut,
            "short": struct.error,
            "no_text": _no_text,
            "left": _left,
            "more": _long,
            "more_int": _int,
            "double": _DOUBLE.unpack_from,
            "float_": _FLOAT.unpack_from,
            "signed": int.from_bytes,
            "bad": _bad,
        }
        self._depth = 2
        self._loops = 0
        self._count = 0

    def read(self, writer: Node, reader: Node, path: str) -> str:  # noqa: PLR0911 - one for each type
        """Write what reads a value; the result is the name of the variable that holds it."""
        if isinstance(writer, Union):
            return self._union(writer, reader, path)
        if isinstance(reader, Union):
            return self._into_union(writer, reader, path)
        if not reads(writer, reader):
            raise AvroError(
                f"{_where(path)}{described(writer)} cannot be read as {described(reader)}"
            )
        if isinstance(writer, Record) and isinstance(reader, Record):
            return self._record(writer, reader, path)
        if isinstance(writer, Array) and isinstance(reader, Array):
            return self._blocks(writer.items, lambda: self.read(writer.items, reader.items, path))
        if isinstance(writer, Map) and isinstance(reader, Map):
            return self._map(writer, reader, path)
        if isinstance(writer, Enum):
            return self._enum(writer, reader, path)
        return self._simple(writer, reader, path)

    # Lines and names.

    def _line(self, text: str) -> None:
        self.lines.append(" " * self._depth + text)

    def _new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _constant(self, value: Any) -> str:
        self._count += 1
        self.scope[f"c{self._count}"] = value
        return f"c{self._count}"

    def _into(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST or self._loops > _MOST_LOOPS:
            raise AvroError("the schema is nested too deeply")

    def _fail(self, kind: str, message: str) -> str:
        return f"bad({self._constant(kind)}, {self._constant(message)})"

    def _varint(self, more: str = "more") -> None:
        """`n` is a number of the wire, zig-zag encoded."""
        self._line("n = data[p]; p += 1")
        self._line(f"if n > 127: n, p = {more}(data, p, n)")

    def _span(self) -> None:
        """`e` is the end of a length-prefixed stretch that begins at `p`."""
        self._varint()
        self._line("e = p + (n >> 1)")
        self._line("if n & 1 or e > end: cut()")

    # Values.

    def _simple(self, writer: Node, reader: Node, path: str) -> str:
        name = self._new()
        if isinstance(writer, Fixed):
            self._line(f"e = p + {writer.size:d}")
            self._line("if e > end: cut()")
            self._octets(writer, reader, name, path)
            return name
        assert isinstance(writer, Primitive)
        if writer.name in ("bytes", "string"):
            self._span()
            self._octets(writer, reader, name, path)
        elif writer.name in ("int", "long"):
            self._number(writer, reader, name, path)
        elif writer.name == "boolean":
            self._line("n = data[p]; p += 1")
            self._line(f"if n > 1: {self._fail(DAMAGED, f'{_where(path)}no boolean')}")
            self._line(f"{name} = n == 1")
        elif writer.name == "null":
            self._line(f"{name} = None")
        else:
            size, unpack = (8, "double") if writer.name == "double" else (4, "float_")
            self._line(f"{name} = {unpack}(data, p)[0]; p += {size}")
        return name

    def _octets(self, writer: Node, reader: Node, name: str, path: str) -> None:
        wanted = decimal_of(reader)
        if wanted is not None:
            written = written_decimal(writer) or wanted
            self._line(f"{name} = signed(data[p:e], 'big', signed=True); p = e")
            shift = wanted.scale - written.scale
            if shift > 0:
                self._line(f"{name} *= {10**shift:d}")
            elif shift < 0:
                self._line(f"{name}, n = divmod({name}, {10**-shift:d})")
                lost = self._fail(WRONG_TYPE, f"{_where(path)}digits would be lost")
                self._line(f"if n: {lost}")
            limit = 10**wanted.precision
            large = self._fail(WRONG_TYPE, f"{_where(path)}more than {wanted.precision} digits")
            self._line(f"if not -{limit:d} < {name} < {limit:d}: {large}")
        elif isinstance(reader, Primitive) and reader.name == "string":
            self._line(f"{name} = data[p:e].decode(); p = e")
        else:
            self._line(f"{name} = data[p:e]; p = e")

    def _number(self, writer: Primitive, reader: Node, name: str, path: str) -> None:
        assert isinstance(reader, Primitive)
        self._varint("more_int" if writer.name == "int" else "more")
        self._line(f"{name} = (n >> 1) ^ -(n & 1)")
        if reader.name in ("float", "double"):
            self._line(f"{name} = float({name})")
        elif reader.logical is not None and "timestamp" in reader.logical.name:
            step = unit(writer, reader)
            if step > 1:
                self._line(f"{name} *= {step:d}")
                large = self._fail(WRONG_TYPE, f"{_where(path)}a time that is out of range")
                self._line(f"if not -{_INT64:d} <= {name} < {_INT64:d}: {large}")
        elif reader.name == "int" and reader.bits < 32:
            limit = 1 << (reader.bits - 1)
            large = self._fail(WRONG_TYPE, f"{_where(path)}has no room in {reader.bits} bits")
            self._line(f"if not -{limit:d} <= {name} < {limit:d}: {large}")

    def _enum(self, writer: Enum, reader: Node, path: str) -> str:
        symbols: tuple[Any, ...] = writer.symbols
        if isinstance(reader, Enum):
            known = set(reader.symbols)
            symbols = tuple(s if s in known else reader.default for s in writer.symbols)
        elif isinstance(reader, Primitive) and reader.name == "bytes":
            symbols = tuple(symbol.encode() for symbol in writer.symbols)
        name = self._new()
        self._varint("more_int")
        self._line(f"if n & 1: {self._fail(DAMAGED, f'{_where(path)}no symbol of the enum')}")
        self._line(f"{name} = {self._constant(symbols)}[n >> 1]")
        if None in symbols:
            unknown = self._fail(SCHEMA_MISMATCH, f"{_where(path)}a symbol that the schema lacks")
            self._line(f"if {name} is None: {unknown}")
        return name

    def _record(self, writer: Record, reader: Record, path: str) -> str:
        wanted = fields_read(writer, reader)
        found: dict[str, str] = {}
        for field in writer.fields:
            into = wanted.get(field.name)
            if into is None:
                self.skip(field.type)
            else:
                inner = f"{path}.{into.name}" if path else into.name
                found[into.name] = self.read(field.type, into.type, inner)
        for field in reader.fields:
            if field.name not in found:
                inner = f"{path}.{field.name}" if path else field.name
                found[field.name] = self._default(field.type, field.default, inner)
        name = self._new()
        self._line(f"{name} = ({''.join(f'{found[field.name]}, ' for field in reader.fields)})")
        return name

    def _default(self, node: Node, default: str | None, path: str) -> str:
        if default is not None:
            try:
                return self._constant(default_value(node, default))
            except AvroError as error:
                raise AvroError(f"{_where(path)}{error}") from None
        raise AvroError(
            f"{_where(path)}the record's schema does not have it, and it has no default"
        )

    def _union(self, writer: Union, reader: Node, path: str) -> str:
        """One branch for each of the writer's types; only what can be read must be readable."""
        name = self._new()
        self._varint()
        readable = 0
        members = members_of(writer, reader)
        for number, branch in enumerate(writer.branches):
            self._line(f"{'if' if number == 0 else 'elif'} n == {2 * number:d}:")
            self._into()
            if branch == NULL:
                readable += nullable(reader)
                null = f"{_where(path)}null, and it must not be"
                self._line(f"{name} = None" if nullable(reader) else self._fail(MISSING, null))
            else:
                mark, before = len(self.lines), (self._depth, self._loops)
                try:
                    if members is None:
                        value = self.read(branch, reader, path)
                    else:
                        value = self._member(branch, others(writer).index(branch), members, path)
                    self._line(f"{name} = {value}")
                    readable += 1
                except AvroError as error:
                    del self.lines[mark:]
                    self._depth, self._loops = before
                    self._line(self._fail(SCHEMA_MISMATCH, str(error)))
            self._depth -= 1
        self._line(f"else: {self._fail(DAMAGED, f'{_where(path)}no type of the union')}")
        if not readable:
            raise AvroError(
                f"{_where(path)}{described(writer)} cannot be read as {described(reader)}"
            )
        return name

    def _member(self, branch: Node, number: int, members: Record, path: str) -> str:
        if number >= len(members.fields):
            raise AvroError(f"{_where(path)}there is no member{number} for {described(branch)}")
        values = ["None"] * len(members.fields)
        values[number] = self.read(branch, members.fields[number].type, path)
        return f"({', '.join(values)})"

    def _into_union(self, writer: Node, reader: Union, path: str) -> str:
        if writer == NULL:
            if not nullable(reader):
                raise AvroError(f"{_where(path)}null cannot be read as {described(reader)}")
            return "None"
        branches = others(reader)
        one = widest(branches) if len(branches) > 1 else None
        if one is not None:
            return self.read(writer, one, path)
        try:
            number, branch = chosen(writer, reader)
        except AvroError as error:
            raise AvroError(f"{_where(path)}{error}") from None
        value = self.read(writer, branch, path)
        if not is_choice(reader):
            return value
        members = ["None"] * len(branches)
        members[number] = value
        return f"({', '.join(members)})"

    def _map(self, writer: Map, reader: Map, path: str) -> str:
        def item() -> str:
            key = self._new()
            self._span()
            self._line(f"{key} = data[p:e].decode(); p = e")
            return f"({key}, {self.read(writer.values, reader.values, path)})"

        name = self._blocks(writer.values, item, least=1)
        twice = self._fail(DAMAGED, f"{_where(path)}a name is there twice")
        self._line(f"if len(dict({name})) != len({name}): {twice}")
        return name

    def _blocks(self, items: Node, item: Callable[[], str], least: int = 0) -> str:
        """Blocks of items, each with its count; a negative count is followed by a size in bytes."""
        name, count = self._new(), self._new()
        size = max(least_size(items), least)
        self._line(f"{name} = []")
        self._line("while True:")
        self._loops += 2
        self._into()
        self._varint()
        self._line("if not n: break")
        self._line(f"{count} = (n >> 1) ^ -(n & 1)")
        self._line(f"if {count} < 0:")
        self._into()
        self._line(f"{count} = -{count}")
        self._varint()
        self._line("if n & 1 or n >> 1 > end - p: cut()")
        self._depth -= 1
        if size:
            self._line(f"if {count} * {size:d} > end - p: cut()")
        else:
            many = self._fail(DAMAGED, "an array of very many items without bytes")
            self._line(f"empty += {count}")
            self._line(f"if empty > {_MOST_EMPTY_ITEMS:d}: {many}")
        self._line(f"for _ in range({count}):")
        self._into()
        self._line(f"{name}.append({item()})")
        self._depth -= 2
        self._loops -= 2
        return name

    # What nobody wants.

    def skip(self, node: Node) -> None:
        """Step over a value, as careful as if it were read."""
        if isinstance(node, Record):
            for field in node.fields:
                self.skip(field.type)
        elif isinstance(node, Union):
            self._varint()
            for number, branch in enumerate(node.branches):
                self._line(f"{'if' if number == 0 else 'elif'} n == {2 * number:d}:")
                self._into()
                self._line("pass")
                self.skip(branch)
                self._depth -= 1
            self._line("else: " + self._fail(DAMAGED, "no type of a union"))
        elif isinstance(node, (Array, Map)):
            self._skip_blocks(node)
        elif isinstance(node, Fixed):
            self._line(f"p += {node.size:d}")
            self._line("if p > end: cut()")
        elif isinstance(node, Enum) or node.name in ("int", "long"):
            self._varint()
        elif node.name in ("bytes", "string"):
            self._span()
            self._line("p = e")
        elif node.name != "null":
            self._line(f"p += {least_size(node):d}")
            self._line("if p > end: cut()")

    def _skip_blocks(self, node: Array | Map) -> None:
        count = self._new()
        items = node.items if isinstance(node, Array) else node.values
        size = least_size(items) + isinstance(node, Map)
        self._line("while True:")
        self._loops += 2
        self._into()
        self._varint()
        self._line("if not n: break")
        self._line(f"{count} = (n >> 1) ^ -(n & 1)")
        self._line(f"if {count} < 0:")
        self._into()
        self._varint()
        self._line("p += n >> 1")
        self._line("if n & 1 or p > end: cut()")
        self._line("continue")
        self._depth -= 1
        if size:
            self._line(f"if {count} * {size:d} > end - p: cut()")
            self._line(f"for _ in range({count}):")
            self._into()
            if isinstance(node, Map):
                self._span()
                self._line("p = e")
            self.skip(items)
            self._line("pass")
            self._depth -= 1
        self._depth -= 1
        self._loops -= 2


def _left(count: int) -> None:
    raise Undecodable(DAMAGED, f"{count} bytes are left over behind the record")


def _bad(kind: str, message: str) -> None:
    raise Undecodable(kind, message)


def _where(path: str) -> str:
    return f"field {path}: " if path else ""
