"""Which APIs exist, in which versions, and which messages they are made of.

The rows are those of Apache Kafka 4.2's broker listener. Versions are what Kafka advertises:
Produce starts at 0 although 0 to 2 are answered with an error, because librdkafka up to 2.0
takes a higher minimum to mean that gzip, snappy and lz4 are not understood.

Every row says from which version on an API is flexible, as the request header cannot be
read without it. A row with a module has its messages declared, and so a place in `APIS`;
the module is imported when its classes are first asked for.

From `OWN` on are APIs of ours, for our own tools. They are served and never advertised: a client of
Kafka's knows nothing of them, and is told nothing.
"""

from __future__ import annotations

import enum
import importlib
from typing import Any, Final, NamedTuple

NEVER: Final = 1 << 15
"""A version that no request can have: the API has no flexible version."""

OWN: Final = 10_000
"""Keys from here on are ours and not Kafka's."""


class ApiKey(enum.IntEnum):
    """The number of each API."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    EXPLAIN_RETENTION = 10_000
    DESCRIBE_BROKERS = 10_001

    @property
    def api_name(self) -> str:
        """The name as Kafka writes it: `ListOffsets`."""
        return self.name.title().replace("_", "")

    @property
    def is_own(self) -> bool:
        """Whether it is an API of ours, which Kafka does not have."""
        return self >= OWN


class ApiSpec:
    """One API whose messages are declared."""

    __slots__ = ("_module", "flexible_from", "key", "max_version", "min_version", "name")

    def __init__(self, row: _Row) -> None:
        self.key = row.key
        self.name = row.key.api_name
        self.min_version = row.min_version
        self.max_version = row.max_version
        self.flexible_from = row.flexible_from
        self._module = row.module

    @property
    def request(self) -> type[Any]:
        """The class of its requests."""
        return self._class("Request")

    @property
    def response(self) -> type[Any]:
        """The class of its responses."""
        return self._class("Response")

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def _class(self, kind: str) -> type[Any]:
        module = importlib.import_module(f"ottla.protocol.messages.{self._module}")
        found: type[Any] = getattr(module, self.name + kind)
        return found

    def __repr__(self) -> str:
        return f"<ApiSpec {self.name} {self.min_version}-{self.max_version}>"


class _Row(NamedTuple):
    key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int
    module: str = ""


_ROWS: Final = (
    _Row(ApiKey.PRODUCE, 0, 13, 9, "produce"),
    _Row(ApiKey.FETCH, 4, 18, 12, "fetch"),
    _Row(ApiKey.LIST_OFFSETS, 1, 11, 6, "offsets"),
    _Row(ApiKey.METADATA, 0, 13, 9, "metadata"),
    _Row(ApiKey.OFFSET_COMMIT, 2, 10, 8, "group_offsets"),
    _Row(ApiKey.OFFSET_FETCH, 1, 10, 6, "group_offsets"),
    _Row(ApiKey.FIND_COORDINATOR, 0, 6, 3, "groups"),
    _Row(ApiKey.JOIN_GROUP, 0, 9, 6, "groups"),
    _Row(ApiKey.HEARTBEAT, 0, 4, 4, "groups"),
    _Row(ApiKey.LEAVE_GROUP, 0, 5, 4, "groups"),
    _Row(ApiKey.SYNC_GROUP, 0, 5, 4, "groups"),
    _Row(ApiKey.DESCRIBE_GROUPS, 0, 6, 5, "groups"),
    _Row(ApiKey.LIST_GROUPS, 0, 5, 3, "groups"),
    _Row(ApiKey.SASL_HANDSHAKE, 0, 1, NEVER),
    _Row(ApiKey.API_VERSIONS, 0, 4, 3, "api_versions"),
    _Row(ApiKey.CREATE_TOPICS, 2, 7, 5, "topics"),
    _Row(ApiKey.DELETE_TOPICS, 1, 6, 4, "topics"),
    _Row(ApiKey.DELETE_RECORDS, 0, 2, 2, "offsets"),
    _Row(ApiKey.INIT_PRODUCER_ID, 0, 5, 2, "transactions"),
    _Row(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4, "offsets"),
    _Row(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3, "transactions"),
    _Row(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, "transactions"),
    _Row(ApiKey.END_TXN, 0, 5, 3, "transactions"),
    _Row(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1, "transactions"),
    _Row(ApiKey.TXN_OFFSET_COMMIT, 0, 5, 3, "transactions"),
    _Row(ApiKey.DESCRIBE_ACLS, 1, 3, 2),
    _Row(ApiKey.CREATE_ACLS, 1, 3, 2),
    _Row(ApiKey.DELETE_ACLS, 1, 3, 2),
    _Row(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4, "configs"),
    _Row(ApiKey.ALTER_CONFIGS, 0, 2, 2, "configs"),
    _Row(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, 2, "replicas"),
    _Row(ApiKey.DESCRIBE_LOG_DIRS, 1, 4, 2, "replicas"),
    _Row(ApiKey.SASL_AUTHENTICATE, 0, 2, 2),
    _Row(ApiKey.CREATE_PARTITIONS, 0, 3, 2, "topics"),
    _Row(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, 2),
    _Row(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, 2),
    _Row(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, 2),
    _Row(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, 2),
    _Row(ApiKey.DELETE_GROUPS, 0, 2, 2, "groups"),
    _Row(ApiKey.ELECT_LEADERS, 0, 2, 2, "elections"),
    _Row(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1, "configs"),
    _Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0, "reassignments"),
    _Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0, "reassignments"),
    _Row(ApiKey.OFFSET_DELETE, 0, 0, NEVER, "group_offsets"),
    _Row(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1),
    _Row(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1),
    _Row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0),
    _Row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0),
    _Row(ApiKey.DESCRIBE_QUORUM, 0, 2, 0, "quorum"),
    _Row(ApiKey.UPDATE_FEATURES, 0, 2, 0, "features"),
    _Row(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0, "metadata"),
    _Row(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0, "transactions"),
    _Row(ApiKey.UNREGISTER_BROKER, 0, 0, 0, "unregistration"),
    _Row(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0, "transactions"),
    _Row(ApiKey.LIST_TRANSACTIONS, 0, 2, 0, "transactions"),
    _Row(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0, "consumer_groups"),
    _Row(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0, "consumer_groups"),
    _Row(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, 0, "telemetry"),
    _Row(ApiKey.PUSH_TELEMETRY, 0, 0, 0, "telemetry"),
    _Row(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0, "configs"),
    _Row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0, "metadata"),
    _Row(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 0),
    _Row(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, 0),
    _Row(ApiKey.SHARE_FETCH, 1, 2, 0),
    _Row(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, 0),
    _Row(ApiKey.ADD_RAFT_VOTER, 0, 1, 0),
    _Row(ApiKey.REMOVE_RAFT_VOTER, 0, 0, 0),
    _Row(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, 0),
    _Row(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, 0),
    _Row(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, 0),
    _Row(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, 0),
    _Row(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, 0),
    _Row(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0, 0),
    _Row(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0, 0),
    _Row(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, 0),
    _Row(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, 0),
    _Row(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, 0),
    _Row(ApiKey.EXPLAIN_RETENTION, 0, 0, 0, "retention"),
    _Row(ApiKey.DESCRIBE_BROKERS, 0, 0, 0, "brokers"),
)

APIS: Final[dict[ApiKey, ApiSpec]] = {row.key: ApiSpec(row) for row in _ROWS if row.module}
"""The APIs whose messages are declared."""

FLEXIBLE_FROM: Final[dict[int, int]] = {int(row.key): row.flexible_from for row in _ROWS}
"""For every API of a broker, by number: its first flexible version, or NEVER."""

VERSIONS: Final[dict[int, tuple[str, int, int]]] = {
    int(row.key): (row.key.api_name, row.min_version, row.max_version)
    for row in _ROWS
    if not row.key.is_own
}
"""For every API of Kafka 4.2's brokers, by number: its name, and its versions."""

_KEYS: Final[dict[str, ApiKey]] = {key.api_name: key for key in ApiKey}


def key_of(request: object) -> ApiKey:
    """Which API a request is of: LIST_OFFSETS for a ListOffsetsRequest."""
    return _KEYS[type(request).__name__.removesuffix("Request")]
