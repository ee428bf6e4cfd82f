"""Every key of the metadata store: where it is, what it holds, how it is written.

    cluster                         the cluster id
    features                        finalized feature levels
    controller/epoch, …/holder      the role of controller
    brokers/epoch                   counts registrations; never goes back
    brokers/ids/<broker>            ephemeral: a broker that is there, and where it listens
    brokers/states/<broker>         what is remembered of a broker: see `model.broker.BrokerState`
    configs/brokers/<broker>        dynamic settings of one broker
    configs/brokers/default         dynamic settings of all brokers
    configs/groups/<group>          settings of one group, whether it exists or not
    configs/client-metrics/<name>   a subscription to clients' metrics
    topics/<name>                   id and settings of a topic
    partitions/<topic id>/<n>       states of its partitions 64 n … 64 n + 63
    producer_ids                    the first producer id that nobody was given
    hand_over/state, …/holder       while one broker's metadata is carried over: see `hand_over`
    handed_over                     in the store that it came from: where it is now

A topic's name is in the path of one key, so that creating it twice is a conflict; the states of its
partitions lie under its id, so that a leader of a deleted topic cannot write into a new one of the
same name. States come 64 to a key: a key holds 1 MB at most on the weaker backend, and leaders of
one topic should seldom conflict.

A group may be called anything: in its key everything but letters, digits and `_.-~` is
percent-encoded.

Values are JSON in ASCII with a version, `{"v":1,…}`. A reader ignores fields and array elements it
does not know; a writer that would be misread by an older reader must raise the version, which the
older reader refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ottla.model.broker import Broker, BrokerState, Endpoint, LostPartition
from ottla.model.features import FORMATS
from ottla.model.ids import TopicId, parse_topic_id, topic_id_text
from ottla.model.topic import PartitionState

VERSION = 1
REASSIGNING = 2
"""The version of partitions of which some are reassigned: who did not know that and changed another
of them would forget it."""
FINALIZED = 2
"""The version of feature levels of a cluster that may write what the first version cannot read: who
knows only that does not start there."""
CHUNK = 64
"""Partitions per key."""

CLUSTER = "cluster"
FEATURES = "features"
CONTROLLER = "controller"
PRODUCER_IDS = "producer_ids"
BROKER_EPOCH = "brokers/epoch"
REGISTRATIONS = "brokers/ids"
BROKER_STATES = "brokers/states"
HAND_OVER = "hand_over/state"
HAND_OVER_HOLDER = "hand_over/holder"
HANDED_OVER = "handed_over"

_BROKERS = "brokers/ids/"
_BROKER_STATES = "brokers/states/"
_BROKER_CONFIGS = "configs/brokers/"
_GROUP_CONFIGS = "configs/groups/"
_CLIENT_METRICS = "configs/client-metrics/"
_TOPICS = "topics/"
_PARTITIONS = "partitions/"
_DEFAULT = "default"


class UnreadableValue(ValueError):
    """A value of a newer version, or not one of ours at all."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"the metadata key {key} cannot be read: {problem}")
        self.key = key


class TopicEntry(NamedTuple):
    """What the key of a topic holds."""

    id: TopicId
    config: Mapping[str, str]


# --- single keys ----------------------------------------------------------------------------------


def encode_cluster(cluster_id: str) -> bytes:
    return _encode({"id": cluster_id})


def decode_cluster(value: bytes) -> str:
    return str(_decode(CLUSTER, value)["id"])


def encode_features(levels: Mapping[str, int]) -> bytes:
    formats = FINALIZED if levels.get(FORMATS, 0) else VERSION
    return _encode({"levels": dict(levels)}, formats)


def decode_features(value: bytes) -> dict[str, int]:
    levels = _decode(FEATURES, value, FINALIZED)["levels"]
    return {str(name): int(level) for name, level in levels.items()}


def encode_counter(following: int) -> bytes:
    """For `producer_ids` and `brokers/epoch`: the first number that is still free."""
    return _encode({"next": following})


def decode_counter(key: str, value: bytes) -> int:
    return int(_decode(key, value)["next"])


def encode_holder(broker_id: int) -> bytes:
    """Who stands for, or holds, the role of controller."""
    return _encode({"broker": broker_id})


def decode_holder(key: str, value: bytes) -> int:
    return int(_decode(key, value)["broker"])


def encode_hand_over(where: str) -> bytes:
    """For the keys of a hand-over: the store that the metadata goes to."""
    return _encode({"to": where})


def decode_hand_over(key: str, value: bytes) -> str:
    return str(_decode(key, value)["to"])


