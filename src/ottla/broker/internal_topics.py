"""The broker's own topics, made when they are first needed.

Their settings are Kafka's. The replication factor is the configured one, or as many as there are
brokers: Kafka waits until there are enough, so that with its default of 3 a single broker would
never form a group. When more brokers join, the controller adds replicas
(`controller/internal_replicas.py`). The smallest number of in-sync replicas counts up to the number
of replicas, so it need not be lowered. A broker on its own says so only if somebody asked for more:
with one broker there is nothing to be done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from ottla.config.broker import BrokerConfig
from ottla.controller.remote import ControllerLink
from ottla.controller.topics import NewTopic
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.transaction.state import TRANSACTIONS_TOPIC
from ottla.errors import ErrorCode, KafkaError
from ottla.model.image import ClusterImage

logger = logging.getLogger(__name__)

_FACTORS = {
    OFFSETS_TOPIC: ("offsets.topic.replication.factor", "groups' offsets"),
    TRANSACTIONS_TOPIC: ("transaction.state.log.replication.factor", "transactions"),
}
"""The settings that say how many replicas the topics are to have, and what is in them."""


def offsets_settings(config: BrokerConfig) -> dict[str, str]:
    """The settings of the groups' topic."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
    }


def transactions_settings(config: BrokerConfig) -> dict[str, str]:
    """The settings of the transactions' topic."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(config.transaction_state_log_min_isr),
        "segment.bytes": str(config.transaction_state_log_segment_bytes),
        "unclean.leader.election.enable": "false",
    }


class InternalTopics:
    """Makes the broker's own topics."""

    def __init__(
        self,
        controller: ControllerLink,
        image: Callable[[], ClusterImage],
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._controller = controller
        self._image = image
        self._config = config
        self._busy = asyncio.Lock()

    async def ensure(self, name: str) -> None:
        """The topic is there when this returns. Raises KafkaError."""
        async with self._busy:
            if name in self._image().topics:
                return
            wanted = self._new_topic(name)
            live = max(1, len(self._image().brokers))
            fitting = replace(wanted, replication_factor=min(live, wanted.replication_factor))
            (outcome,) = await self._controller.create_topics([fitting])
            if outcome.error is None:
                self._tell_fewer(wanted, live)
            elif outcome.error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise outcome.error

    def _new_topic(self, name: str) -> NewTopic:
        config = self._config()
        if name == OFFSETS_TOPIC:
            return NewTopic(
                name,
                config.offsets_topic_num_partitions,
                config.offsets_topic_replication_factor,
                config=offsets_settings(config),
            )
        if name == TRANSACTIONS_TOPIC:
            return NewTopic(
                name,
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_replication_factor,
                config=transactions_settings(config),
            )
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is no topic of the broker")

    def _tell_fewer(self, wanted: NewTopic, live: int) -> None:
        """Said when the topic was made by this broker: another one may have made it with more."""
        setting, content = _FACTORS[wanted.name]
        if live >= wanted.replication_factor:
            return
        if live > 1 or self._config().is_given(setting):
            logger.warning(
                "%s gets one replica on each of the %d broker(s) there are, not the %d that "
                "%s asks for: %s are as safe as those brokers, until more join",
                wanted.name,
                live,
                wanted.replication_factor,
                setting,
                content,
            )
