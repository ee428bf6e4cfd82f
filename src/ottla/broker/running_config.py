"""The settings in force: what each part of the broker reads of them, at the start and afterwards.

A broker starts with the settings of its file and flags. Over them lie those that were altered at
run time, for all brokers or for this one, which are part of the cluster's metadata. `RunningConfig`
is the one place where the two are put together; the parts that need settings later than at their
making are handed one of its methods, and so never see old ones.

The functions translate settings into what single parts are made with.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ottla.cluster.registry import Registry
from ottla.config.broker import BrokerConfig
from ottla.config.checks import parse_ip_limits
from ottla.config.dynamic import validate_topic_overrides
from ottla.config.topic import TopicConfig
from ottla.controller.keeper import MIN_INSYNC, Upkeep
from ottla.controller.topics import TopicDefaults
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.transaction.state import TRANSACTIONS_TOPIC
from ottla.model.topic import Topic
from ottla.net.listener import Limits
from ottla.replication.isr import Rules
from ottla.runtime.process import Descriptors
from ottla.storage.cleaner import CleanerSettings
from ottla.storage.directory import StorageSettings

logger = logging.getLogger(__name__)

# What strangers may make us hold in unfinished requests, where the settings do not say.
RECEIVE_MEMORY = 256 << 20


class RunningConfig:
    """The settings of one broker, always the newest."""

    def __init__(self, static: BrokerConfig, node_id: int, registry: Registry) -> None:
        self._static = static
        self._node_id = node_id
        self._registry = registry
        self._current = static
        self._overruled: str | None = None  # by which min.insync.replicas of the cluster
        self.refresh()

    def current(self) -> BrokerConfig:
        return self._current

    def refresh(self) -> BrokerConfig:
        """Take over what the newest image of the cluster overrides; the settings from now on."""
        configs = self._registry.image.broker_configs
        default, own = configs.get("", {}), configs.get(str(self._node_id), {})
        if MIN_INSYNC in default and MIN_INSYNC in own:
            # From before the cluster had one: nobody can set a broker's own any more.
            own = {name: value for name, value in own.items() if name != MIN_INSYNC}
        static = self._static
        self._current = static.with_dynamic(default, own) if default or own else static
        self._tell_overruled(default.get(MIN_INSYNC))
        return self._current

    def _tell_overruled(self, cluster: str | None) -> None:
        """Say once that the file of this broker says something else than the cluster."""
        static = self._static
        if cluster is None or cluster == self._overruled or not static.is_given(MIN_INSYNC):
            return
        if cluster == str(static.min_insync_replicas):
            return
        self._overruled = cluster
        logger.warning(
            "%s=%d in the settings of this broker does not count: the cluster has one for all "
            "brokers, and it is %s; change that with kafka-configs --entity-type brokers "
            "--entity-default",
            MIN_INSYNC,
            static.min_insync_replicas,
            cluster,
        )

    # --- what depends on them ---------------------------------------------------------------------

    def of_topic(self, topic: Topic) -> TopicConfig:
        """The settings in force for a topic."""
        return TopicConfig.resolve(topic.config, self._current)

    def of_topic_named(self, name: str) -> TopicConfig:
        """The same by name; a topic that the metadata does not know has the broker's defaults."""
        topic = self._registry.image.topics.get(name)
        return TopicConfig.resolve({} if topic is None else topic.config, self._current)

    def rules_of(self, topic: Topic) -> Rules:
        """What decides about the in-sync replicas and the leader of a topic's partitions."""
        config = self.of_topic(topic)
        return Rules(config.min_insync_replicas, config.unclean_leader_election_enable)

    def upkeep(self) -> Upkeep:
        """What a controller does by itself."""
        config = self._current
        return Upkeep(
            balance_seconds=float(config.leader_imbalance_check_interval_seconds)
            if config.auto_leader_rebalance_enable
            else None,
            min_insync=config.min_insync_replicas,
            factors={
                OFFSETS_TOPIC: config.offsets_topic_replication_factor,
                TRANSACTIONS_TOPIC: config.transaction_state_log_replication_factor,
            },
        )

    def topic_defaults(self) -> TopicDefaults:
        """What a new topic gets where nobody says anything else."""
        config = self._current
        return TopicDefaults(config.num_partitions, config.default_replication_factor)

    def check_topic(self, overrides: Mapping[str, str]) -> None:
        """Raises KafkaError unless these can be the settings of a topic."""
        validate_topic_overrides(overrides, self._current)

    def of_group(self, group: str) -> Mapping[str, str]:
        """What was altered for a group; nothing for most."""
        return self._registry.image.group_configs.get(group, {})


def storage_settings(config: BrokerConfig, descriptors: Descriptors) -> StorageSettings:
    return StorageSettings(
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        producer_id_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        recovery_point_checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_start_checkpoint_interval_ms=config.log_flush_start_offset_checkpoint_interval_ms,
        high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
        initial_task_delay_ms=config.log_initial_task_delay_ms,
        recovery_children=config.num_recovery_threads_per_data_dir,
        max_open_files=descriptors.segments,
        cleaner=cleaner_settings(config),
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        enable=config.log_cleaner_enable,
        threads=config.log_cleaner_threads,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes=config.log_cleaner_io_buffer_size,
        bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.log_cleaner_backoff_ms,
    )


def connection_limits(config: BrokerConfig, descriptors: Descriptors) -> Limits:
    asked = config.queued_max_request_bytes
    return Limits(
        frame_bytes=config.socket_request_max_bytes,
        receive_memory=asked if asked > 0 else RECEIVE_MEMORY,
        max_connections=config.max_connections,
        descriptors=descriptors.connections,
        max_connections_per_ip=config.max_connections_per_ip,
        per_ip_overrides=parse_ip_limits(config.max_connections_per_ip_overrides),
        idle_seconds=config.connections_max_idle_ms / 1000,
        send_buffer=config.socket_send_buffer_bytes,
        receive_buffer=config.socket_receive_buffer_bytes,
        backlog=config.socket_listen_backlog_size,
    )
