"""What is measured besides requests: connections, logs, compaction, groups, the cluster.

Each number is read when somebody asks for it. A name that Kafka has for the same thing is Kafka's,
by one rule: the domain, the type and the name of its MBean in snake case, with the other properties
as labels; `PerSec` and what else only grows end in `_total`, `Ms` and `Secs` become `_seconds`,
`Percent` becomes `_ratio`. Whatever has no such name begins with `ottla_`.

`MEASURES` has the plain numbers; what has a series for each topic, follower, group or folder is in
`series_metering`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

from ottla import __version__
from ottla.broker.series_metering import group_lag, logs_by_topic, replica_lag, traffic
from ottla.broker.transaction_metering import TransactionNumbers
from ottla.controller.election import prefer
from ottla.coordinator.group.group import Counts, GroupType
from ottla.coordinator.transaction.state import State
from ottla.dispatch.context import Services
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER
from ottla.net.listener import Listeners
from ottla.records import walker
from ottla.runtime.metrics import Metrics, Reading
from ottla.storage.cleaner import CleanerStatistics
from ottla.storage.directory import StorageStatistics
from ottla.storage.moving import MoveStatistics

# So many partitions are counted before others have a turn on the loop.
TURN = 256


class Replicated:
    """The partitions that this broker leads, counted."""

    def __init__(self) -> None:
        self.led = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0


class Sources:
    """Where the numbers are, for one reading of them: what is counted is counted once."""

    def __init__(self, services: Services, listeners: Listeners) -> None:
        self.services = services
        self.listeners = listeners
        self.replicated = Replicated()
        self.offline_partitions = 0
        self.partitions_of_all = 0
        self.transactions = TransactionNumbers()
        self.groups: Counter[tuple[GroupType, str]] = Counter()  # by protocol and state
        self.not_preferred = 0  # which could be led by their first replica, and are not

    @cached_property
    def logs(self) -> StorageStatistics:
        return self.services.logs.statistics()

    @cached_property
    def moves(self) -> MoveStatistics:
        return self.services.logs.moves.statistics()

    @cached_property
    def cleaner(self) -> CleanerStatistics:
        return self.services.logs.cleaner.statistics()

    @cached_property
    def totals(self) -> tuple[int, int]:
        return self.listeners.totals()

    @property
    def counts(self) -> Counts:
        return self.services.groups.counts

    @property
    def controls(self) -> bool:
        """Whether this broker is the controller, which alone counts for the whole cluster."""
        return self.services.controller.active

    def count_partitions(self) -> Iterator[None]:
        """Look at every partition that is led here and, as the controller, at all there are."""
        counted = self.replicated
        for number, partition in enumerate(list(self.services.replicas.led())):
            state, config = partition.state, partition.log.config
            in_sync, least = len(state.isr), state.minimum(config.min_insync_replicas)
            counted.led += 1
            counted.under_replicated += state.under_replicated
            counted.under_min_isr += in_sync < least
            counted.at_min_isr += in_sync == least
            if number % TURN == TURN - 1:
                yield
        if self.controls:
            yield from self._count_all(self.services.image)

    def count_groups(self) -> Iterator[None]:
        """Look at every group that is coordinated here."""
        for number, group in enumerate(self.services.groups.held()):
            self.groups[group.type, group.state_name] += 1
            if number % TURN == TURN - 1:
                yield

    def _count_all(self, image: ClusterImage) -> Iterator[None]:
        able = {
            broker
            for broker in image.brokers
            if not (known := image.broker_states.get(broker)) or not known.stopping
        }
        for topic in image.topics.values():
            for state in topic.partitions:
                self.partitions_of_all += 1
                self.offline_partitions += state.leader == NO_LEADER
                self.not_preferred += prefer(state, able) is not state
                if self.partitions_of_all % TURN == 0:
                    yield


class Measure(NamedTuple):
    """One number: its name, what it means, how it is read, and its labels."""

    name: str
    help: str
    read: Callable[[Sources], float]
    labels: tuple[tuple[str, str], ...] = ()


def measure(metrics: Metrics, services: Services, listeners: Listeners) -> None:
    """Have all of it read whenever somebody reads the metrics."""
    metrics.collect(partial(_collect, services, listeners))


def _collect(services: Services, listeners: Listeners) -> Iterator[Reading | None]:
    sources = Sources(services, listeners)
    yield from sources.count_partitions()
    yield from sources.count_groups()
    yield from sources.transactions.count(services)
    for name, measures in groupby(MEASURES, lambda one: one.name):
        series = list(measures)
        yield Reading(
            name,
            series[0].help,
            "counter" if name.endswith("_total") else "gauge",
            tuple(label for label, _ in series[0].labels),
            tuple((tuple(text for _, text in one.labels), one.read(sources)) for one in series),
        )
    yield None
    yield from traffic(services.replicas.traffic)
    yield from logs_by_topic(services)
    yield from replica_lag(services)
    yield from group_lag(services)
    yield from services.telemetry.read()


def _since_last_look(of: Sources) -> float:
    return max(0, of.services.clock.now_ms() - of.cleaner.last_look_ms) / 1000


def _fenced(of: Sources) -> int:
    image = of.services.image
    return len(set(image.registrations) - set(image.brokers)) if of.controls else 0


def _session_seconds(of: Sources) -> float:
    return max(0.0, of.services.replication.session_until - of.services.clock.monotonic())


_SIMPLE = (
    Measure(
        "ottla_build_info",
        "1, with the version as a label.",
        lambda of: 1,
        (("version", __version__),),
    ),
    # connections
    Measure(
        "kafka_server_socket_server_metrics_connection_count",
        "Open client connections.",
        lambda of: len(of.listeners.connections),
    ),
    Measure(
        "kafka_server_socket_server_metrics_connection_creation_total",
        "Connections accepted since the start.",
        lambda of: of.listeners.accepted,
    ),
    Measure(
        "kafka_server_socket_server_metrics_incoming_byte_total",
        "Bytes received from clients and other brokers.",
        lambda of: of.totals[0],
    ),
    Measure(
        "kafka_server_socket_server_metrics_outgoing_byte_total",
        "Bytes sent to clients and other brokers.",
        lambda of: of.totals[1],
    ),
    Measure(
        "ottla_receive_memory_bytes",
        "Memory held by unfinished requests.",
        lambda of: of.listeners.memory.lent,
    ),
    Measure(
        "kafka_server_fetch_session_cache_num_incremental_fetch_sessions",
        "Incremental fetch sessions.",
        lambda of: len(of.services.fetch_sessions),
    ),
    # replication
    Measure(
        "kafka_server_replica_manager_partition_count",
        "Partitions held, as leader or follower.",
        lambda of: of.logs.partitions,
    ),
    Measure(
        "kafka_server_replica_manager_leader_count",
        "Partitions led.",
        lambda of: of.replicated.led,
    ),
    Measure(
        "kafka_server_replica_manager_offline_replica_count",
        "Partitions whose disk or log has failed.",
        lambda of: of.logs.offline_partitions,
    ),
    Measure(
        "kafka_server_replica_manager_under_replicated_partitions",
        "Partitions led here with replicas that are not in sync.",
        lambda of: of.replicated.under_replicated,
    ),
    Measure(
        "kafka_server_replica_manager_under_min_isr_partition_count",
        "Partitions led here that refuse acks=all for want of in-sync replicas.",
        lambda of: of.replicated.under_min_isr,
    ),
    Measure(
        "kafka_server_replica_manager_at_min_isr_partition_count",
        "Partitions led here that will refuse acks=all with one in-sync replica less.",
        lambda of: of.replicated.at_min_isr,
    ),
    Measure(
        "kafka_server_replica_manager_isr_shrinks_total",
        "Times that this leader took replicas out of the in-sync set of a partition.",
        lambda of: of.services.replication.isr_updates.shrinks,
    ),
    Measure(
        "kafka_server_replica_manager_isr_expands_total",
        "Times that this leader took replicas into the in-sync set of a partition.",
        lambda of: of.services.replication.isr_updates.expands,
    ),
    Measure(
        "kafka_server_replica_manager_failed_isr_updates_total",
        "Changes of in-sync sets that the metadata store did not take.",
        lambda of: of.services.replication.isr_updates.failed,
    ),
    # the cluster
    Measure(
        "kafka_controller_kafka_controller_active_controller_count",
        "1 on the controller, 0 elsewhere.",
        lambda of: int(of.controls),
    ),
    Measure(
        "kafka_controller_kafka_controller_active_broker_count",
        "Brokers that were admitted to the cluster, as the controller sees it; 0 elsewhere.",
        lambda of: len(of.services.image.brokers) if of.controls else 0,
    ),
    Measure(
        "kafka_controller_kafka_controller_fenced_broker_count",
        "Brokers that are registered and not admitted, as the controller sees it; 0 elsewhere.",
        _fenced,
    ),
    Measure(
        "kafka_controller_kafka_controller_global_topic_count",
        "Topics of the cluster, on the controller; 0 elsewhere.",
        lambda of: len(of.services.image.topics) if of.controls else 0,
    ),
    Measure(
        "kafka_controller_kafka_controller_global_partition_count",
        "Partitions of the cluster, on the controller; 0 elsewhere.",
        lambda of: of.partitions_of_all,
    ),
    Measure(
        "kafka_controller_kafka_controller_offline_partitions_count",
        "Partitions of the cluster without a leader, on the controller; 0 elsewhere.",
        lambda of: of.offline_partitions,
    ),
    Measure(
        "kafka_controller_kafka_controller_preferred_replica_imbalance_count",
        "Partitions that could be led by their first replica and are not, on the controller.",
        lambda of: of.not_preferred,
    ),
    Measure(
        "kafka_controller_controller_stats_unclean_leader_elections_total",
        "Partitions that got a leader which may lack acknowledged records, by this controller.",
        lambda of: of.services.controller.unclean.total,
    ),
    Measure(
        "ottla_leader_elections_total",
        "Partitions that got another leader, by this controller; unclean elections are among them.",
        lambda of: of.services.controller.elections,
    ),
    Measure(
        "ottla_controller_epoch",
        "The newest term of a controller that this broker knows of.",
        lambda of: of.services.image.controller_epoch,
    ),
    Measure(
        "ottla_broker_epoch",
        "The broker's registration; -1 while it has none.",
        lambda of: of.services.replication.broker_epoch,
    ),
    Measure(
        "ottla_store_session_seconds",
        "For how long the metadata store certainly still counts on this broker; 0: not at all.",
        _session_seconds,
    ),
    # logs
    Measure(
        "kafka_log_log_manager_offline_log_directory_count",
        "Data folders that have failed.",
        lambda of: of.logs.offline_folders,
    ),
    Measure("ottla_log_open_files", "Segment files held open.", lambda of: of.logs.open_files),
    Measure(
        "kafka_server_replica_alter_log_dirs_manager_max_lag",
        "The most records that the copy of a log lacks which moves between data folders.",
        lambda of: of.moves.lag,
    ),
    Measure("ottla_log_moves", "Logs that move between data folders.", lambda of: of.moves.running),
    Measure(
        "ottla_log_moves_finished_total",
        "Logs that have arrived in another data folder.",
        lambda of: of.moves.finished,
    ),
    Measure(
        "ottla_log_moves_given_up_total",
        "Moves between data folders that were given up because one of them failed or was full.",
        lambda of: of.moves.given_up,
    ),
    Measure(
        "ottla_log_moves_bytes_total",
        "Bytes copied between data folders.",
        lambda of: of.moves.bytes_copied,
    ),
    Measure("ottla_log_flushes_total", "fsync rounds of logs.", lambda of: of.logs.flushes),
    Measure(
        "ottla_native_records",
        "1 where records are walked by native code, 0 where in Python.",
        lambda of: int(walker.NATIVE),
    ),
    # compaction
    Measure(
        "ottla_cleaner_runs_total",
        "Logs that were compacted, each time.",
        lambda of: of.cleaner.runs,
    ),
    Measure(
        "ottla_cleaner_given_up_total",
        "Compactions given up because the log changed meanwhile.",
        lambda of: of.cleaner.given_up,
    ),
    Measure(
        "ottla_cleaner_bytes_read_total",
        "Bytes read by compaction, both passes.",
        lambda of: of.cleaner.bytes_read,
    ),
    Measure(
        "ottla_cleaner_bytes_written_total",
        "Bytes written by compaction.",
        lambda of: of.cleaner.bytes_written,
    ),
    Measure(
        "ottla_cleaner_records_read_total",
        "Records that compaction decided about.",
        lambda of: of.cleaner.records_read,
    ),
    Measure(
        "ottla_cleaner_records_kept_total",
        "Records that compaction kept.",
        lambda of: of.cleaner.records_kept,
    ),
    Measure("ottla_cleaner_running", "Logs being compacted.", lambda of: of.cleaner.running),
    Measure(
        "ottla_cleaner_last_run_seconds",
        "How long the last compaction took.",
        lambda of: of.cleaner.last_seconds,
    ),
    Measure(
        "kafka_log_log_cleaner_max_buffer_utilization_ratio",
        "How full log.cleaner.dedupe.buffer.size was in the last compaction; 1 ends it early.",
        lambda of: of.cleaner.map_used,
    ),
    Measure(
        "kafka_log_log_cleaner_manager_max_dirty_ratio",
        "Dirty share of the dirtiest compacted log at the cleaner's last look.",
        lambda of: of.cleaner.max_dirty_ratio,
    ),
    Measure(
        "kafka_log_log_cleaner_max_compaction_delay_seconds",
        "By how much max.compaction.lag.ms was missed at the cleaner's last look.",
        lambda of: of.cleaner.max_overdue_ms / 1000,
    ),
    Measure(
        "kafka_log_log_cleaner_manager_time_since_last_run_seconds",
        "Time since the cleaner last looked for work.",
        _since_last_look,
    ),
    Measure(
        "kafka_log_log_cleaner_manager_uncleanable_partitions_count",
        "Partitions that cannot be compacted; the log says why.",
        lambda of: of.cleaner.uncleanable,
    ),
    Measure(
        "kafka_log_log_cleaner_manager_uncleanable_bytes",
        "Bytes in partitions that cannot be compacted.",
        lambda of: of.cleaner.uncleanable_bytes,
    ),
    # groups
    Measure(
        "kafka_server_group_coordinator_metrics_offset_commit_total",
        "Offsets committed, one for each partition.",
        lambda of: of.counts.offsets_committed,
    ),
    Measure(
        "kafka_server_group_coordinator_metrics_offset_expiration_total",
        "Committed offsets past their retention.",
        lambda of: of.counts.offsets_expired,
    ),
    Measure(
        "kafka_server_group_coordinator_metrics_offset_deletion_total",
        "Committed offsets that somebody deleted, other than with their group or topic.",
        lambda of: of.counts.offsets_deleted,
    ),
    Measure(
        "kafka_server_group_coordinator_metrics_group_completed_rebalance_total",
        "Classic groups that got their assignment, each time.",
        lambda of: of.counts.classic_rebalances,
    ),
    Measure(
        "kafka_server_group_coordinator_metrics_consumer_group_rebalance_total",
        "New epochs of consumer groups.",
        lambda of: of.counts.consumer_rebalances,
    ),
)


_TRANSACTIONS = (
    Measure(
        "kafka_server_replica_manager_partitions_with_late_transactions_count",
        "Partitions led here with a transaction that should have ended: it probably hangs.",
        lambda of: of.transactions.late_partitions,
    ),
    Measure(
        "kafka_coordinator_transaction_transaction_marker_channel_manager_unknown_destination_queue_size",
        "Markers that cannot be written because nobody leads their partition.",
        lambda of: of.transactions.markers_without_leader,
    ),
    Measure(
        "kafka_coordinator_transaction_transaction_marker_channel_manager_log_append_retry_queue_size",
        "Transactions with all of their markers, of which that cannot be written to the log yet.",
        lambda of: of.services.transactions.sender.unwritten,
    ),
    Measure(
        "ottla_transaction_markers_pending",
        "Partitions of decided transactions that are not over: their markers are being written.",
        lambda of: of.transactions.markers_pending,
    ),
    Measure(
        "ottla_transactions_timed_out_total",
        "Transactions that were aborted here because they were open for too long.",
        lambda of: of.services.transactions.counts.timed_out,
    ),
)

_TELEMETRY = (
    Measure(
        "kafka_server_client_metrics_instance_count",
        "Clients that have asked what to push, and are not silent yet.",
        lambda of: len(of.services.telemetry),
    ),
    Measure(
        "kafka_server_client_metrics_plugin_export_total",
        "Pushes of clients that were taken.",
        lambda of: of.services.telemetry.pushes,
    ),
    Measure(
        "kafka_server_client_metrics_plugin_error_total",
        "Pushes of clients that could not be read.",
        lambda of: of.services.telemetry.failures,
    ),
    Measure(
        "kafka_server_client_metrics_throttle_total",
        "Requests of clients before their time.",
        lambda of: of.services.telemetry.throttled,
    ),
    Measure(
        "kafka_server_client_metrics_unknown_subscription_request_total",
        "Pushes for a subscription that has changed since.",
        lambda of: of.services.telemetry.unknown_subscriptions,
    ),
    Measure(
        "ottla_client_metrics_left_out_total",
        "Numbers that clients pushed beyond the bounds, or that cannot be shown.",
        lambda of: of.services.telemetry.left_out,
    ),
)

# --- groups, by protocol and state ----------------------------------------------------------------

_STATES = {
    GroupType.CLASSIC: ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable"),
    GroupType.CONSUMER: ("Empty", "Assigning", "Reconciling", "Stable"),
}
_PARTITIONS = "Partitions of the groups' log that are coordinated here."


def _groups(protocol: GroupType, state: str, of: Sources) -> float:
    return of.groups[protocol, state]


def _group_partitions(active: bool, of: Sources) -> float:
    return of.services.groups.count_partitions(active=active)


def _transactions(state: State, of: Sources) -> float:
    return of.transactions.by_state[state]


def _transaction_partitions(active: bool, of: Sources) -> float:
    return of.services.transactions.count_partitions(active=active)


MEASURES: tuple[Measure, ...] = (
    *_SIMPLE,
    *_TELEMETRY,
    *(
        Measure(
            "kafka_server_group_coordinator_metrics_group_count",
            "Groups coordinated here.",
            partial(_groups, protocol, state),
            (("protocol", protocol.value), ("state", state)),
        )
        for protocol, states in _STATES.items()
        for state in states
    ),
    *(
        Measure(
            "kafka_server_group_coordinator_metrics_num_partitions",
            _PARTITIONS,
            partial(_group_partitions, active),
            (("state", state),),
        )
        for active, state in ((False, "loading"), (True, "active"))
    ),
    *_TRANSACTIONS,
    *(
        Measure(
            "ottla_transactions",
            "Transactional ids coordinated here, by the state of their last transaction.",
            partial(_transactions, state),
            (("state", state.shown),),
        )
        for state in State
    ),
    *(
        Measure(
            "ottla_transaction_log_partitions",
            "Partitions of the transactions' log that are coordinated here.",
            partial(_transaction_partitions, active),
            (("state", state),),
        )
        for active, state in ((False, "loading"), (True, "active"))
    ),
)
