"""The life of topics: CreateTopics (19), DeleteTopics (20), CreatePartitions (37)."""

from __future__ import annotations

from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, uuid


@struct
class CreatableReplicaAssignment:
    """The replicas of one partition, chosen by the client."""

    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


@struct
class CreatableTopicConfig:
    """One setting of a new topic."""

    name: str = string()
    value: str | None = string(nullable="0+")


@struct
class CreatableTopic:
    """A topic to create; from 4 on -1 partitions or replicas mean the broker's default."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


@message(api_key=19, kind="request", versions="2-7", flexible="5+")
class CreateTopicsRequest:
    """Asks to create topics. 4 defaults for counts, 5 flexible."""

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(default=False)


@struct
class CreatableTopicConfigs:
    """One setting as the created topic has it."""

    name: str = string()
    value: str | None = string(nullable="5+")
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


@struct
class CreatableTopicResult:
    """What became of one topic."""

    name: str = string()
    topic_id: bytes = uuid(versions="7+", ignorable=True, default=ZERO_UUID)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    topic_config_error_code: int = int16(versions="5+", tag=0, ignorable=True, default=0)
    num_partitions: int = int32(versions="5+", ignorable=True, default=-1)
    replication_factor: int = int16(versions="5+", ignorable=True, default=-1)
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, versions="5+", nullable="5+", ignorable=True, factory=list
    )


@message(api_key=19, kind="response", versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """The created topics. 5 flexible, with counts and settings; 7 topic ids."""

    throttle_time_ms: int = int32(default=0)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


@struct
class DeleteTopicState:
    """A topic to delete, by name or by id with a null name."""

    name: str | None = string(nullable="6+", default=None)
    topic_id: bytes = uuid()


@message(api_key=20, kind="request", versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    """Asks to delete topics. 4 flexible, 6 by name or id."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, versions="6+", factory=list)
    topic_names: list[str] = array(string, versions="0-5", ignorable=True, factory=list)
    timeout_ms: int = int32()


@struct
class DeletableTopicResult:
    """What became of one topic."""

    name: str | None = string(nullable="6+")
    topic_id: bytes = uuid(versions="6+", ignorable=True, default=ZERO_UUID)
    error_code: int = int16(default=0)
    error_message: str | None = string(versions="5+", nullable="5+", ignorable=True, default=None)


@message(api_key=20, kind="response", versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """The deleted topics. 4 flexible, 5 error message, 6 topic ids."""

    throttle_time_ms: int = int32(default=0)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


@struct
class CreatePartitionsAssignment:
    """The replicas of one new partition, chosen by the client."""

    broker_ids: list[int] = array(int32)


@struct
class CreatePartitionsTopic:
    """A topic and how many partitions it shall have."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable="0+"
    )


@message(api_key=37, kind="request", versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """Asks to grow topics. 2 flexible."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@struct
class CreatePartitionsTopicResult:
    """What became of one topic."""

    name: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


@message(api_key=37, kind="response", versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """The grown topics. 2 flexible."""

    throttle_time_ms: int = int32(default=0)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
