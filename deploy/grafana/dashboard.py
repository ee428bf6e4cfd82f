"""Writes ottla.json, the dashboard, beside itself: `python deploy/grafana/dashboard.py`.

A dashboard's JSON is the same thirty lines for each panel; here a panel is one line. A test holds
that the file is what this makes, that every query parses, and that every metric exists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
WIDTH, HEIGHT = 8, 7  # of a panel; a row is 24 wide
SOURCE = {"type": "prometheus", "uid": "${source}"}
ONLY = '{instance=~"$broker"}'


class Panel(NamedTuple):
    """One graph: its title, its unit, and what is drawn, each with a legend."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate({name}{ONLY}[$__rate_interval]))"


def increase(name: str) -> str:
    return f"sum(increase({name}{ONLY}[$__rate_interval]))"


def quantile(name: str, by: str, share: float) -> str:
    buckets = f"sum by ({by}, le) (rate({name}_bucket{ONLY}[$__rate_interval]))"
    return f"histogram_quantile({share}, {buckets})"


def total(name: str) -> str:
    return f"sum({name}{ONLY})"


CONTROLLER = "kafka_controller_kafka_controller_"
REPLICAS = "kafka_server_replica_manager_"
TOPICS = "kafka_server_broker_topic_metrics_"
REQUESTS = "kafka_network_request_metrics_"
GROUPS = "kafka_server_group_coordinator_metrics_"
SOCKETS = "kafka_server_socket_server_metrics_"