# --- brokers --------------------------------------------------------------------------------------


def broker_key(broker_id: int) -> str:
    return f"{_BROKERS}{broker_id}"


def parse_broker_key(key: str) -> int | None:
    return int(key[len(_BROKERS) :]) if key.startswith(_BROKERS) else None


def encode_broker(broker: Broker) -> bytes:
    return _encode(
        {
            "epoch": broker.epoch,
            "rack": broker.rack,
            "host": broker.host,
            "endpoints": [
                [endpoint.listener, endpoint.host, endpoint.port, endpoint.security_protocol]
                for endpoint in broker.endpoints.values()
            ],
            "features": {name: list(levels) for name, levels in broker.features.items()},
        }
    )


def decode_broker(key: str, value: bytes) -> Broker:
    fields = _decode(key, value)
    broker_id = parse_broker_key(key)
    if broker_id is None:
        raise UnreadableValue(key, "it is not the key of a broker")
    return Broker(
        id=broker_id,
        epoch=fields["epoch"],
        rack=fields["rack"],
        host=fields.get("host", ""),
        endpoints={endpoint[0]: Endpoint(*endpoint[:4]) for endpoint in fields["endpoints"]},
        features={
            name: (int(levels[0]), int(levels[1]))
            for name, levels in fields.get("features", {}).items()
        },
    )


def broker_state_key(broker_id: int) -> str:
    return f"{_BROKER_STATES}{broker_id}"


def parse_broker_state_key(key: str) -> int | None:
    return int(key[len(_BROKER_STATES) :]) if key.startswith(_BROKER_STATES) else None


def encode_broker_state(state: BrokerState) -> bytes:
    return _encode(
        {
            "epoch": state.epoch,
            "directories": state.directories,
            "boot": state.boot_id,
            "incarnation": state.incarnation,
            "clean": state.clean,
            "lost": state.lost,
            "lost_partitions": _encode_lost(state.lost_partitions),
            "emptied": state.emptied,
            "failed": state.failed,
            "fenced": state.fenced,
            "stopping": state.stopping,
            "host": state.host,
            "since": state.since_ms,
            "seen_dead": state.seen_dead,
        }
    )


def decode_broker_state(key: str, value: bytes) -> BrokerState:
    fields = _decode(key, value)
    return BrokerState(
        epoch=int(fields["epoch"]),
        directories=tuple(fields["directories"]),
        boot_id=fields["boot"],
        incarnation=fields["incarnation"],
        clean=fields["clean"],
        lost=fields["lost"],
        lost_partitions=_decode_lost(fields.get("lost_partitions", {})),
        emptied=fields.get("emptied", False),
        failed=fields.get("failed", False),
        fenced=fields["fenced"],
        stopping=fields["stopping"],
        host=fields.get("host", ""),
        since_ms=int(fields.get("since", 0)),
        seen_dead=fields.get("seen_dead", False),
    )


