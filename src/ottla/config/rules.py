"""The rules a value may have to satisfy: ranges, choices, and Kafka's few special ones.

Reasons are in Kafka's words, because tools and people match on them.
"""

from __future__ import annotations

import re

from ottla.config.setting import ConfigError, Rule, Value, text_of

_LAST_PORT = 65_535
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:\[\]]*)):([0-9]{1,5})")


def at_least(low: int) -> Rule:
    """A number of at least `low`."""
    return Rule(f"at least {low}", lambda name, value: _range(name, value, low, None))


def between(low: float, high: float) -> Rule:
    """A number from `low` to `high`, both included."""
    return Rule(f"{low} to {high}", lambda name, value: _range(name, value, low, high))


def between_or(low: int, high: int, other: int) -> Rule:
    """A number from `low` to `high`, or the one special number `other`."""

    def judge(name: str, value: Value) -> ConfigError | None:
        if isinstance(value, int) and (low <= value <= high or value == other):
            return None
        return ConfigError.invalid(
            name, shown(value), f"Value must be between {low} and {high} or equal to {other}"
        )

    return Rule(f"{low} to {high}, or {other}", judge)


def one_of(*choices: str) -> Rule:
    """Exactly one of these words."""

    def judge(name: str, value: Value) -> ConfigError | None:
        if value in choices:
            return None
        return ConfigError.invalid(
            name, shown(value), f"String must be one of: {', '.join(choices)}"
        )

    return Rule("one of " + ", ".join(choices), judge)


def one_of_any_case(*choices: str) -> Rule:
    """One of these words, however capitalised."""
    known = {choice.lower() for choice in choices}

    def judge(name: str, value: Value) -> ConfigError | None:
        if isinstance(value, str) and value.lower() in known:
            return None
        return ConfigError.invalid(
            name, shown(value), f"String must be one of (case insensitive): {', '.join(choices)}"
        )

    return Rule("one of " + ", ".join(choices), judge)


def host_and_port() -> Rule:
    """An address to listen on; null is fine."""

    def judge(name: str, value: Value) -> ConfigError | None:
        if not isinstance(value, str):
            return None
        try:
            parse_address(name, value)
        except ConfigError as error:
            return error
        return None

    return Rule("host:port", judge)


def parse_address(name: str, text: str) -> tuple[str, int]:
    """`host:port`, the host in brackets where it is one of IPv6; without one it is loopback."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found[3]) > _LAST_PORT:
        raise ConfigError.invalid(
            name, text, f"expected host:port, with a port from 0 to {_LAST_PORT}"
        )
    return found[1] or found[2] or "127.0.0.1", int(found[3])


def non_empty() -> Rule:
    """Any text but the empty one; null is fine."""

    def judge(name: str, value: Value) -> ConfigError | None:
        return ConfigError.invalid(name, "", "String must be non-empty") if value == "" else None

    return Rule("not empty", judge)


def distinct(*choices: str, empty: bool = True) -> Rule:
    """A list without repetitions, of `choices` when any are named; `empty` allows none at all."""

    def judge(name: str, value: Value) -> ConfigError | None:
        if not isinstance(value, tuple):
            return None
        if not value and not empty:
            valid = f"[{', '.join(choices)}]" if choices else "any non-empty value"
            return ConfigError(
                name, f"Configuration '{name}' must not be empty. Valid values include: {valid}"
            )
        if len(set(value)) < len(value):
            return ConfigError(name, f"Configuration '{name}' values must not be duplicated.")
        for item in value:
            if not item:
                return ConfigError(name, f"Configuration '{name}' values must not be empty.")
            if choices and item not in choices:
                return ConfigError.invalid(
                    name, item, f"String must be one of: {', '.join(choices)}"
                )
        return None

    allowed = "any of " + ", ".join(choices) if choices else "a list without repetitions"
    return Rule(allowed if empty else f"{allowed}; not empty", judge)


def throttled_replicas() -> Rule:
    """`*` for every replica, or a list of partition:broker pairs."""
    pair = re.compile(r"[0-9]+:[0-9]+")
    shape = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."

    def judge(name: str, value: Value) -> ConfigError | None:
        if not isinstance(value, tuple) or value == ("*",) or all(map(pair.fullmatch, value)):
            return None
        return ConfigError.invalid(
            name,
            shown(value),
            f"{name} must be the literal '*' or a list of replicas in the following "
            f"format: {shape}",
        )

    return Rule("* or partition:broker pairs", judge)


def shown(value: Value) -> str:
    """A parsed value inside a message, where a list has brackets."""
    if value is None:
        return "null"
    return f"[{', '.join(value)}]" if isinstance(value, tuple) else text_of(value)


def _range(name: str, value: Value, low: float, high: float | None) -> ConfigError | None:
    if not isinstance(value, (int, float)):
        return ConfigError.invalid(name, shown(value), "Value must be non-null")
    if value < low:
        return ConfigError.invalid(name, shown(value), f"Value must be at least {text_of(low)}")
    if high is not None and value > high:
        return ConfigError.invalid(
            name, shown(value), f"Value must be no more than {text_of(high)}"
        )
    return None
