"""Writes the decoder of one (message, version): straight-line Python over a memoryview.

Consecutive fixed-width fields are read by one `struct.Struct`, and so is the first byte (or
all bytes) of the length that follows them; structures are inlined and arrays become loops.
Nothing from the wire is believed: a length or an element count is compared with the bytes that
are left before anything is sliced or allocated, and running out of bytes anywhere else raises
IndexError or struct.error, which the function's outermost frame turns into DecodeError.

The smallest element takes a byte or two on the wire but a hundred in memory. So the arrays of one
request may hold `MAX_ELEMENTS` in all; a hundred megabytes of empty names are refused before
they become gigabytes and seconds. Responses come from brokers that we have asked, and have no
such bound.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from ottla.protocol.primitives import (
    MAX_STRING,
    MAX_TAGS,
    DecodeError,
    continue_uvarint,
    read_uvarint,
    skip_tagged_fields,
    too_many_tags,
)
from ottla.protocol.schema import Field, Schema, schema_of
from ottla.protocol.source import CODES, REPEATED, Source, default_instance, default_value

MAX_ELEMENTS = 1 << 18
"""How many array elements, of all arrays together, a request may have: a consumer of 100,000
topics with one partition each needs 200,000."""


FEW_ELEMENTS = 1 << 10
"""What is decoded, and handled, in one go: a millisecond or two."""


class TooManyElements(DecodeError):
    """A request of more elements than were to be decoded."""


def compile_decoder(
    message_class: type, version: int, *, in_turns: bool = False, room: int = MAX_ELEMENTS
) -> Callable[[memoryview, int], Any]:
    """The function (buffer, position) -> (message, end position)."""
    schema = schema_of(message_class)
    return _DecoderWriter(schema, version, in_turns, room).write(message_class)


class _DecoderWriter:
    """Walks the fields of one version and writes what reads them.

    `pending` holds (struct code, assignment target) of fields not read yet; `_flush` turns
    them into one unpacking statement.
    """

    def __init__(self, schema: Schema, version: int, in_turns: bool, room: int) -> None:
        self._in_turns = in_turns
        self._room = room
        self._title = f"{schema.name} v{version}"
        self._version = version
        self._flexible = schema.flexible.includes(version)
        self._bounded = schema.kind == "request"
        self._pending: list[tuple[str, str]] = []
        self._source = source = Source(f"{self._title} decoder")
        source.bind("uvarint", read_uvarint)
        source.bind("longer", continue_uvarint)
        source.bind("skip_tags", skip_tagged_fields)
        source.bind("bad_length", _bad_length)
        source.bind("bad_count", _bad_count)
        source.bind("too_many_tags", too_many_tags)

    def write(self, message_class: type) -> Callable[[memoryview, int], Any]:
        source = self._source
        signature = f"b, p, room={self._room}" if self._bounded else "b, p"
        with source.block(f"def decode({signature}):"):
            with source.block("try:"):
                source.line("end = len(b)")
                if self._in_turns:
                    source.begin_turns()
                self._struct(message_class, "message", self._title)
                self._flush()
                source.line("return message, p")
            with source.block("except (IndexError, StructError) as error:"):
                text = f"{self._title}: the bytes end inside it"
                source.line(f"raise DecodeError({text!r}) from error")
            with source.block("except UnicodeDecodeError as error:"):
                source.line(f"raise DecodeError({self._title + ': not UTF-8'!r}) from error")
        return source.compile("decode")

    def _struct(self, cls: type, target: str, path: str) -> None:
        """Read one structure into the local `target`."""
        source = self._source
        source.line(f"{target} = new({source.bind(cls.__name__, cls)})")
        tagged = []
        for field in schema_of(cls).fields:
            if not field.versions.includes(self._version):
                source.line(f"{target}.{field.name} = {self._default(field)}")
            elif field.tag is not None and self._flexible:
                source.line(f"{target}.{field.name} = {self._when_left_out(field)}")
                tagged.append(field)
            else:
                self._field(field, f"{target}.{field.name}", f"{path} {field.name}")
        if self._flexible:
            self._tagged_fields(tagged, target, path)

    def _default(self, field: Field) -> str:
        return self._source.constant(default_value(field))

    def _when_left_out(self, field: Field) -> str:
        """What a tagged field is when it is not there. Null is another thing, and written out."""
        if not field.null_is_written(self._version):
            return self._default(field)
        assert isinstance(field.element, type)
        make = functools.partial(default_instance, field.element)
        return f"{self._source.bind(f'unset_{field.element.__name__}', make)}()"

    def _flush(self) -> None:
        """Read all pending fields at once."""
        pending = self._pending
        if not pending:
            return
        targets = [target for _, target in pending]
        if [code for code, _ in pending] == ["B"]:
            self._source.line(f"{targets[0]} = b[p]")
            self._source.line("p += 1")
        else:
            unpack, size = self._source.unpacker([code for code, _ in pending])
            left = ", ".join(targets) if len(targets) > 1 else f"{targets[0]},"
            self._source.line(f"{left} = {unpack}(b, p)")
            self._source.line(f"p += {size}")
        pending.clear()

    def _field(self, field: Field, target: str, path: str, *, tagged: bool = False) -> None:
        nullable = field.nullable.includes(self._version)
        if field.type in CODES:
            self._pending.append((CODES[field.type], target))
        elif field.type == "struct":
            assert isinstance(field.element, type)
            self._nested(field.element, target, path, nullable, tagged=tagged)
        elif field.type == "array":
            self._array(field, target, path, nullable)
        else:
            self._run(field.type, target, path, nullable)

    def _length(self, narrow: str) -> str:
        """Read a length or a count; the name of the local that holds it, -1 meaning null.

        A compact length is written plus one. One byte and two bytes are read in place.
        """
        source = self._source
        size = source.fresh("n")
        self._pending.append(("B" if self._flexible else narrow, size))
        self._flush()
        if self._flexible:
            second = source.fresh("more")
            with source.block(f"if {size} > 127:"):
                source.line(f"{second} = b[p]")
                with source.block(f"if {second} < 128:"):
                    source.line(f"{size} += ({second} << 7) - 128")
                    source.line("p += 1")
                with source.block("else:"):
                    source.line(f"{size}, p = longer(b, p, {size})")
            source.line(f"{size} -= 1")
        return size

    def _run(self, wire_type: str, target: str, path: str, nullable: bool) -> None:
        """A string, bytes or records: a length and that many bytes."""
        source = self._source
        size = self._length("h" if wire_type == "string" else "i")
        stop = source.fresh("stop")
        checks = [f"{stop} > end"]
        if not nullable:
            checks.append(f"{size} < 0")
        if wire_type == "string" and self._flexible:
            checks.append(f"{size} > {MAX_STRING}")
        value = {
            "string": f"b[p:{stop}].tobytes().decode()",
            "bytes": f"b[p:{stop}].tobytes()",
            "records": f"b[p:{stop}]",
        }[wire_type]

        def read() -> None:
            source.line(f"{stop} = p + {size}")
            with source.block(f"if {' or '.join(checks)}:"):
                source.line(f"bad_length({path!r}, {size}, end - p)")
            source.line(f"{target} = {value}")
            source.line(f"p = {stop}")

        self._unless_null(nullable, size, target, read)

    def _unless_null(
        self, nullable: bool, size: str, target: str, read: Callable[[], None]
    ) -> None:
        if not nullable:
            read()
            return
        with self._source.block(f"if {size} < 0:"):
            self._source.line(f"{target} = None")
        with self._source.block("else:"):
            read()

    def _nested(self, cls: type, target: str, path: str, nullable: bool, *, tagged: bool) -> None:
        source = self._source
        local = source.fresh("inner")
        if not nullable:
            self._struct(cls, local, path)
            source.line(f"{target} = {local}")
            return
        presence = source.fresh("n")
        # One byte says whether it is there: -1 or 1; in a tagged field 0 or 1.
        self._pending.append(("B" if tagged else "b", presence))
        self._flush()
        if tagged:
            source.line(f"{presence} -= 1")

        def read() -> None:
            self._struct(cls, local, path)
            self._flush()
            source.line(f"{target} = {local}")

        self._unless_null(True, presence, target, read)

    def _array(self, field: Field, target: str, path: str, nullable: bool) -> None:
        source = self._source
        count = self._length("i")
        smallest = self._smallest(field.element)
        checks = [f"{count} * {smallest} > end - p" if smallest > 1 else f"{count} > end - p"]
        if not nullable:
            checks.append(f"{count} < 0")
        if self._bounded:
            checks.append("room < 0")

        def read() -> None:
            if self._bounded:
                source.line(f"room -= {count}")
            with source.block(f"if {' or '.join(checks)}:"):
                source.line(f"bad_count({path!r}, {count}, {smallest}, end - p)")
            self._elements(field.element, count, target, path)

        self._unless_null(nullable, count, target, read)

    def _elements(self, element: str | type | None, count: str, target: str, path: str) -> None:
        source = self._source
        if isinstance(element, str) and element in REPEATED:
            several = source.bind(f"unpack_{element}s", REPEATED[element].unpack)
            source.line(f"{target} = {several}(b, p, {count})")
            source.line(f"p += {count} * {self._smallest(element)}")
            return
        items, add = source.fresh("items"), source.fresh("add")
        source.line(f"{target} = {items} = []")
        source.line(f"{add} = {items}.append")
        with source.block(f"for _ in range({count}):"):
            item = source.fresh("item")
            if isinstance(element, type):
                self._struct(element, item, path)
            elif element in CODES:
                self._pending.append((CODES[element], item))
            else:
                assert element is not None
                self._run(element, item, path, nullable=False)
            self._flush()
            source.line(f"{add}({item})")
            if self._in_turns:
                source.end_of_turn()

    def _tagged_fields(self, fields: list[Field], target: str, path: str) -> None:
        source = self._source
        count = source.fresh("tags")
        self._pending.append(("B", count))
        self._flush()
        with source.block(f"if {count}:"):
            if not fields:
                source.line(f"p = skip_tags(b, p, {count})")
                return
            tag, size, stop = source.fresh("tag"), source.fresh("n"), source.fresh("stop")
            with source.block(f"if {count} > 127:"):
                source.line(f"{count}, p = longer(b, p, {count})")
            with source.block(f"if {count} > {MAX_TAGS}:"):
                source.line(f"too_many_tags({count})")
            with source.block(f"for _ in range({count}):"):
                source.line(f"{tag}, p = uvarint(b, p)")
                source.line(f"{size}, p = uvarint(b, p)")
                source.line(f"{stop} = p + {size}")
                with source.block(f"if {stop} > end:"):
                    source.line(f"bad_length({path + ' tagged field'!r}, {size}, end - p)")
                word = "if"
                for field in fields:
                    with source.block(f"{word} {tag} == {field.tag}:"):
                        self._field(
                            field, f"{target}.{field.name}", f"{path} {field.name}", tagged=True
                        )
                        self._flush()
                    word = "elif"
                with source.block("else:"):
                    source.line(f"p = {stop}")
                with source.block(f"if p != {stop}:"):
                    source.line(f"bad_length({path + ' tagged field'!r}, {size}, end - p)")

    def _smallest(self, element: str | type | None) -> int:
        """The fewest bytes one value can take in this version."""
        fixed = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8}
        fixed |= {"float64": 8, "uuid": 16}
        if isinstance(element, type):
            total = int(self._flexible)
            for field in schema_of(element).fields:
                if field.versions.includes(self._version) and field.tag is None:
                    if field.type != "struct":
                        total += self._smallest(field.type)
                    elif field.nullable.includes(self._version):
                        total += 1
                    else:
                        total += self._smallest(field.element)
            assert total, f"{self._title}: an empty {element.__name__} has no bytes to count by"
            return total
        assert element is not None
        if element in fixed:
            return fixed[element]
        return 1 if self._flexible else 2 if element == "string" else 4


def _bad_length(path: str, size: int, left: int) -> NoReturn:
    if size < 0:
        raise DecodeError(f"{path}: null, which is not allowed here")
    raise DecodeError(f"{path}: a length of {size} with {left} bytes left")


def _bad_count(path: str, count: int, smallest: int, left: int) -> NoReturn:
    if count < 0:
        raise DecodeError(f"{path}: null, which is not allowed here")
    if count * smallest > left:
        raise DecodeError(f"{path}: {count} elements claimed with {left} bytes left")
    raise TooManyElements(f"{path}: {count} elements are too many for one request")
