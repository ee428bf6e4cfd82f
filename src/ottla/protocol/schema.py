"""The language in which messages are declared, and what a declaration becomes.

    @struct
    class FinalizedFeatureKey:
        name: str = string()
        max_version_level: int = int16()

    @message(api_key=18, kind="response", versions="0-4", flexible="3+")
    class ApiVersionsResponse:
        error_code: int = int16(default=0)
        finalized_features: list[FinalizedFeatureKey] = array(
            FinalizedFeatureKey, versions="3+", tag=2, ignorable=True, factory=list
        )

The annotation is for people and type checkers (`dataclass_transform`: the class has a keyword
constructor with these types); the right-hand side is the wire. One class serves all versions:

- `versions`: where the field exists. Elsewhere it decodes to its default, and encodes to
  nothing; a value that is not the default is then refused, unless the field is `ignorable`.
  A field that some version lacks must have a default.
- `nullable`: the versions in which null may be written. None where it may not is an error.
- `tag`: the field travels in the tagged section, only when it differs from its default. A
  tagged structure defaults to None here (Kafka has an instance with default values), so that
  the many answers without one cost nothing.

`flexible` versions write lengths as varints and end each structure with tagged fields.
Declaring is cheap on purpose, as a broker declares some two hundred classes when it starts: no
annotation is evaluated, and a constructor is compiled when the first instance is built.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")

Kind = Literal["request", "response", "data"]
MAX_VERSION: Final = 0x7FFF


class Versions(NamedTuple):
    """A closed range of versions; empty when `low` exceeds `high`."""

    low: int
    high: int

    def includes(self, version: int) -> bool:
        return self.low <= version <= self.high

    def covers(self, other: Versions) -> bool:
        return self.low <= other.low and other.high <= self.high


NO_VERSIONS: Final = Versions(0, -1)
ALL_VERSIONS: Final = Versions(0, MAX_VERSION)


@functools.cache
def parse_versions(text: str) -> Versions:
    """Read `3`, `0-12`, `9+` or `none`."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), MAX_VERSION)
    low, _, high = text.partition("-")
    return Versions(int(low), int(high or low))


REQUIRED: Final[Any] = object()
"""Stands for "no default": the constructor demands a value."""


class Field:
    """One field of a structure: its wire type and where it applies."""

    __slots__ = (
        "default",
        "element",
        "factory",
        "ignorable",
        "name",
        "nullable",
        "tag",
        "type",
        "versions",
    )

    def __init__(
        self,
        wire_type: str,
        versions: str,
        default: Any,
        ignorable: bool,
        tag: int | None,
        nullable: str = "none",
        element: str | type | None = None,
        factory: Callable[[], Any] | None = None,
    ) -> None:
        self.name = ""
        self.type = wire_type
        self.versions = parse_versions(versions)
        self.default = default
        self.factory = factory
        self.ignorable = ignorable
        self.tag = tag
        self.nullable = parse_versions(nullable)
        self.element = element

    @property
    def required(self) -> bool:
        return self.default is REQUIRED and self.factory is None

    def null_is_written(self, version: int) -> bool:
        """Whether a tagged structure left out means an empty one, so that null must be written."""
        return (
            self.type == "struct"
            and self.tag is not None
            and self.required
            and self.nullable.includes(version)
        )

    def __repr__(self) -> str:
        return f"<Field {self.name}: {self.type}>"


class Schema(NamedTuple):
    """What `@struct` and `@message` attach to a class as `__schema__`."""

    name: str
    fields: tuple[Field, ...]
    kind: Kind | None = None
    api_key: int | None = None
    versions: Versions = ALL_VERSIONS
    flexible: Versions = NO_VERSIONS


def schema_of(message_class: type) -> Schema:
    """The declaration behind a message or structure class."""
    schema = getattr(message_class, "__schema__", None)
    if not isinstance(schema, Schema):
        raise TypeError(f"{message_class!r} is not declared with @message or @struct")
    return schema


# --- field specifiers -------------------------------------------------------------------------


def _number(wire_type: str, versions: str, default: Any, ignorable: bool, tag: int | None) -> Any:
    return Field(wire_type, versions, default, ignorable, tag)


