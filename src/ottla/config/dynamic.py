"""Changes of configuration at run time: what is allowed, and what a change makes of what is there.

Pure functions for the handlers of CreateTopics, AlterConfigs and IncrementalAlterConfigs. Codes
and messages are Kafka's: a bad topic setting is INVALID_CONFIG, a bad broker setting
INVALID_REQUEST, and Scala's way of printing a set is part of some messages.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.config.checks import contradictions, group_contradictions, thread_count_jumps
from ottla.config.declare import Settings, Texts, mistakes
from ottla.config.group import GroupConfig
from ottla.config.listeners import base_name
from ottla.config.setting import ConfigError, ConfigType
from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError

_MAX_BYTES = 32_767
"""Of a value: those of the longest string in Kafka's protocol."""

# May change at run time, but only for one listener at a time.
_ONLY_PER_LISTENER = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)


class AlterOp(enum.IntEnum):
    """Operations of IncrementalAlterConfigs, with the numbers of the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One operation on one setting; DELETE needs no value."""

    name: str
    op: AlterOp
    value: str | None = None


def apply_incremental(
    current: Texts, changes: Iterable[Change], kind: type[Settings] = TopicConfig
) -> dict[str, str]:
    """What `current` becomes. Judges the operations, not the result: validate that afterwards."""
    changes = list(changes)
    _check_once([change.name for change in changes])
    _check_not_null(c.name for c in changes if c.value is None and c.op is not AlterOp.DELETE)
    result = dict(current)
    for name, op, value in changes:
        if op is AlterOp.DELETE or value is None:
            result.pop(name, None)
        elif op is AlterOp.SET:
            result[name] = value
        else:
            items, given = _items(name, op, result.get(name), kind), _split(value)
            if op is AlterOp.SUBTRACT:
                gone = set(given)
                items = [one for one in items if one not in gone]
            else:
                known = set(items)
                items += [one for one in dict.fromkeys(given) if one not in known]
            result[name] = _short_enough(name, ",".join(items))
    return result


def apply_replacement(given: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """What AlterConfigs makes of whatever was there: exactly what is given."""
    _check_once([name for name, _ in given])
    _check_not_null(name for name, text in given if text is None)
    return {name: text for name, text in given if text is not None}


def validate_topic_overrides(
    overrides: Mapping[str, str | None], broker: BrokerConfig | None = None
) -> dict[str, str]:
    """The overrides of a topic, found fit. `broker` supplies what is not overridden.

    Raises KafkaError(INVALID_CONFIG) with Kafka's message for the first thing wrong.
    """
    texts = _without_null(overrides, "topic")
    for name in texts:
        if name not in TopicConfig.settings:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    _refuse_first(mistakes(TopicConfig.settings, texts), ErrorCode.INVALID_CONFIG)
    config = TopicConfig.resolve(texts, broker or BrokerConfig())
    low, high = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if low > high:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({low}) > "
            f"max.compaction.lag.ms ({high})",
        )
    if config.remote_storage_enable:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )
    return texts


