"""Electing leaders on request: ElectLeaders (43)."""

from __future__ import annotations

from ottla.protocol.schema import array, int8, int16, int32, message, string, struct


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32)


@message(api_key=43, kind="request", versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """Asks for leaders; null for all partitions. 1 kinds of election, 2 flexible.

    `election_type` 0 is preferred, 1 unclean.
    """

    election_type: int = int8(versions="1+", default=0)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = int32(default=60000)


@struct
class PartitionResult:
    """What became of one partition's election."""

    partition_id: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


@struct
class ReplicaElectionResult:
    """The partitions of one topic."""

    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


@message(api_key=43, kind="response", versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """The outcome per partition. 1 error of the whole, 2 flexible."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(versions="1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