ROWS: dict[str, tuple[Panel, ...]] = {
    "What needs attention": (
        Panel(
            "Offline partitions",
            "short",
            ((total(f"{CONTROLLER}offline_partitions_count"), "offline"),),
            "stat",
        ),
        Panel(
            "Under-replicated partitions",
            "short",
            ((total(f"{REPLICAS}under_replicated_partitions"), "under-replicated"),),
            "stat",
        ),
        Panel(
            "Partitions that refuse acks=all",
            "short",
            ((total(f"{REPLICAS}under_min_isr_partition_count"), "below min.insync.replicas"),),
            "stat",
        ),
        Panel(
            "Controllers",
            "short",
            ((total(f"{CONTROLLER}active_controller_count"), "controllers"),),
            "stat",
        ),
        Panel(
            "Brokers",
            "short",
            ((total(f"{CONTROLLER}active_broker_count"), "admitted"),),
            "stat",
        ),
        Panel(
            "Free disk, least of all folders",
            "percentunit",
            (
                (
                    f"min(ottla_log_directory_free_bytes{ONLY} / "
                    f"ottla_log_directory_volume_bytes{ONLY})",
                    "free",
                ),
            ),
            "stat",
        ),
    ),
    "Traffic": (
        Panel("Records in", "rps", ((rate(f"{TOPICS}messages_in_total", "topic"), "{{topic}}"),)),
        Panel("Bytes in", "Bps", ((rate(f"{TOPICS}bytes_in_total", "topic"), "{{topic}}"),)),
        Panel("Bytes out", "Bps", ((rate(f"{TOPICS}bytes_out_total", "topic"), "{{topic}}"),)),
    ),
    "Requests": (
        Panel(
            "Requests", "reqps", ((rate(f"{REQUESTS}requests_total", "request"), "{{request}}"),)
        ),
        Panel(
            "Time of a request, p99",
            "s",
            ((quantile(f"{REQUESTS}total_time_seconds", "request", 0.99), "{{request}}"),),
        ),
        Panel(
            "Failed requests",
            "reqps",
            ((rate(f"{REQUESTS}errors_total", "request"), "{{request}}"),),
        ),
        Panel(
            "Event loop late, p99",
            "s",
            ((quantile("ottla_loop_stall_seconds", "instance", 0.99), "{{instance}}"),),
        ),
        Panel("Connections", "short", ((f"{SOCKETS}connection_count{ONLY}", "{{instance}}"),)),
        Panel(
            "New connections",
            "cps",
            ((rate(f"{SOCKETS}connection_creation_total", "instance"), "{{instance}}"),),
        ),
    ),
    "Replication": (
        Panel(
            "Lag of followers, in records",
            "short",
            ((f"max by (follower) (ottla_replica_lag_records{ONLY})", "broker {{follower}}"),),
        ),
        Panel(
            "In-sync sets",
            "short",
            (
                (rate(f"{REPLICAS}isr_shrinks_total", "instance"), "shrinks {{instance}}"),
                (rate(f"{REPLICAS}isr_expands_total", "instance"), "expands {{instance}}"),
                (rate(f"{REPLICAS}failed_isr_updates_total", "instance"), "failed {{instance}}"),
            ),
        ),
        Panel(
            "Elections",
            "short",
            (
                (increase("ottla_leader_elections_total"), "all"),
                (
                    increase("kafka_controller_controller_stats_unclean_leader_elections_total"),
                    "unclean",
                ),
            ),
        ),
        Panel("Leaders", "short", ((f"{REPLICAS}leader_count{ONLY}", "{{instance}}"),)),
        Panel(
            "Copied from leaders",
            "Bps",
            ((rate(f"{TOPICS}replication_bytes_in_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Session with the metadata store",
            "s",
            ((f"ottla_store_session_seconds{ONLY} < +Inf", "{{instance}}"),),
        ),
    ),
    "Groups": (
        Panel(
            "Lag of groups, in records",
            "short",
            ((f"sum by (group, topic) (ottla_group_lag_records{ONLY})", "{{group}}: {{topic}}"),),
        ),
        Panel(
            "Groups",
            "short",
            ((f"sum by (protocol, state) ({GROUPS}group_count{ONLY})", "{{protocol}} {{state}}"),),
        ),
        Panel(
            "Rebalances",
            "short",
            (
                (rate(f"{GROUPS}group_completed_rebalance_total", "instance"), "classic"),
                (rate(f"{GROUPS}consumer_group_rebalance_total", "instance"), "consumer"),
            ),
        ),
    ),
    "Disks and processes": (
        Panel(
            "Bytes on disk", "bytes", ((f"sum by (topic) (kafka_log_log_size{ONLY})", "{{topic}}"),)
        ),
        Panel(
            "Free on the volume",
            "bytes",
            ((f"ottla_log_directory_free_bytes{ONLY}", "{{instance}} {{directory}}"),),
        ),
        Panel(
            "Compaction behind",
            "percentunit",
            ((f"kafka_log_log_cleaner_manager_max_dirty_ratio{ONLY}", "{{instance}}"),),
        ),
        Panel(
            "CPU, in cores",
            "short",
            ((rate("process_cpu_seconds_total", "instance"), "{{instance}}"),),
        ),
        Panel("Memory", "bytes", ((f"process_resident_memory_bytes{ONLY}", "{{instance}}"),)),
        Panel("Descriptors", "short", ((f"process_open_fds{ONLY}", "{{instance}}"),)),
    ),
}


def made() -> str:
    """The dashboard as Grafana imports it."""
    return json.dumps(dashboard(), indent=2) + "\n"


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
                "panels": [],
            }
        )
        top += 1
        wide, high = (4, 4) if row[0].kind == "stat" else (WIDTH, HEIGHT)
        for number, panel in enumerate(row):
            place = {"x": number * wide % 24, "y": top + number * wide // 24 * high}
            panels.append(drawn(panel, len(panels) + 1, {**place, "w": wide, "h": high}))
        top += -(-len(row) * wide // 24) * high
    return {
        "title": "Ottla",
        "uid": "ottla",
        "tags": ["ottla", "kafka"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source_variable(), broker_variable()]},
        "panels": panels,
    }


def drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query, "legendFormat": name}
            for at, (query, name) in enumerate(panel.queries)
        ],
    }


def source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def broker_variable() -> dict[str, Any]:
    return {
        "name": "broker",
        "label": "Broker",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(ottla_build_info, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }


if __name__ == "__main__":
    (HERE / "ottla.json").write_text(made())