def boolean(
    *,
    versions: str = "0+",
    default: bool = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    """One byte, zero for False."""
    return _number("bool", versions, default, ignorable, tag)


def int8(
    *,
    versions: str = "0+",
    default: int = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    return _number("int8", versions, default, ignorable, tag)


def int16(
    *,
    versions: str = "0+",
    default: int = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    return _number("int16", versions, default, ignorable, tag)


def int32(
    *,
    versions: str = "0+",
    default: int = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    return _number("int32", versions, default, ignorable, tag)


def int64(
    *,
    versions: str = "0+",
    default: int = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    return _number("int64", versions, default, ignorable, tag)


def uint16(
    *,
    versions: str = "0+",
    default: int = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    return _number("uint16", versions, default, ignorable, tag)


def float64(
    *,
    versions: str = "0+",
    default: float = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    return _number("float64", versions, default, ignorable, tag)


def uuid(
    *,
    versions: str = "0+",
    default: bytes = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    """Sixteen raw bytes; all zero means "none"."""
    return _number("uuid", versions, default, ignorable, tag)


def string(
    *,
    versions: str = "0+",
    nullable: str = "none",
    default: str | None = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    """UTF-8 of at most 32767 bytes."""
    return Field("string", versions, default, ignorable, tag, nullable)


def binary(
    *,
    versions: str = "0+",
    nullable: str = "none",
    default: bytes | None = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    """Opaque bytes, copied out of the receive buffer."""
    return Field("bytes", versions, default, ignorable, tag, nullable)


def batches(
    *,
    versions: str = "0+",
    nullable: str = "none",
    default: None = REQUIRED,
    ignorable: bool = False,
) -> Any:
    """Record batches, never copied.

    Decoding gives a `memoryview` into the receive buffer. Encoding takes any object with a
    length and hands it on as a part of its own, without looking inside.
    """
    return Field("records", versions, default, ignorable, None, nullable)


def nested(
    element: type,
    *,
    versions: str = "0+",
    nullable: str = "none",
    default: None = REQUIRED,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    """One structure. None is null where that exists, "the default" where it is tagged.

    Tagged and nullable, it is left out at its default: at None with `default=None`, else when
    nothing in it is set, and None is written as null.
    """
    return Field("struct", versions, default, ignorable, tag, nullable, element)


def array(
    element: type | Callable[..., Any],
    *,
    versions: str = "0+",
    nullable: str = "none",
    default: None = REQUIRED,
    factory: type[list[Any]] | None = None,
    ignorable: bool = False,
    tag: int | None = None,
) -> Any:
    """Several structures, or several values of a specifier: `array(int32)`."""
    inner = element if isinstance(element, type) else _ELEMENT_TYPES[element]
    return Field("array", versions, default, ignorable, tag, nullable, inner, factory)


_ELEMENT_TYPES: dict[Callable[..., Any], str] = {
    int8: "int8",
    int16: "int16",
    int32: "int32",
    int64: "int64",
    uuid: "uuid",
    string: "string",
    binary: "bytes",
}

# --- decorators -------------------------------------------------------------------------------


@dataclass_transform(
    eq_default=True,
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        int32,
        int64,
        uint16,
        float64,
        uuid,
        string,
        binary,
        batches,
        nested,
        array,
    ),
)
def struct(cls: type[T]) -> type[T]:
    """Declare a structure that messages contain."""
    return _declare(cls, Schema(cls.__name__, _take_fields(cls)))


@dataclass_transform(
    eq_default=True,
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        int32,
        int64,
        uint16,
        float64,
        uuid,
        string,
        binary,
        batches,
        nested,
        array,
    ),
)
def message(
    *, versions: str, flexible: str, kind: Kind = "data", api_key: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare a message: a request, a response, or data that is written elsewhere."""

    def declare(cls: type[T]) -> type[T]:
        valid = parse_versions(versions)
        fields = _take_fields(cls)
        _check_defaults(cls.__name__, fields, valid)
        schema = Schema(cls.__name__, fields, kind, api_key, valid, parse_versions(flexible))
        return _declare(cls, schema)

    return declare


def _take_fields(cls: type) -> tuple[Field, ...]:
    fields = []
    for name, value in vars(cls).items():
        if isinstance(value, Field):
            value.name = name
            fields.append(value)
    return tuple(fields)


def _check_defaults(where: str, fields: tuple[Field, ...], valid: Versions) -> None:
    """Refuse a field without default that some version of the message does not carry."""
    for field in fields:
        if field.required and not field.versions.covers(valid):
            raise TypeError(f"{where}.{field.name} is not in every version and needs a default")
        if isinstance(field.element, type):
            low, high = max(valid.low, field.versions.low), min(valid.high, field.versions.high)
            inner = schema_of(field.element)
            _check_defaults(inner.name, inner.fields, Versions(low, high))


def _declare(cls: type[T], schema: Schema) -> type[T]:
    """Build the class anew with slots; a class cannot gain them after its creation."""
    names = tuple(field.name for field in schema.fields)
    namespace = {
        name: value
        for name, value in vars(cls).items()
        if name not in names and name not in ("__dict__", "__weakref__")
    }
    namespace.update(
        __slots__=names,
        __schema__=schema,
        __init__=_first_init,
        __eq__=_equals,
        __hash__=None,
        __repr__=_represent,
    )
    slotted: type[T] = type(cls.__name__, cls.__bases__, namespace)
    return slotted


def _first_init(self: Any, **values: Any) -> None:
    """Compile the real constructor, put it in place, and build this instance with it."""
    cls = type(self)
    cls.__init__ = _compile_init(cls)
    cls.__init__(self, **values)


def _compile_init(cls: type) -> Callable[..., None]:
    schema = schema_of(cls)
    names: dict[str, Any] = {"MISSING": REQUIRED}
    parameters = []
    body = []
    for field in schema.fields:
        name = field.name
        if field.factory is not None:
            names[f"make_{name}"] = field.factory
            parameters.append(f"{name}=MISSING")
            body.append(f"    self.{name} = make_{name}() if {name} is MISSING else {name}")
        else:
            if field.required:
                parameters.append(name)
            else:
                names[f"default_{name}"] = field.default
                parameters.append(f"{name}=default_{name}")
            body.append(f"    self.{name} = {name}")
    star = "*, " if parameters else ""
    source = f"def __init__(self, {star}{', '.join(parameters)}):\n" + "\n".join(
        body or ["    pass"]
    )
    exec(compile(source, f"<{schema.name} constructor>", "exec"), names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _equals(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def _represent(self: Any) -> str:
    values = []
    for field in self.__schema__.fields:
        value = getattr(self, field.name, "<unset>")
        sized = field.type == "records" and value is not None
        values.append(f"{field.name}={f'<{len(value)} bytes>' if sized else repr(value)}")
    return f"{type(self).__name__}({', '.join(values)})"