def validate_broker_overrides(
    overrides: Mapping[str, str | None],
    *,
    per_broker: bool,
    broker: BrokerConfig | None = None,
) -> dict[str, str]:
    """All dynamic settings of one broker, or of all brokers, found fit.

    Names that nothing knows are allowed, as in Kafka: plug-ins may read them. `broker` supplies
    the static settings and the other dynamic layer. Raises KafkaError(INVALID_REQUEST).
    """
    _check_not_null(name for name, text in overrides.items() if text is None)
    texts = {name: text for name, text in overrides.items() if text is not None}
    settings = BrokerConfig.settings
    fixed = [n for n in texts if n in settings and settings[n].update == "read-only"]
    if fixed:
        raise _refused(f"Cannot update these configs dynamically: {_scala_set(fixed)}")
    unprefixed = [name for name in texts if name in _ONLY_PER_LISTENER]
    if unprefixed:
        raise _refused(
            "These security configs can be dynamically updated only per-listener using the "
            f"listener prefix: Hash{_scala_set(unprefixed)}"
        )
    _refuse_first(
        mistakes(settings, {base_name(name): text for name, text in texts.items()}),
        ErrorCode.INVALID_REQUEST,
    )
    own = [name for name in texts if _belongs_to_one_broker(name)]
    if own and not per_broker:
        raise _refused(
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"{_scala_set(own)}"
        )
    base = broker or BrokerConfig()
    changed = (
        base.with_dynamic(base.dynamic_default, texts)
        if per_broker
        else base.with_dynamic(texts, base.dynamic)
    )
    before = {str(error) for error in contradictions(base)}
    for error in contradictions(changed):
        if str(error) not in before:
            raise _refused(f"requirement failed: {error}")
    for jump in thread_count_jumps(base, changed):
        raise _refused(
            f"Invalid value org.apache.kafka.common.config.ConfigException: {jump} for "
            "configuration Invalid dynamic configuration"
        )
    return texts


def validate_group_overrides(
    overrides: Mapping[str, str | None], broker: BrokerConfig | None = None
) -> dict[str, str]:
    """The overrides of a group, found fit. Raises KafkaError(INVALID_CONFIG)."""
    texts = _without_null(overrides, "group")
    for name in texts:
        if name not in GroupConfig.settings:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
    _refuse_first(mistakes(GroupConfig.settings, texts), ErrorCode.INVALID_CONFIG)
    base = broker or BrokerConfig()
    _refuse_first(
        group_contradictions(GroupConfig.resolve(texts, base), base), ErrorCode.INVALID_CONFIG
    )
    return texts


def _items(name: str, op: AlterOp, text: str | None, kind: type[Settings]) -> list[str]:
    setting = kind.settings.get(name)
    if setting is None or setting.type is not ConfigType.LIST:
        if kind is not BrokerConfig:
            message = f"Can't {op.name} to key {name} because its type is not LIST."
        elif setting is None:
            message = f"Unknown config name: {name}"
        else:
            message = f"Config value {op.name.lower()} is not allowed for config key: {name}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if text is None:
        return list(setting.default) if isinstance(setting.default, tuple) else []
    return [item for item in text.split(",") if item]


def _short_enough(name: str, text: str) -> str:
    """What was added to may be too long to be told to anybody: no answer about the topic or broker
    could be sent any more."""
    size = len(text.encode())
    if size > _MAX_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"The value of {name} would have {size} bytes, more than {_MAX_BYTES}, which is the "
            "most that a message has room for.",
        )
    return text


def _split(value: str) -> list[str]:
    """Java's split: empty items at the end do not count, unless there is nothing else."""
    items = value.split(",")
    while len(items) > 1 and not items[-1]:
        items.pop()
    return items


def _check_once(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise _refused("Error due to duplicate config keys")


def _check_not_null(empty: Iterable[str]) -> None:
    if names := list(empty):
        raise _refused(f"Null value not supported for : {', '.join(names)}")


def _without_null(overrides: Mapping[str, str | None], what: str) -> dict[str, str]:
    empty = [name for name, text in overrides.items() if text is None]
    if empty:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for {what} configs: {','.join(empty)}",
        )
    return {name: text for name, text in overrides.items() if text is not None}


def _belongs_to_one_broker(name: str) -> bool:
    setting = BrokerConfig.settings.get(name)
    if setting is not None:
        return setting.update == "per-broker"
    base = base_name(name)
    shared = BrokerConfig.settings.get(base)
    return base != name and (shared is None or shared.update != "cluster-wide")


def _refuse_first(errors: list[ConfigError], code: ErrorCode) -> None:
    if errors:
        raise KafkaError(code, str(errors[0]))


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _scala_set(names: list[str]) -> str:
    return f"Set({', '.join(names)})"
