"""One file per API family, and the one list of what this broker serves.

ApiVersions, the dispatcher's table, metric labels and `docs/reference/protocol-support.md` are
all read from `HANDLERS`. Nothing else makes an API exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.handlers import (
    api_versions,
    brokers,
    configs,
    consumer_groups,
    elections,
    features,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    produce,
    quorum,
    retention,
    topics,
    transaction_states,
    transactional_offsets,
    transactions,
)

HANDLERS: tuple[Callable[..., Any], ...] = (
    produce.produce,
    fetch.fetch,
    offsets.list_offsets,
    metadata.metadata,
    group_offsets.offset_commit,
    group_offsets.offset_fetch,
    groups.find_coordinator,
    groups.join_group,
    groups.heartbeat,
    groups.leave_group,
    groups.sync_group,
    groups.describe_groups,
    groups.list_groups,
    api_versions.api_versions,
    topics.create_topics,
    topics.delete_topics,
    offsets.delete_records,
    transactions.init_producer_id,
    offsets.offset_for_leader_epoch,
    transactions.add_partitions_to_txn,
    transactions.add_offsets_to_txn,
    transactions.end_txn,
    transactions.write_txn_markers,
    transactional_offsets.txn_offset_commit,
    configs.describe_configs,
    configs.alter_configs,
    log_dirs.describe_log_dirs,
    topics.create_partitions,
    groups.delete_groups,
    elections.elect_leaders,
    configs.incremental_alter_configs,
    group_offsets.offset_delete,
    quorum.describe_quorum,
    features.update_features,
    metadata.describe_cluster,
    transactions.describe_producers,
    transaction_states.describe_transactions,
    transaction_states.list_transactions,
    consumer_groups.consumer_group_heartbeat,
    consumer_groups.consumer_group_describe,
    configs.list_config_resources,
    metadata.describe_topic_partitions,
    retention.explain_retention,
    brokers.describe_brokers,
)
