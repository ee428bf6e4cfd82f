"""Writes the encoder of one (message, version): straight-line Python that fills a bytearray.

Consecutive fixed-width fields go through one `struct.Struct`, and the length that follows
them rides along. Records are never copied: at a records field the bytearray so far is
closed as one part, the records object becomes the next part, and a new bytearray begins, so
a Fetch response is bytes, file region, bytes, file region and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ottla.protocol.primitives import MAX_STRING, EncodeError, NotInVersion, Part, uvarint
from ottla.protocol.schema import Field, Schema, schema_of
from ottla.protocol.source import (
    CODES,
    REPEATED,
    SHORT_ARRAY,
    Source,
    default_instance,
    default_value,
)


def compile_encoder(
    message_class: type, version: int, *, in_turns: bool = False
) -> Callable[[Any, list[Part]], Any]:
    """The function (message, parts) -> length."""
    schema = schema_of(message_class)
    return _EncoderWriter(schema, version, in_turns).write(message_class)


class _EncoderWriter:
    """Walks the fields of one version and writes what appends them to the local `buf`.

    `pending` holds (struct code, expression) of what is not appended yet; `_flush` turns it
    into one packing statement.
    """

    def __init__(self, schema: Schema, version: int, in_turns: bool) -> None:
        self._in_turns = in_turns
        self._title = f"{schema.name} v{version}"
        self._version = version
        self._flexible = schema.flexible.includes(version)
        self._pending: list[tuple[str, str]] = []
        self._buffer = "buf"
        self._source = source = Source(f"{self._title} encoder")
        source.bind("uvarint", uvarint)
        source.bind("unsupported", _unsupported)
        source.bind("too_long", _too_long)
        source.bind("not_an_id", _not_an_id)

    def write(self, message_class: type) -> Callable[[Any, list[Part]], Any]:
        source = self._source
        with source.block("def encode(message, parts):"):
            source.line("mark = len(parts)")
            source.line("total = 0")
            if self._in_turns:
                source.begin_turns()
            with source.block("try:"):
                source.line("buf = bytearray()")
                self._struct(message_class, "message", self._title)
                self._flush()
            failures = "(StructError, TypeError, AttributeError, UnicodeEncodeError)"
            with source.block(f"except {failures} as error:"):
                source.line("del parts[mark:]")
                source.line(f"raise EncodeError(f'{self._title}: {{error}}') from error")
            with source.block("except ValueError:"):
                source.line("del parts[mark:]")
                source.line("raise")
            with source.block("if buf:"):
                source.line("parts.append(buf)")
            source.line("return total + len(buf)")
        return source.compile("encode")

    def _struct(self, cls: type, value: str, path: str) -> None:
        """Append one structure held by the local `value`."""
        tagged = []
        for field in schema_of(cls).fields:
            attribute = f"{value}.{field.name}"
            field_path = f"{path} {field.name}"
            if not field.versions.includes(self._version):
                if not field.ignorable:
                    with self._source.block(f"if {self._differs(field, attribute)}:"):
                        self._source.line(f"unsupported({field_path!r})")
            elif field.tag is not None and self._flexible:
                tagged.append((field, attribute, field_path))
            else:
                self._field(field, attribute, field_path)
        if self._flexible:
            self._tagged_fields(tagged)

    def _differs(self, field: Field, attribute: str) -> str:
        """An expression: the value is not the default."""
        default = default_value(field)
        if field.type == "struct":
            assert isinstance(field.element, type)
            unset = f"default_{field.element.__name__}"
            if unset not in self._source.names:
                self._source.bind(unset, default_instance(field.element))
            if field.null_is_written(self._version):
                return f"({attribute} is None or {attribute} != {unset})"
            if field.tag is not None and field.nullable.includes(self._version):
                return f"{attribute} is not None"
            return f"{attribute} is not None and {attribute} != {unset}"
        if default is None:
            return f"{attribute} is not None"
        if default == [] or default is False:
            return f"{attribute}"
        return f"{attribute} != {self._source.constant(default)}"

    def _flush(self, *extra: tuple[str, str]) -> None:
        """Append everything pending, and `extra`, by one statement."""
        items = [*self._pending, *extra]
        self._pending.clear()
        self._append(items)

    def _append(self, items: list[tuple[str, str]]) -> None:
        if not items:
            return
        codes = [code for code, _ in items]
        values = ", ".join(value for _, value in items)
        pack = self._source.packer(codes)
        if all(value.lstrip("-").isdigit() for _, value in items):
            literal = self._source.names[pack](*(int(value) for _, value in items))
            self._source.line(f"{self._buffer} += {literal!r}")
        elif codes == ["B"]:
            self._source.line(f"{self._buffer}.append({values})")
        else:
            self._source.line(f"{self._buffer} += {pack}({values})")

    def _field(self, field: Field, attribute: str, path: str, *, tagged: bool = False) -> None:
        nullable = field.nullable.includes(self._version)
        if field.type == "uuid":
            self._uuid(attribute, path)
        elif field.type in CODES:
            self._pending.append((CODES[field.type], attribute))
        elif field.type == "struct":
            assert isinstance(field.element, type)
            self._nested(field.element, attribute, path, nullable, tagged=tagged)
        else:
            local = self._source.fresh("v")
            self._source.line(f"{local} = {attribute}")
            if field.type == "array":
                self._unless_null(
                    nullable, local, "i", lambda: self._array(field.element, local, path)
                )
            elif field.type == "records":
                self._unless_null(nullable, local, "i", lambda: self._records(local))
            else:
                narrow = "h" if field.type == "string" else "i"
                self._unless_null(
                    nullable, local, narrow, lambda: self._run(field.type, local, path)
                )

    def _uuid(self, value: str, path: str) -> None:
        # struct's "16s" would silently pad or cut a value of another length.
        with self._source.block(f"if len({value}) != 16:"):
            self._source.line(f"not_an_id({path!r}, {value})")
        self._pending.append(("16s", value))

    def _unless_null(
        self, nullable: bool, local: str, narrow: str, write: Callable[[], None]
    ) -> None:
        """Append null for None where that is allowed, else what `write` appends."""
        if not nullable:
            write()
            return
        before = list(self._pending)
        with self._source.block(f"if {local} is None:"):
            self._flush(("B", "0") if self._flexible else (narrow, "-1"))
        self._pending[:] = before
        with self._source.block("else:"):
            write()
            self._flush()

    def _length(self, size: str, narrow: str) -> None:
        """Append a length or a count, with all that is pending before it."""
        if not self._flexible:
            self._pending.append((narrow, size))
            return
        before = list(self._pending)
        with self._source.block(f"if {size} < 127:"):
            self._flush(("B", f"{size} + 1"))
        with self._source.block("else:"):
            self._append(before)
            self._source.line(f"{self._buffer} += uvarint({size} + 1)")

    def _run(self, wire_type: str, local: str, path: str) -> None:
        """A string or bytes: a length and that many bytes."""
        source = self._source
        size = source.fresh("n")
        if wire_type == "string":
            source.line(f"{local} = {local}.encode()")
        source.line(f"{size} = len({local})")
        if wire_type == "string":
            with source.block(f"if {size} > {MAX_STRING}:"):
                source.line(f"too_long({path!r}, {size})")
        self._length(size, "h" if wire_type == "string" else "i")
        self._flush()
        source.line(f"{self._buffer} += {local}")

    def _records(self, local: str) -> None:
        source = self._source
        assert self._buffer == "buf", f"{self._title}: records inside a tagged field"
        size = source.fresh("n")
        source.line(f"{size} = len({local})")
        self._length(size, "i")
        self._flush()
        with source.block(f"if {size}:"):
            source.line("parts.append(buf)")
            source.line(f"parts.append({local})")
            source.line(f"total += len(buf) + {size}")
            source.line("buf = bytearray()")

    def _nested(
        self, cls: type, attribute: str, path: str, nullable: bool, *, tagged: bool
    ) -> None:
        local = self._source.fresh("inner")
        self._source.line(f"{local} = {attribute}")
        if not nullable:
            self._struct(cls, local, path)
            return
        before = list(self._pending)
        with self._source.block(f"if {local} is None:"):
            self._flush(("b", "0" if tagged else "-1"))
        self._pending[:] = before
        with self._source.block("else:"):
            self._pending.append(("b", "1"))
            self._struct(cls, local, path)
            self._flush()

    def _array(self, element: str | type | None, local: str, path: str) -> None:
        source = self._source
        size = source.fresh("n")
        source.line(f"{size} = len({local})")
        if isinstance(element, str) and element in REPEATED:
            self._numbers(element, local, size)
            return
        self._length(size, "i")
        self._flush()
        item = source.fresh("item")
        with source.block(f"for {item} in {local}:"):
            if isinstance(element, type):
                self._struct(element, item, path)
            elif element == "uuid":
                self._uuid(item, path)
            else:
                assert element is not None
                self._run(element, item, path)
            self._flush()
            if self._in_turns:
                source.end_of_turn()

    def _numbers(self, element: str, local: str, size: str) -> None:
        """An array of integers. A short one (replicas) goes out with its count and all that
        is pending by one statement."""
        source = self._source
        before = list(self._pending)
        count = ("B", f"{size} + 1") if self._flexible else ("i", size)
        codes = [code for code, _ in (*before, count)]
        values = ", ".join(value for _, value in (*before, count))
        pack = source.array_packers(codes, CODES[element])
        with source.block(f"if {size} < {SHORT_ARRAY}:"):
            source.line(f"{self._buffer} += {pack}[{size}]({values}, *{local})")
        with source.block("else:"):
            self._length(size, "i")
            self._flush()
            several = source.bind(f"pack_{element}s", REPEATED[element].pack)
            source.line(f"{self._buffer} += {several}({local})")
        self._pending.clear()

    def _tagged_fields(self, fields: list[tuple[Field, str, str]]) -> None:
        """Append those that differ from their default, by ascending tag, each with its size."""
        if not fields:
            self._pending.append(("B", "0"))
            return
        source = self._source
        fields = sorted(fields, key=lambda entry: entry[0].tag or 0)
        conditions = [self._differs(field, attribute) for field, attribute, _ in fields]
        before = list(self._pending)
        with source.block(f"if {' or '.join(conditions)}:"):
            self._flush()
            count, section, payload = (source.fresh(s) for s in ("tags", "section", "payload"))
            source.line(f"{count} = 0")
            source.line(f"{section} = bytearray()")
            outer = self._buffer
            for (field, attribute, path), condition in zip(fields, conditions, strict=True):
                with source.block(f"if {condition}:"):
                    source.line(f"{payload} = bytearray()")
                    self._buffer = payload
                    self._field(field, attribute, path, tagged=True)
                    self._flush()
                    self._buffer = outer
                    source.line(f"{count} += 1")
                    source.line(f"{section} += uvarint({field.tag}) + uvarint(len({payload}))")
                    source.line(f"{section} += {payload}")
            source.line(f"{outer} += uvarint({count})")
            source.line(f"{outer} += {section}")
        self._pending[:] = before
        with source.block("else:"):
            self._flush(("B", "0"))


def _unsupported(path: str) -> NoReturn:
    raise NotInVersion(f"{path}: this version cannot carry it, and it is not at its default")


def _too_long(path: str, size: int) -> NoReturn:
    raise EncodeError(f"{path}: {size} bytes of string, more than {MAX_STRING}")


def _not_an_id(path: str, value: bytes) -> NoReturn:
    raise EncodeError(f"{path}: an id has 16 bytes, not {len(value)}")
