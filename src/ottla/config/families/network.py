"""Who the broker is and how it is reached: identity, listeners, connections, requests."""

from __future__ import annotations

from ottla.config.declare import Settings, integer, long, names, string
from ottla.config.rules import at_least, between, distinct
from ottla.config.setting import MAX_INT, Difference


class NetworkSettings(Settings):
    """Identity, listeners, sockets, connection limits and request handling."""

    node_id: int = integer(
        default=1,
        rule=at_least(0),
        importance="high",
        differs=Difference(None, "one broker starts without a file"),
        doc="This broker's number, unique in its cluster. A data directory remembers the number "
        "it was written under.",
    )
    broker_id: int = integer(
        default=-1,
        importance="high",
        doc="The older spelling of node.id. Either may be given; giving both with different "
        "numbers is an error. -1 means not chosen.",
    )
    broker_rack: str | None = string(
        default=None,
        doc="Where this broker stands (rack, zone, host). Clients see it in Metadata, and "
        "replicas of a partition are spread over racks.",
    )
    listener_addresses: tuple[str, ...] = names(
        default=("PLAINTEXT://127.0.0.1:9092",),
        rule=distinct(empty=False),
        name="listeners",
        importance="high",
        update="per-broker",
        differs=Difference(
            "PLAINTEXT://:9092", "nothing outside this machine can connect until you say so"
        ),
        doc="Addresses to bind, as NAME://host:port. An empty host or 0.0.0.0 binds every "
        "interface, port 0 any free port; an IPv6 literal goes in brackets.",
    )
    port: int = integer(
        default=9092,
        rule=between(0, 65_535),
        importance="high",
        internal=True,
        foreign=True,
        doc="Where to listen when there are no listeners. Kafka had it until 2.8.",
    )
    host_name: str = string(
        default="127.0.0.1",
        importance="high",
        internal=True,
        foreign=True,
        doc="The address that goes with port; empty, which was Kafka's default, means every "
        "interface.",
    )
    advertised_addresses: tuple[str, ...] | None = names(
        default=None,
        rule=distinct(empty=False),
        name="advertised.listeners",
        importance="high",
        doc="Addresses that clients are told to connect to, one for each listener that may be "
        "told of. Without it the listeners themselves, with this host's name in place of a "
        "wildcard.",
    )
    listener_security_protocol_map: str = string(
        default="SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        importance="low",
        update="per-broker",
        doc="Which security protocol each listener name stands for, as NAME:PROTOCOL pairs.",
    )
    inter_broker_listener_name: str | None = string(
        default=None,
        doc="Name of the listener that brokers use among themselves. Not to be given together "
        "with security.inter.broker.protocol.",
    )
    background_threads: int = integer(
        default=10,
        rule=at_least(1),
        importance="high",
        update="cluster-wide",
        effect="none",
        doc="Threads for Kafka's background tasks. One event loop does that work here.",
    )
    config_providers: tuple[str, ...] = names(
        default=(),
        rule=distinct(),
        importance="low",
        update="cluster-wide",
        effect="none",
        doc="Java plug-ins that look up secrets while Kafka reads its file.",
    )
    connections_max_idle_ms: int = long(
        default=600_000,
        doc="Connections without traffic for this long are closed.",
    )
    delete_records_purgatory_purge_interval_requests: int = integer(
        default=1,
        effect="none",
        doc="How often Kafka sweeps finished DeleteRecords waits out of memory. Waits remove "
        "themselves here.",
    )
    fetch_max_bytes: int = integer(
        default=57_671_680,
        rule=at_least(1024),
        doc="Most bytes a single fetch response may carry, whatever the client asked for.",
    )
    fetch_purgatory_purge_interval_requests: int = integer(
        default=1000,
        effect="none",
        doc="How often Kafka sweeps finished fetch waits out of memory. Waits remove themselves "
        "here.",
    )
    max_connection_creation_rate: int = integer(
        default=MAX_INT,
        rule=at_least(0),
        update="cluster-wide",
        effect="later",
        doc="Most new connections accepted per second, on the whole broker or per listener.",
    )
    max_connections: int = integer(
        default=MAX_INT,
        rule=at_least(0),
        update="cluster-wide",
        doc="Most open connections of the whole broker. Further ones are closed at once.",
    )
    max_connections_per_ip: int = integer(
        default=MAX_INT,
        rule=at_least(0),
        update="cluster-wide",
        doc="Most open connections from one address. Zero is allowed only when overrides are "
        "given.",
    )
    max_connections_per_ip_overrides: str = string(
        default="",
        update="cluster-wide",
        doc="Exceptions to max.connections.per.ip, as host:count pairs.",
    )
    max_incremental_fetch_session_cache_slots: int = integer(
        default=1000,
        rule=at_least(0),
        doc="How many incremental fetch sessions are remembered at a time.",
    )
    max_request_partition_size_limit: int = integer(
        default=2000,
        rule=at_least(1),
        doc="Most partitions in one answer to DescribeTopicPartitions.",
    )
    num_io_threads: int = integer(
        default=8,
        rule=at_least(1),
        importance="high",
        update="cluster-wide",
        effect="none",
        doc="Threads that process requests in Kafka. One event loop does it here.",
    )
    num_network_threads: int = integer(
        default=3,
        rule=at_least(1),
        importance="high",
        update="cluster-wide",
        effect="none",
        doc="Threads that move bytes for a listener in Kafka. One event loop does it here.",
    )
    producer_purgatory_purge_interval_requests: int = integer(
        default=1000,
        effect="none",
        doc="How often Kafka sweeps finished produce waits out of memory. Waits remove themselves"
        " here.",
    )
    queued_max_request_bytes: int = long(
        default=-1,
        doc="Bytes of requests that may be in memory before the broker stops reading from "
        "connections. -1 leaves it at a built-in bound.",
    )
    queued_max_requests: int = integer(
        default=500,
        rule=at_least(1),
        importance="high",
        effect="none",
        doc="Requests that may wait between Kafka's network and I/O threads. There is no such "
        "queue here.",
    )
    request_timeout_ms: int = integer(
        default=30_000,
        importance="high",
        effect="later",
        doc="How long this broker waits for another broker's answer before it retries or gives up.",
    )
    socket_connection_setup_timeout_max_ms: int = long(
        default=30_000,
        effect="later",
        doc="Longest wait for a connection to another broker to be established, after repeated "
        "failures.",
    )
    socket_connection_setup_timeout_ms: int = long(
        default=10_000,
        effect="later",
        doc="First wait for a connection to another broker to be established; it doubles with "
        "every failure.",
    )
    socket_listen_backlog_size: int = integer(
        default=50,
        rule=at_least(1),
        doc="Connections the operating system may hold before they are accepted.",
    )
    socket_receive_buffer_bytes: int = integer(
        default=102_400,
        importance="high",
        doc="Size of each connection's receive buffer (SO_RCVBUF); -1 leaves it to the operating "
        "system.",
    )
    socket_request_max_bytes: int = integer(
        default=104_857_600,
        rule=at_least(1),
        importance="high",
        doc="Largest request accepted. A connection that announces more is closed.",
    )
    socket_send_buffer_bytes: int = integer(
        default=102_400,
        importance="high",
        doc="Size of each connection's send buffer (SO_SNDBUF); -1 leaves it to the operating "
        "system.",
    )
