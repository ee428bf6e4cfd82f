"""What DescribeConfigs shows: every setting with its value, where it comes from, and its synonyms.

The rules are Kafka's, oddities included, because tools compare the output. A synonym list names
every place a value could have come from, strongest first, and its head is the source. It starts
at the first entry under the asked name itself: with log.retention.hours in the file,
retention.ms has the right value and yet DEFAULT_CONFIG as its source, since nothing was written
under log.retention.ms.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.config.client_metrics import ClientMetricsConfig
from ottla.config.declare import Texts
from ottla.config.group import GroupConfig
from ottla.config.listeners import base_name
from ottla.config.setting import ConfigType, Setting, Value
from ottla.config.topic import TopicConfig


class ConfigSource(enum.IntEnum):
    """Where a value comes from, with the numbers of the protocol."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    """One place a value could have come from."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One line of DescribeConfigs. A sensitive value is None wherever it would appear."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    documentation: str | None


def describe_topic(
    overrides: Texts,
    broker: BrokerConfig,
    dynamic_broker: Texts | None = None,
    dynamic_default: Texts | None = None,
) -> list[ConfigEntry]:
    """All settings of a topic, by name. The dynamic texts replace those `broker` carries."""
    broker = _under(broker, dynamic_broker, dynamic_default)
    entries = []
    for name in _listed(TopicConfig.settings, overrides):
        setting = TopicConfig.settings.get(name)
        own = overrides.get(name)
        synonyms: list[ConfigSynonym] = []
        if setting is None:
            value = None
        elif own is not None:
            value = setting.format(setting.parse(own))
        elif setting.synonym:
            value = setting.format(_inherited(broker, setting.synonym))
        else:
            value = setting.format(setting.default)
        if own is not None:
            synonyms.append(ConfigSynonym(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        if setting is not None and setting.synonym:
            synonyms += _synonyms(setting.synonym, broker)
        entries.append(_entry(name, setting, value, synonyms, read_only=False))
    return entries


def describe_broker(
    broker: BrokerConfig,
    dynamic_broker: Texts | None = None,
    dynamic_default: Texts | None = None,
) -> list[ConfigEntry]:
    """All settings of a broker, by name, unknown ones that were given included."""
    broker = _under(broker, dynamic_broker, dynamic_default)
    given = {name: text for layer in reversed(broker.layers) for name, text in layer.items()}
    entries = []
    for name in _listed(BrokerConfig.settings, given):
        setting = BrokerConfig.settings.get(name)
        if name in ("node.id", "broker.id"):
            value: str | None = str(broker.node_id)
        elif setting is not None and not setting.foreign:
            value = setting.format(broker.stated(name))
        else:
            value = _foreign(name, given[name])
        entries.append(_broker_entry(name, value, _synonyms(name, broker)))
    return entries


def describe_broker_default(dynamic_default: Texts) -> list[ConfigEntry]:
    """The cluster-wide dynamic settings: what DescribeConfigs gives for the broker named ''."""
    entries = []
    for name in sorted(dynamic_default):
        value = _foreign(name, dynamic_default[name])
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        entries.append(_broker_entry(name, value, [ConfigSynonym(name, value, source)]))
    return entries


def describe_client_metrics(overrides: Texts) -> list[ConfigEntry]:
    """All settings of a subscription to clients' metrics, by name."""
    entries = []
    for name, setting in sorted(ClientMetricsConfig.settings.items()):
        own = overrides.get(name)
        value = setting.format(setting.default if own is None else setting.parse(own))
        source = ConfigSource.DEFAULT_CONFIG if own is None else ConfigSource.CLIENT_METRICS_CONFIG
        synonyms = [ConfigSynonym(name, value, source)]
        entries.append(_entry(name, setting, value, synonyms, read_only=False))
    return entries


def describe_group(overrides: Texts, broker: BrokerConfig) -> list[ConfigEntry]:
    """All settings of a group, by name."""
    entries = []
    for name in _listed(GroupConfig.settings, overrides):
        setting = GroupConfig.settings.get(name)
        own = overrides.get(name)
        if setting is None:
            value = None
        elif own is not None:
            value = setting.format(setting.parse(own))
        elif setting.synonym:
            value = setting.format(_inherited(broker, setting.synonym))
        else:
            value = setting.format(setting.default)
        source = ConfigSource.DEFAULT_CONFIG if own is None else ConfigSource.GROUP_CONFIG
        synonyms = [ConfigSynonym(name, value, source)]
        entries.append(_entry(name, setting, value, synonyms, read_only=False))
    return entries


def _under(broker: BrokerConfig, own: Texts | None, default: Texts | None) -> BrokerConfig:
    if own is None and default is None:
        return broker
    return broker.with_dynamic(
        broker.dynamic_default if default is None else default,
        broker.dynamic if own is None else own,
    )


def _listed(settings: Mapping[str, Setting], given: Iterable[str]) -> list[str]:
    """Kafka lists what is not internal, and whatever was given."""
    return sorted({name for name, setting in settings.items() if not setting.internal}.union(given))


def _inherited(broker: BrokerConfig, name: str) -> Value:
    value: Value = getattr(broker, broker.settings[name].attribute)
    return value


def _chain(name: str) -> tuple[str, ...]:
    """The names that count as one setting: a duration in several units, or one listener's own."""
    base = base_name(name)
    if base != name:
        return name, base
    return _CHAINS.get(name, (name,))


def _chains() -> dict[str, tuple[str, ...]]:
    chains: dict[str, tuple[str, ...]] = {}
    for setting in BrokerConfig.settings.values():
        # log.dirs takes its value from log.dir, yet Kafka does not call them synonyms.
        if setting.fallbacks and setting.type is ConfigType.LONG:
            chain = (setting.name, *(one.name for one in setting.fallbacks))
            chains[setting.name] = chain
            chains.update({one.name: chain for one in setting.fallbacks if one.factor != 1})
    return chains


def _synonyms(name: str, broker: BrokerConfig) -> list[ConfigSynonym]:
    chain = _chain(name)
    found = [
        ConfigSynonym(one, _foreign(one, layer[one]), source)
        for source, layer in (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, broker.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, broker.dynamic_default),
            (ConfigSource.STATIC_BROKER_CONFIG, broker.static),
        )
        if layer
        for one in chain
        if one in layer
    ]
    found += [_DEFAULTS[one] for one in chain if one in _DEFAULTS]
    start = next((i for i, one in enumerate(found) if one.name == name), len(found))
    return found[start:]


def _defaults() -> dict[str, ConfigSynonym]:
    # Kafka has no default for what it insists on, nor for what is not in its own list.
    return {
        name: ConfigSynonym(name, text, ConfigSource.DEFAULT_CONFIG)
        for name, setting in BrokerConfig.settings.items()
        if not setting.foreign and not _required(setting)
        if (text := setting.format(setting.default)) is not None
    }


def _required(setting: Setting) -> bool:
    return setting.differs is not None and setting.differs.kafka is None


def _foreign(name: str, text: str) -> str | None:
    """Text as it was given: secrets are hidden, and so is what nothing is known about."""
    setting = _typed(name)
    return None if setting is None or setting.sensitive else text


def _typed(name: str) -> Setting | None:
    """The setting that gives a name its type; none for what only Kafka's authorizer would read."""
    setting = BrokerConfig.settings.get(base_name(name))
    if setting is not None and setting.foreign and setting.update == "read-only":
        return None
    return setting


def _broker_entry(name: str, value: str | None, synonyms: list[ConfigSynonym]) -> ConfigEntry:
    own = BrokerConfig.settings.get(name)
    read_only = own is None or own.foreign or own.update == "read-only"
    return _entry(name, _typed(name), value, synonyms, read_only=read_only)


def _entry(
    name: str,
    setting: Setting | None,
    value: str | None,
    synonyms: list[ConfigSynonym],
    *,
    read_only: bool,
) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        read_only=read_only,
        sensitive=setting is None or setting.sensitive,
        synonyms=tuple(synonyms),
        type=ConfigType.UNKNOWN if setting is None else setting.type,
        documentation=None if setting is None else setting.doc,
    )


_CHAINS = _chains()
_DEFAULTS = _defaults()
