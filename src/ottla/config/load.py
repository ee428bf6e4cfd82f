"""From a file and flags to a `BrokerConfig`, with every mistake found in one go.

Flags come before the file. A value that is not allowed is an error; the error says where it was
written, what is wrong and what would be right, and all of them are reported together. A name
that nothing knows is a warning with the nearest name that exists, or an error when `strict`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.config.broker import BrokerConfig
from ottla.config.checks import contradictions
from ottla.config.declare import mistakes
from ottla.config.listeners import base_name
from ottla.config.properties import MalformedProperties, decode, parse_properties
from ottla.config.retired import RETIRED
from ottla.config.setting import ConfigError
from ottla.config.topic import TopicConfig


@dataclass(frozen=True, slots=True)
class Given:
    """One setting as somebody wrote it, and where: `server.properties line 7`, `--set`."""

    name: str
    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that is fit to start with, and what deserves saying about it."""

    config: BrokerConfig
    warnings: tuple[str, ...]  # one line each, for people
    unknown: tuple[str, ...]  # names that nothing knows
    ignored: tuple[str, ...]  # names without meaning here, accepted
    later: tuple[str, ...]  # names that belong to a part which is not built yet, accepted


class InvalidConfig(ValueError):
    """Everything that is wrong with a file and its flags, one line for each mistake."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def assignment(text: str, flag: str = "--set") -> Given:
    """The `key=value` of a flag."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidConfig([f"{flag} {text}: expected key=value"])
    return Given(name.strip(), value, f"{flag} {name.strip()}")


def load(
    file: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, str] | Iterable[Given] = (),
    *,
    strict: bool = False,
) -> Loaded:
    """Read `file`, lay `overrides` over it, judge the whole. Raises `InvalidConfig`."""
    given = [] if file is None else _read(file)
    warnings = _repetitions(given)
    if isinstance(overrides, Mapping):
        overrides = [Given(name, text, f"--set {name}") for name, text in overrides.items()]
    given += overrides
    last = {one.name: one for one in given}

    problems = []
    invalid = set()
    for error in mistakes(BrokerConfig.settings, {name: one.text for name, one in last.items()}):
        invalid.add(error.name)
        problems.append(_told(error, last))
    # What is well-formed is still judged as a whole, so that the second start is the last.
    config = BrokerConfig.of({name: one.text for name, one in last.items() if name not in invalid})
    problems += [
        _told(e, last, judged_alone=False) for e in contradictions(config) if e.name not in invalid
    ]

    unknown = [one for name, one in last.items() if not is_known(name)]
    remarks = [f"{one.origin}: unknown setting {one.name}{_hint(one.name)}" for one in unknown]
    if strict:
        problems += remarks
    else:
        warnings += remarks
    if problems:
        raise InvalidConfig(problems)
    return Loaded(
        config=config,
        warnings=tuple(warnings),
        unknown=tuple(one.name for one in unknown),
        ignored=tuple(sorted(name for name in last if _effect(name) == "none")),
        later=tuple(sorted(name for name in last if _effect(name) == "later")),
    )


def is_known(name: str) -> bool:
    """True for every name that Kafka 4.2 or 3.9 would understand in a broker's file."""
    return (
        base_name(name) in BrokerConfig.settings
        or name in RETIRED
        # Handed through to plug-ins; there are none here, so they mean nothing.
        or name.startswith(("config.providers.", "rsm.config.", "rlmm.config."))
    )


def _effect(name: str) -> str:
    setting = BrokerConfig.settings.get(base_name(name))
    if setting is not None:
        return setting.effect
    return "none" if is_known(name) else ""


def _read(file: str | os.PathLike[str]) -> list[Given]:
    path = os.fspath(file)
    try:
        with open(path, "rb") as opened:
            found = parse_properties(decode(opened.read()))
    except OSError as error:
        raise InvalidConfig([f"{path}: {error.strerror or error}"]) from error
    except MalformedProperties as error:
        raise InvalidConfig([f"{path} {error}"]) from error
    return [Given(one.key, one.value, f"{path} line {one.line}") for one in found]


def _repetitions(given: list[Given]) -> list[str]:
    first: dict[str, Given] = {}
    remarks = []
    for one in given:
        earlier = first.setdefault(one.name, one)
        if earlier is not one and earlier.text != one.text:
            remarks.append(f"{one.origin}: {one.name} replaces the value of {earlier.origin}")
    return remarks


def _told(error: ConfigError, last: Mapping[str, Given], *, judged_alone: bool = True) -> str:
    """One line. What values are allowed helps only where the value alone is wrong."""
    origin = last.get(error.name)
    if origin is None:  # a fallback was given instead: log.retention.hours for log.retention.ms
        setting = BrokerConfig.settings.get(error.name)
        names = [one.name for one in setting.fallbacks] if setting is not None else []
        origin = next((last[name] for name in names if name in last), None)
    message = str(error)
    if origin is not None:
        setting = BrokerConfig.settings.get(origin.name)
        allowed = setting.allowed if setting is not None else ""
        kind = setting.type.name if setting is not None else ""
        if judged_alone and error.name == origin.name and allowed:
            message += f" ({kind}, {allowed})"
        if not message.startswith("Invalid value"):
            shown = "[hidden]" if setting is not None and setting.sensitive else origin.text
            message = f"{origin.name}={shown}: {message}"
        return f"{origin.origin}: {message}"
    return message


def _hint(name: str) -> str:
    topic = TopicConfig.settings.get(name)
    if topic is not None and topic.synonym:
        return f", which belongs to topics; for a broker it is {topic.synonym}"
    import difflib  # only ever needed after a slip of the pen; starting is quicker without it

    near = difflib.get_close_matches(name, [*BrokerConfig.settings, *RETIRED], n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
