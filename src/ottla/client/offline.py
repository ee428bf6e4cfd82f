"""Partitions that cannot be asked: whether they are offline or do not exist, and why.

A broker answers for a partition that nobody leads with "leader not available", librdkafka with
"unknown partition". Neither helps whoever has to bring it back: what is wrong is known to the
broker that has its files, and a broker of Ottla's tells (the request is the one of `retention`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.router import Router
    from ottla.model.ids import TopicPartition

LOGGER = logging.getLogger("ottla.client.offline")
"""For partitions that are read or written, and are offline."""


def problems(
    router: Router, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KafkaError]:
    """What is wrong with those of these partitions that cannot be asked."""
    wanted = sorted(partitions)
    topics = {each.name: each for each in router.metadata({tp.topic for tp in wanted}).topics}
    found: dict[TopicPartition, KafkaError] = {}
    known: dict[str, dict[int, str]] = {}
    for tp in wanted:
        described = topics.get(tp.topic)
        states = {each.partition_index: each for each in described.partitions} if described else {}
        if described is None or described.error_code:
            found[tp] = KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {tp.topic!r}"
            )
        elif tp.partition not in states:
            there = "only partition 0" if len(states) == 1 else f"0 to {len(states) - 1}"
            found[tp] = KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {tp.partition} of topic {tp.topic!r}; it has {there}",
            )
        elif states[tp.partition].leader_id < 0:
            if tp.topic not in known:
                known[tp.topic] = _reasons(router, tp.topic)
            holders = ", ".join(map(str, states[tp.partition].replica_nodes))
            reason = known[tp.topic].get(
                tp.partition,
                f"nobody leads it (replicas {holders}); `ottla cluster status` tells whom it waits "
                "for",
            )
            found[tp] = KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} is offline: {reason.rstrip('.')}"
            )
    return found


def offline_of(router: Router, topics: Iterable[str]) -> dict[TopicPartition, KafkaError]:
    """The partitions of these topics that are offline, and why."""
    from ottla.model.ids import TopicPartition

    leaderless = [
        TopicPartition(each.name or "", part.partition_index)
        for each in router.metadata(topics).topics
        for part in each.partitions
        if part.leader_id < 0
    ]
    return problems(router, leaderless) if leaderless else {}


def why_missing(router: Router, partitions: Iterable[TopicPartition]) -> KafkaError | None:
    """What is wrong with the first of these partitions that cannot be asked; None if all can."""
    return next(iter(problems(router, partitions).values()), None)


def _reasons(router: Router, topic: str) -> dict[int, str]:
    """Why partitions of a topic are offline, as far as brokers tell."""
    from ottla.client.retention import explain

    try:
        partitions = explain(router, topic).partitions
    except KafkaError:
        # Not a broker of Ottla's, which hangs up, or one that is down.
        return {}
    return {
        each.partition: each.error.message
        for each in partitions
        if each.error is not None and each.error.message
    }
