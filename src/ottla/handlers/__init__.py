"""One file per API family, and the one list of what this broker serves.

ApiVersions, the dispatcher's table, metric labels and `docs/reference/protocol-support.md` are
all read from `HANDLERS`. Nothing else makes an API exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.handlers import (
    api_versions,
    configs,
    coordinators,
    fetch,
    log_dirs,
    metadata,
    offsets,
    produce,
    topics,
    transactions,
)

HANDLERS: tuple[Callable[..., Any], ...] = (
    produce.produce,
    fetch.fetch,
    offsets.list_offsets,
    metadata.metadata,
    coordinators.find_coordinator,
    api_versions.api_versions,
    topics.create_topics,
    topics.delete_topics,
    offsets.delete_records,
    transactions.init_producer_id,
    offsets.offset_for_leader_epoch,
    configs.describe_configs,
    configs.alter_configs,
    log_dirs.describe_log_dirs,
    topics.create_partitions,
    configs.incremental_alter_configs,
    metadata.describe_cluster,
    transactions.describe_producers,
    configs.list_config_resources,
    metadata.describe_topic_partitions,
)
