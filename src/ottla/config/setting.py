"""One setting: name, type, default, limits, documentation; and how a value is read and printed.

Kafka's tools compare and show configuration as text, so text is the form that travels: files,
flags, AlterConfigs and the metadata store hold strings, and only a `Setting` knows how a string
becomes a typed value (`parse`), which values are allowed (`check`) and what DescribeConfigs shows
for it (`format`). The three follow Kafka to the letter, error messages included, because users
match on them.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
Update: TypeAlias = Literal["read-only", "per-broker", "cluster-wide"]
Importance: TypeAlias = Literal["high", "medium", "low"]
Effect: TypeAlias = Literal["used", "later", "none"]

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MAX_DOUBLE = 1.7976931348623157e308


class ConfigType(enum.IntEnum):
    """Value types, with the numbers they have in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigError(ValueError):
    """A value that a setting does not accept, worded as Kafka words it."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)

    @classmethod
    def invalid(cls, name: str, value: object, reason: str) -> ConfigError:
        """The usual form: which value, which setting, and what is wrong with it."""
        return cls(name, f"Invalid value {value} for configuration {name}: {reason}")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must satisfy beyond its type: words for people, and the judgement itself."""

    allowed: str
    judge: Callable[[str, Value], ConfigError | None]  # (setting name, value) -> what is wrong


@dataclass(frozen=True, slots=True)
class Fallback:
    """A broker setting that stands in while this one is null, and the factor to its unit."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Difference:
    """A default that is not Kafka's: what Kafka has, and why ours is another."""

    kafka: str | None  # None where Kafka does not start without the setting
    why: str


_INTEGERS: dict[ConfigType, tuple[int, int]] = {
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
}
# What java.lang.String.trim removes: everything up to and including the space.
_JAVA_BLANK = "".join(map(chr, range(33)))
_COMMA = re.compile(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[dDfF]?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A declared setting. `name` and `attribute` are filled in by the class that holds it."""

    type: ConfigType
    default: Value
    doc: str
    rule: Rule | None = None
    importance: Importance = "medium"
    update: Update = "read-only"
    effect: Effect = "used"
    internal: bool = False  # accepted, and listed only once it is given
    foreign: bool = False  # not in Kafka's list for this resource: read by a plug-in there, or ours
    as_set: bool = False  # a LIST whose order means nothing: the attribute is a frozenset
    fallbacks: tuple[Fallback, ...] = ()  # asked in turn while the value is null
    synonym: str = ""  # for a topic setting: the broker setting that gives its default
    differs: Difference | None = None  # only where our default is not Kafka's
    name: str = ""
    attribute: str = ""

    def __set_name__(self, owner: object, attribute: str) -> None:
        object.__setattr__(self, "attribute", attribute)
        if not self.name:
            object.__setattr__(self, "name", attribute.replace("_", "."))

    @property
    def sensitive(self) -> bool:
        """True when the value must never be shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def allowed(self) -> str:
        """The accepted values in words, empty when the type says it all."""
        if self.rule is not None:
            return self.rule.allowed
        return "true or false" if self.type is ConfigType.BOOLEAN else ""

    def parse(self, text: str) -> Value:
        """The typed value of `text`, judged by type and rule. Raises `ConfigError`."""
        value = parse_as(self.type, self.name, text)
        self.check(value)
        return value

    def check(self, value: Value) -> None:
        """Raise `ConfigError` unless the rule accepts `value`."""
        if self.rule is not None:
            error = self.rule.judge(self.name, value)
            if error is not None:
                raise error

    def format(self, value: Value | frozenset[str]) -> str | None:
        """The value as Kafka prints it; None for null and for anything secret."""
        if value is None or self.sensitive:
            return None
        return text_of(value)


def parse_as(kind: ConfigType, name: str, text: str) -> Value:
    """`text` as a value of `kind`, by the rules of Kafka's own parser."""
    trimmed = text.strip(_JAVA_BLANK)
    if kind is ConfigType.BOOLEAN:
        match trimmed.lower():
            case "true":
                return True
            case "false":
                return False
        raise ConfigError.invalid(name, text, "Expected value to be either true or false")
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        if _INTEGER.fullmatch(trimmed) and low <= (number := int(trimmed)) <= high:
            return number
        raise ConfigError.invalid(name, text, f"Not a number of type {kind.name}")
    if kind is ConfigType.DOUBLE:
        if _DOUBLE.fullmatch(trimmed):
            return float(trimmed.rstrip("dDfF"))
        raise ConfigError.invalid(name, text, "Not a number of type DOUBLE")
    if kind is ConfigType.LIST:
        return tuple(_COMMA.split(trimmed)) if trimmed else ()
    return trimmed


def text_of(value: Value | frozenset[str]) -> str:
    """Kafka's spelling of a typed value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return str(value)


def double_text(value: float) -> str:
    """A double as Java prints it: plain between 0.001 and ten million, else like 1.0E-5."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal  # for the few very large and very small; not worth a slower start

    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{fraction}E{len(digits) - 1 + exponent}"
