"""Moving partitions to other brokers: what is asked of the controller, for tools.

with DirectAdmin("127.0.0.1:9092") as admin:
    begin(admin.router, {TopicPartition("t", 0): [1, 2, 3]})
    while ongoing(admin.router):
        ...
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from ottla.client.direct import BROKER, DELETE, SET, TOPIC, DirectAdmin
from ottla.client.router import Router, allowed_ms, check, error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)


class Ongoing(NamedTuple):
    """A reassignment in progress: all replicas, those on their way, those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def ongoing(
    router: Router, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Ongoing]:
    """The reassignments in progress, of these partitions or of all."""
    topics = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        topics = [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in by_topic.items()
        ]
    request = ListPartitionReassignmentsRequest(topics=topics)
    deadline = time.monotonic() + router.timeout

    def ask() -> dict[TopicPartition, Ongoing]:
        request.timeout_ms = allowed_ms(deadline - time.monotonic())
        answer = router.controller().ask(request)
        check(answer.error_code, answer.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): Ongoing(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in answer.topics
            for part in topic.partitions
        }

    return router.retried(ask)


def begin(
    router: Router, wanted: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, KafkaError]:
    """Move partitions to these replicas, or (None) cancel that; what went wrong with some.

    Where there is no controller for a while, brokers wait for one no longer than the caller: what
    was said to have failed must not be done later.
    """
    by_topic: dict[str, list[ReassignablePartition]] = {}
    for tp, replicas in wanted.items():
        part = ReassignablePartition(
            partition_index=tp.partition, replicas=None if replicas is None else list(replicas)
        )
        by_topic.setdefault(tp.topic, []).append(part)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
    )
    deadline = time.monotonic() + router.timeout

    def ask() -> dict[TopicPartition, KafkaError]:
        request.timeout_ms = allowed_ms(deadline - time.monotonic())
        answer = router.controller().ask(request)
        check(answer.error_code, answer.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): KafkaError(
                error_code(part.error_code), part.error_message
            )
            for topic in answer.responses
            for part in topic.partitions
            if part.error_code
        }

    return router.retried(ask)


# -- sparing the network (KIP-73)

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
FOLDER_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

ALL = "*"
"""Of `…_REPLICAS`: all copies of a topic are limited, for good. No tool of Ottla's sets that."""

_AT_ONCE = 500  # topics in a request
_MOST_BYTES = 32_767  # of a setting

Movements = Mapping[TopicPartition, tuple[set[int], set[int]]]
"""From which brokers to which others partitions are copied."""


def movements(
    active: Mapping[TopicPartition, Ongoing],
    wanted: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
) -> dict[TopicPartition, tuple[set[int], set[int]]]:
    """From where to where each partition that moves, or is to, is copied."""
    moved = {tp: ({*each.replicas} - {*each.adding}, {*each.adding}) for tp, each in active.items()}
    for tp, replicas in wanted.items():
        sources = moved[tp][0] if tp in moved else {*current[tp]}
        moved[tp] = sources, {*replicas} - sources
    return moved


def limit_copies(
    admin: DirectAdmin,
    moved: Movements,
    rate: int,
    *,
    kept: Collection[tuple[str, str]] = (),
    or_all: bool = False,
) -> None:
    """Let these copies take so many bytes a second at most, of each broker. Settings of topics that
    are to be `kept` are not replaced.

    A setting has room for some thousand replicas. Of a topic with more of them, all copies are
    limited (`or_all`), or nothing is changed: INVALID_REQUEST.
    """
    by_topic: defaultdict[str, dict[int, tuple[set[int], set[int]]]] = defaultdict(dict)
    for tp, each in moved.items():
        by_topic[tp.topic][tp.partition] = each
    changes: dict[str, list[tuple[str, int, str]]] = {}
    for topic, mine in sorted(by_topic.items()):
        for side, name in enumerate((LEADER_REPLICAS, FOLLOWER_REPLICAS)):
            if (topic, name) in kept:
                continue
            replicas = sorted(f"{index}:{each}" for index in mine for each in mine[index][side])
            value = ",".join(replicas)
            if len(value) > _MOST_BYTES:
                if not or_all:
                    raise _too_many(topic, len(replicas))
                value = ALL
            changes.setdefault(topic, []).append((name, SET, value))
    for topic, named in changes.items():
        admin.alter_configs(TOPIC, topic, named)
    for broker in sorted(_brokers(moved)):
        rates = [(LEADER_RATE, SET, str(rate)), (FOLLOWER_RATE, SET, str(rate))]
        admin.alter_configs(BROKER, str(broker), rates)


def _too_many(topic: str, replicas: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"{topic} has {replicas} replicas to be limited, more than a setting has room for; nothing "
        f"was changed. Limit all of its copies with kafka-configs, {LEADER_REPLICAS}=* and "
        f"{FOLLOWER_REPLICAS}=*, and remove that in the end",
    )


def _brokers(moved: Movements) -> set[int]:
    return {each for pair in moved.values() for side in pair for each in side}


