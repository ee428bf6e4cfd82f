"""How settings are declared: a class body where declaration, attribute and documentation are one.

    class SocketSettings(Settings):
        socket_request_max_bytes: int = integer(
            default=104_857_600, rule=at_least(1), doc="Largest request a client may send."
        )

The attribute's name is Kafka's name with underscores for dots. A class made this way is a frozen
value: `SocketSettings()` has the defaults, `SocketSettings(socket_request_max_bytes=1)` takes the
caller's own values as they are (tests want tiny segments), and only text from outside, read with
`from_layers`, is parsed and judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    dataclass_transform,
    overload,
)

from ottla.config.setting import (
    ConfigError,
    ConfigType,
    Difference,
    Effect,
    Fallback,
    Importance,
    Rule,
    Setting,
    Update,
    Value,
    text_of,
)

Texts: TypeAlias = Mapping[str, str]
"""Setting names and their values as text: a file, a set of overrides, a dynamic config."""

T = TypeVar("T", bound=Value)

NOTHING: Texts = MappingProxyType({})


class Options(TypedDict, total=False):
    """What any declaration may say besides its default and its documentation."""

    name: str
    rule: Rule
    importance: Importance
    update: Update
    effect: Effect
    internal: bool
    foreign: bool
    synonym: str
    differs: Difference


def boolean(*, default: bool, doc: str, **options: Unpack[Options]) -> bool:
    """Declare a BOOLEAN setting."""
    return _declare(ConfigType.BOOLEAN, default, doc, options)


@overload
def integer(*, default: int, doc: str, **options: Unpack[Options]) -> int: ...
@overload
def integer(*, default: None, doc: str, **options: Unpack[Options]) -> int | None: ...
def integer(*, default: int | None, doc: str, **options: Unpack[Options]) -> int | None:
    """Declare an INT setting (32 bits)."""
    return _declare(ConfigType.INT, default, doc, options)


def short(*, default: int, doc: str, **options: Unpack[Options]) -> int:
    """Declare a SHORT setting (16 bits)."""
    return _declare(ConfigType.SHORT, default, doc, options)


@overload
def long(*, default: int, doc: str, **options: Unpack[Options]) -> int: ...
@overload
def long(
    *, default: None, fallbacks: tuple[Fallback, ...], doc: str, **options: Unpack[Options]
) -> int: ...
def long(
    *,
    default: int | None,
    fallbacks: tuple[Fallback, ...] = (),
    doc: str,
    **options: Unpack[Options],
) -> int | None:
    """Declare a LONG setting (64 bits)."""
    return _declare(ConfigType.LONG, default, doc, options, fallbacks=fallbacks)


def double(*, default: float, doc: str, **options: Unpack[Options]) -> float:
    """Declare a DOUBLE setting."""
    return _declare(ConfigType.DOUBLE, default, doc, options)


@overload
def string(*, default: str, doc: str, **options: Unpack[Options]) -> str: ...
@overload
def string(*, default: None, doc: str, **options: Unpack[Options]) -> str | None: ...
def string(*, default: str | None, doc: str, **options: Unpack[Options]) -> str | None:
    """Declare a STRING setting."""
    return _declare(ConfigType.STRING, default, doc, options)


@overload
def class_name(*, default: str, doc: str, **options: Unpack[Options]) -> str: ...
@overload
def class_name(*, default: None, doc: str, **options: Unpack[Options]) -> str | None: ...
def class_name(*, default: str | None, doc: str, **options: Unpack[Options]) -> str | None:
    """Declare a CLASS setting. Java classes mean nothing here; the name is kept and shown."""
    return _declare(ConfigType.CLASS, default, doc, options)


def password(*, default: None, doc: str, **options: Unpack[Options]) -> str | None:
    """Declare a PASSWORD setting: its value is never shown."""
    return _declare(ConfigType.PASSWORD, default, doc, options)


@overload
def names(*, default: tuple[str, ...], doc: str, **options: Unpack[Options]) -> tuple[str, ...]: ...
@overload
def names(
    *, default: None, fallbacks: tuple[Fallback, ...], doc: str, **options: Unpack[Options]
) -> tuple[str, ...]: ...
@overload
def names(*, default: None, doc: str, **options: Unpack[Options]) -> tuple[str, ...] | None: ...
def names(
    *,
    default: tuple[str, ...] | None,
    fallbacks: tuple[Fallback, ...] = (),
    doc: str,
    **options: Unpack[Options],
) -> tuple[str, ...] | None:
    """Declare a LIST setting."""
    return _declare(ConfigType.LIST, default, doc, options, fallbacks=fallbacks)


def name_set(*, default: tuple[str, ...], doc: str, **options: Unpack[Options]) -> frozenset[str]:
    """Declare a LIST setting whose order means nothing; the attribute is a frozenset."""
    return cast("frozenset[str]", _declare(ConfigType.LIST, default, doc, options, as_set=True))


def _declare(
    kind: ConfigType,
    default: T,
    doc: str,
    options: Options,
    *,
    fallbacks: tuple[Fallback, ...] = (),
    as_set: bool = False,
) -> T:
    # The class body is told that it holds an int, a str, …: that is what instances hold.
    declared = Setting(
        type=kind, default=default, doc=doc, fallbacks=fallbacks, as_set=as_set, **options
    )
    return cast("T", declared)


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    field_specifiers=(
        boolean,
        integer,
        short,
        long,
        double,
        string,
        class_name,
        password,
        names,
        name_set,
    ),
)
class Settings:
    """Base of every class of settings: collects the declarations and builds frozen values."""

    settings: ClassVar[Mapping[str, Setting]] = MappingProxyType({})
    """Every declared setting by Kafka's name, in declared order."""

    layers: tuple[Texts, ...]
    """The texts this value was made from, strongest first; names may be unknown to us."""

    def __init_subclass__(cls) -> None:
        collected: dict[str, Setting] = {}
        for base in cls.__mro__:
            for declared in vars(base).values():
                if isinstance(declared, Setting):
                    collected.setdefault(declared.name, declared)
        cls.settings = MappingProxyType(collected)

    def __init__(self, **values: Any) -> None:
        given: dict[str, str] = {}
        own = self.__dict__
        for setting in self.settings.values():
            if setting.attribute in values:
                value = values.pop(setting.attribute)
                own[setting.attribute] = value
                if value is not None:
                    given[setting.name] = text_of(value)
            else:
                own[setting.attribute] = _attribute(setting, setting.default)
        if values:
            unknown = ", ".join(sorted(values))
            raise TypeError(f"{type(self).__name__} has no setting {unknown}")
        own["layers"] = (MappingProxyType(given),)
        self._fall_back()

    def __getstate__(self) -> dict[str, Any]:
        """For the way to a worker process: a view of a mapping cannot be pickled."""
        return {**self.__dict__, "layers": tuple(dict(layer) for layer in self.layers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        layers = tuple(MappingProxyType(layer) for layer in state["layers"])
        self.__dict__.update(state, layers=layers)

    @classmethod
    def from_layers(cls, layers: Sequence[Texts]) -> Self:
        """Read texts, strongest layer first. Unknown names are kept in `layers`, nothing more.

        Raises `ConfigError` at the first value that is not allowed; `mistakes` finds all.
        """
        self = cls.__new__(cls)
        own = self.__dict__
        for setting in cls.settings.values():
            own[setting.attribute] = _attribute(setting, _stated(setting, layers))
        own["layers"] = tuple(MappingProxyType(dict(layer)) for layer in layers)
        self._fall_back()
        return self

    @classmethod
    def inheriting(cls, overrides: Texts, broker: Settings) -> Self:
        """Overrides where there are some, else the effective value of the broker's synonym."""
        self = cls.__new__(cls)
        own = self.__dict__
        for setting in cls.settings.values():
            text = overrides.get(setting.name)
            value: Value
            if text is not None:
                value = setting.parse(text)
            elif setting.synonym:
                value = broker.__dict__[broker.settings[setting.synonym].attribute]
            else:
                value = setting.default
            own[setting.attribute] = _attribute(setting, value)
        own["layers"] = (MappingProxyType(dict(overrides)),)
        return self

    def _fall_back(self) -> None:
        own = self.__dict__
        for setting in self.settings.values():
            if own[setting.attribute] is None:
                for fallback in setting.fallbacks:
                    value = own[self.settings[fallback.name].attribute]
                    if value is not None:
                        own[setting.attribute] = (
                            value if fallback.factor == 1 else scaled(value, fallback.factor)
                        )
                        break

    def is_given(self, name: str) -> bool:
        """True when somebody set `name`, rather than leaving it at its default."""
        return any(name in layer for layer in self.layers)

    def stated(self, name: str) -> Value:
        """The value under exactly this name: no fallback asked, null when that is the default."""
        return _stated(self.settings[name], self.layers)

    def _values(self) -> tuple[object, ...]:
        own = self.__dict__
        return tuple(own[setting.attribute] for setting in self.settings.values())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be assigned")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        own = self.__dict__
        shown = [
            f"{s.attribute}={'[hidden]' if s.sensitive else repr(own[s.attribute])}"
            for s in self.settings.values()
            if own[s.attribute] != _attribute(s, s.default)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def scaled(value: int, factor: int) -> int:
    """A duration in a finer unit; negative means unlimited and stays -1, as in Kafka."""
    return -1 if value < 0 else value * factor


def mistakes(settings: Mapping[str, Setting], texts: Texts) -> list[ConfigError]:
    """Every value among `texts` that its setting does not accept."""
    found = []
    for name, text in texts.items():
        setting = settings.get(name)
        if setting is not None:
            try:
                setting.parse(text)
            except ConfigError as error:
                found.append(error)
    return found


def _stated(setting: Setting, layers: Sequence[Texts]) -> Value:
    for layer in layers:
        text = layer.get(setting.name)
        if text is not None:
            return setting.parse(text)
    return setting.default


def _attribute(setting: Setting, value: Value) -> Value | frozenset[str]:
    return frozenset(value) if setting.as_set and isinstance(value, tuple) else value