def _encode_lost(partitions: Iterable[LostPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(topic_id_text(topic_id), []).append(partition)
    return by_topic


def _decode_lost(by_topic: Mapping[str, Sequence[int]]) -> frozenset[LostPartition]:
    return frozenset(
        LostPartition(parse_topic_id(text), partition)
        for text, partitions in by_topic.items()
        for partition in partitions
    )


def broker_config_key(broker: str) -> str:
    """`broker` is an id in decimal, or empty for the default of all brokers."""
    return f"{_BROKER_CONFIGS}{broker or _DEFAULT}"


def parse_broker_config_key(key: str) -> str | None:
    if not key.startswith(_BROKER_CONFIGS):
        return None
    name = key[len(_BROKER_CONFIGS) :]
    return "" if name == _DEFAULT else name


def group_config_key(group: str) -> str:
    return f"{_GROUP_CONFIGS}{_segment(group)}"


def parse_group_config_key(key: str) -> str | None:
    return unquote(key[len(_GROUP_CONFIGS) :]) if key.startswith(_GROUP_CONFIGS) else None


def client_metrics_key(subscription: str) -> str:
    return f"{_CLIENT_METRICS}{_segment(subscription)}"


def parse_client_metrics_key(key: str) -> str | None:
    return unquote(key[len(_CLIENT_METRICS) :]) if key.startswith(_CLIENT_METRICS) else None


def _segment(text: str) -> str:
    """Any text as one segment of a path."""
    name = quote(text, safe="")
    if not name.strip("."):
        name = name.replace(".", "%2E")  # which no path may have as a segment
    return name


def encode_config(config: Mapping[str, str]) -> bytes:
    return _encode({"config": dict(config)})


def decode_config(key: str, value: bytes) -> dict[str, str]:
    return _strings(_decode(key, value)["config"])


# --- topics ---------------------------------------------------------------------------------------


def topic_key(name: str) -> str:
    return f"{_TOPICS}{name}"


def parse_topic_key(key: str) -> str | None:
    return key[len(_TOPICS) :] if key.startswith(_TOPICS) else None


def encode_topic(topic_id: TopicId, config: Mapping[str, str]) -> bytes:
    return _encode({"id": topic_id_text(topic_id), "config": dict(config)})


def decode_topic(key: str, value: bytes) -> TopicEntry:
    fields = _decode(key, value)
    return TopicEntry(parse_topic_id(fields["id"]), _strings(fields["config"]))


def partitions_key(topic_id: TopicId, chunk: int) -> str:
    return f"{_PARTITIONS}{topic_id_text(topic_id)}/{chunk}"


def parse_partitions_key(key: str) -> tuple[TopicId, int] | None:
    if not key.startswith(_PARTITIONS):
        return None
    topic_id, _, chunk = key[len(_PARTITIONS) :].partition("/")
    return parse_topic_id(topic_id), int(chunk)


def chunks(partitions: Sequence[PartitionState]) -> list[Sequence[PartitionState]]:
    """The partitions of a topic as its keys hold them."""
    return [partitions[start : start + CHUNK] for start in range(0, len(partitions), CHUNK)]


def encode_partitions(partitions: Sequence[PartitionState]) -> bytes:
    # An array each, not an object: there may be a million of them.
    states = []
    version = VERSION
    for state in partitions:
        fields: list[object] = [state.leader, state.leader_epoch, state.partition_epoch]
        fields += (state.replicas, state.isr)
        if state.elr or state.last_known_elr or state.reassigning:
            fields.append(state.elr)
        if state.last_known_elr or state.reassigning:
            fields.append(state.last_known_elr)
        if state.reassigning:
            fields += (state.adding, state.removing)
            version = REASSIGNING
        states.append(fields)
    return _encode({"p": states}, version)


def decode_partitions(
    key: str, value: bytes, before: Sequence[PartitionState] = ()
) -> tuple[PartitionState, ...]:
    """The states of one key; those that are as they were `before` are the objects from there.

    Nearly all of them are: a commit changes a few, and every broker reads each commit."""
    rows = _decode(key, value, REASSIGNING)["p"]
    return tuple(
        before[slot] if slot < len(before) and _holds(before[slot], row) else _state(row)
        for slot, row in enumerate(rows)
    )


def _state(fields: Sequence[Any]) -> PartitionState:
    return PartitionState(
        leader=fields[0],
        leader_epoch=fields[1],
        partition_epoch=fields[2],
        replicas=tuple(fields[3]),
        isr=tuple(fields[4]),
        elr=tuple(fields[5]) if len(fields) > 5 else (),
        last_known_elr=tuple(fields[6]) if len(fields) > 6 else (),
        adding=tuple(fields[7]) if len(fields) > 7 else (),
        removing=tuple(fields[8]) if len(fields) > 8 else (),
    )


def _holds(state: PartitionState, fields: Sequence[Any]) -> bool:
    """Whether `_state` would make the same of these: that takes four times as long."""
    return (
        state.partition_epoch == fields[2]
        and state.leader_epoch == fields[1]
        and state.leader == fields[0]
        and state.isr == tuple(fields[4])
        and state.replicas == tuple(fields[3])
        and state.elr == (tuple(fields[5]) if len(fields) > 5 else ())
        and state.last_known_elr == (tuple(fields[6]) if len(fields) > 6 else ())
        and state.adding == (tuple(fields[7]) if len(fields) > 7 else ())
        and state.removing == (tuple(fields[8]) if len(fields) > 8 else ())
    )


# --- values ---------------------------------------------------------------------------------------


def _encode(fields: dict[str, object], version: int = VERSION) -> bytes:
    return json.dumps({"v": version, **fields}, separators=(",", ":")).encode("ascii")


def _decode(key: str, value: bytes, newest: int = VERSION) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except ValueError as error:
        raise UnreadableValue(key, str(error)) from None
    if not isinstance(fields, dict) or "v" not in fields:
        raise UnreadableValue(key, "it is not one of ours")
    if fields["v"] not in range(VERSION, newest + 1):
        raise UnreadableValue(
            key, f"it has format version {fields['v']}, this Ottla knows {newest}"
        )
    return fields


def _strings(config: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in config.items()}
