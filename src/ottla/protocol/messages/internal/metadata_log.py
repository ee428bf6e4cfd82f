"""The records of Kafka's own metadata log (KRaft), as far as an import needs to know them.

A record's value is a frame: the frame's version, the type's number (`api_key` here) and the
record's version as unsigned varints, then one of these messages. Tagged fields that no import asks
for are not declared: a decoder skips them.
"""

from __future__ import annotations

from ottla.protocol.schema import (
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uint16,
    uuid,
)


@struct
class BrokerEndpoint:
    """A listener."""

    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


@struct
class BrokerFeature:
    """The levels of a feature that a broker knows."""

    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


@message(api_key=0, kind="data", versions="0-3", flexible="0+")
class RegisterBrokerRecord:
    """A broker has come."""

    broker_id: int = int32()
    is_migrating_zk_broker: bool = boolean(versions="2+", default=False)
    incarnation_id: bytes = uuid()
    broker_epoch: int = int64()
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint)
    features: list[BrokerFeature] = array(BrokerFeature)
    rack: str | None = string(nullable="0+")
    fenced: bool = boolean(default=True)
    in_controlled_shutdown: bool = boolean(versions="1+", default=False)


@message(api_key=1, kind="data", versions="0", flexible="0+")
class UnregisterBrokerRecord:
    """A broker has left for good."""

    broker_id: int = int32()
    broker_epoch: int = int64()


@message(api_key=2, kind="data", versions="0", flexible="0+")
class TopicRecord:
    """A new topic."""

    name: str = string()
    topic_id: bytes = uuid()


@message(api_key=3, kind="data", versions="0-2", flexible="0+")
class PartitionRecord:
    """The whole state of a partition: a new one, or one in a snapshot."""

    partition_id: int = int32()
    topic_id: bytes = uuid()
    replicas: list[int] = array(int32)
    isr: list[int] = array(int32)
    removing_replicas: list[int] | None = array(int32, nullable="0+")
    adding_replicas: list[int] | None = array(int32, nullable="0+")
    leader: int = int32()
    leader_epoch: int = int32()
    partition_epoch: int = int32()
    directories: list[bytes] = array(uuid, versions="1+", factory=list)


@message(api_key=4, kind="data", versions="0", flexible="0+")
class ConfigRecord:
    """One setting; a value of None removes it."""

    resource_type: int = int8()
    resource_name: str = string()
    name: str = string()
    value: str | None = string(nullable="0+")


@message(api_key=5, kind="data", versions="0-2", flexible="0+")
class PartitionChangeRecord:
    """A step of a partition. A leader of -2 is the one before, -1 is none."""

    partition_id: int = int32()
    topic_id: bytes = uuid()
    leader: int = int32(tag=1, default=-2)
    replicas: list[int] | None = array(int32, tag=2, nullable="0+", default=None)


@message(api_key=9, kind="data", versions="0", flexible="0+")
class RemoveTopicRecord:
    """A topic is gone."""

    topic_id: bytes = uuid()


@message(api_key=10, kind="data", versions="0", flexible="0+")
class DelegationTokenRecord:
    """A delegation token."""

    owner: str = string()
    requester: str = string()
    renewers: list[str] = array(string)
    issue_timestamp: int = int64()
    max_timestamp: int = int64()
    expiration_timestamp: int = int64()
    token_id: str = string()


@message(api_key=11, kind="data", versions="0", flexible="0+")
class UserScramCredentialRecord:
    """What a user authenticates with."""

    name: str = string()
    mechanism: int = int8()
    salt: bytes = binary()
    stored_key: bytes = binary()
    server_key: bytes = binary()
    iterations: int = int32()


@message(api_key=12, kind="data", versions="0", flexible="0+")
class FeatureLevelRecord:
    """The level at which the cluster uses a feature."""

    name: str = string()
    feature_level: int = int16()


@struct
class QuotaEntity:
    """A user, client id or address; a name of None is the default."""

    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


@message(api_key=14, kind="data", versions="0", flexible="0+")
class ClientQuotaRecord:
    """One quota of one entity."""

    entity: list[QuotaEntity] = array(QuotaEntity)
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@message(api_key=15, kind="data", versions="0", flexible="0+")
class ProducerIdsRecord:
    """A broker took a block of producer ids."""

    broker_id: int = int32()
    broker_epoch: int = int64()
    next_producer_id: int = int64()


@message(api_key=18, kind="data", versions="0", flexible="0+")
class AccessControlEntryRecord:
    """An ACL."""

    id: bytes = uuid()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8()
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@message(api_key=19, kind="data", versions="0", flexible="0+")
class RemoveAccessControlEntryRecord:
    """An ACL is gone."""

    id: bytes = uuid()


@message(api_key=22, kind="data", versions="0", flexible="0+")
class RemoveUserScramCredentialRecord:
    """What a user authenticated with is gone."""

    name: str = string()
    mechanism: int = int8()


@message(api_key=23, kind="data", versions="0", flexible="0+")
class BeginTransactionRecord:
    """The records up to the end count together."""


@message(api_key=24, kind="data", versions="0", flexible="0+")
class EndTransactionRecord:
    """Those since the beginning count."""


@message(api_key=25, kind="data", versions="0", flexible="0+")
class AbortTransactionRecord:
    """Those since the beginning do not count."""


@message(api_key=26, kind="data", versions="0", flexible="0+")
class RemoveDelegationTokenRecord:
    """A delegation token is gone."""

    token_id: str = string()