def lift_broker_limits(
    admin: DirectAdmin,
    brokers: Iterable[int],
    names: Iterable[str] = (LEADER_RATE, FOLLOWER_RATE, FOLDER_RATE),
    *,
    own: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
) -> None:
    """Lift these limits; all of them, as Kafka's tool does, if nobody says which. Where a broker
    had rates of its `own` these are set again."""
    for broker in brokers:
        before = own.get(broker, {})
        rates = [(name, SET if name in before else DELETE, before.get(name)) for name in names]
        admin.alter_configs(BROKER, str(broker), rates)


def lift_limits_of_absent(
    admin: DirectAdmin,
    brokers: Iterable[int],
    names: Iterable[str] = (LEADER_RATE, FOLLOWER_RATE, FOLDER_RATE),
) -> None:
    """The same for brokers that are not there, as far as the cluster remembers them: they would
    have the limits when they come back."""
    for broker in brokers:
        with suppress(KafkaError):
            lift_broker_limits(admin, [broker], names)


def replica_limits(
    admin: DirectAdmin, topics: Iterable[str] | None = None
) -> dict[str, dict[str, str]]:
    """Which copies are limited: of these topics, or of all, by the name of the setting."""
    found: dict[str, dict[str, str]] = {}
    wanted = sorted(admin.topics() if topics is None else topics)
    for first in range(0, len(wanted), _AT_ONCE):
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC,
                    resource_name=name,
                    configuration_keys=[LEADER_REPLICAS, FOLLOWER_REPLICAS],
                )
                for name in wanted[first : first + _AT_ONCE]
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        for result in admin.router.ask_any(request).results:
            limits = {entry.name: entry.value for entry in result.configs if entry.value}
            if limits:
                found[result.resource_name] = limits
    return found


def named_limits(limits: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The settings that name single replicas, by topic: those of tools."""
    found = {
        topic: [name for name, value in settings.items() if value != ALL]
        for topic, settings in limits.items()
    }
    return {topic: names for topic, names in found.items() if names}


def limited_brokers(limits: Mapping[str, Mapping[str, str]]) -> set[int]:
    """The brokers of the replicas that are named."""
    named = (
        pair for each in limits.values() for value in each.values() for pair in value.split(",")
    )
    brokers = (pair.rpartition(":")[2] for pair in named)
    return {int(each) for each in brokers if each.isdecimal()}


def lift_topic_limits(
    admin: DirectAdmin,
    topics: Iterable[str],
    names: Iterable[str] = (LEADER_REPLICAS, FOLLOWER_REPLICAS),
) -> None:
    """The same for topics; one that was deleted meanwhile has no limits any more."""
    replicas = [(name, DELETE, None) for name in names]
    for topic in topics:
        try:
            admin.alter_configs(TOPIC, topic, replicas)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise


class CopyLimit:
    """A limit on copies while partitions move. What an operator has set for good is left, or set
    again in the end: the rates of brokers, and topics of which all copies are limited.

    The limit of a tool that was interrupted is lifted as well. One knows it by the replicas that it
    has named; the rates are its own then, and what they were before it is not known.
    """

    def __init__(self, admin: DirectAdmin, rate: int | None) -> None:
        self._admin = admin
        self._rate = rate
        self._limited: set[int] = set()  # brokers, by this limit or an earlier one
        self._own: dict[int, dict[str, str]] = {}

    def apply(self, moved: Movements) -> None:
        """Limit these copies, if there is a rate; notice what is to be lifted in the end."""
        before = replica_limits(self._admin)
        earlier = bool(named_limits(before))
        if earlier:
            self._limited = limited_brokers(before) | self._live()
        if self._rate is None:
            return
        if not earlier:
            self._own = self._rates(_brokers(moved))
        self._limited |= _brokers(moved)
        for_good = {
            (topic, name)
            for topic, limits in before.items()
            for name, value in limits.items()
            if value == ALL
        }
        limit_copies(self._admin, moved, self._rate, kept=for_good)

    def lift(self) -> None:
        """Nothing moves any more."""
        live = self._live()
        rates = LEADER_RATE, FOLLOWER_RATE
        lift_broker_limits(self._admin, sorted(self._limited & live), rates, own=self._own)
        lift_limits_of_absent(self._admin, sorted(self._limited - live), rates)
        if self._limited:
            for topic, names in named_limits(replica_limits(self._admin)).items():
                lift_topic_limits(self._admin, [topic], names)

    def _live(self) -> set[int]:
        return {node.id for node in self._admin.describe_cluster().nodes}

    def _rates(self, brokers: Iterable[int]) -> dict[int, dict[str, str]]:
        """What brokers have as rates of their own, as far as they are there."""
        found = {}
        for broker in sorted(self._live().intersection(brokers)):
            rates = self._admin.describe_configs(
                BROKER, str(broker), keys=[LEADER_RATE, FOLLOWER_RATE]
            )
            found[broker] = {
                each.name: each.value
                for each in rates
                if each.source == "broker" and each.value is not None
            }
        return found
