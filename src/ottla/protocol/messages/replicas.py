"""Where replicas lie on disk: AlterReplicaLogDirs (34) and DescribeLogDirs (35)."""

from __future__ import annotations

from ottla.protocol.schema import array, boolean, int16, int32, int64, message, string, struct


@struct
class AlterReplicaLogDirTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[int] = array(int32)


@struct
class AlterReplicaLogDir:
    """A directory, and what is to be moved there."""

    path: str = string()
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)


@message(api_key=34, kind="request", versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """Asks a broker to move replicas between its log directories. 2 flexible."""

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


@struct
class AlterReplicaLogDirPartitionResult:
    """One replica: whether its move has begun."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class AlterReplicaLogDirTopicResult:
    """Replicas of one topic."""

    topic_name: str = string()
    partitions: list[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult)


@message(api_key=34, kind="response", versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """What was begun. 2 flexible."""

    throttle_time_ms: int = int32(default=0)
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)


@struct
class DescribableLogDirTopic:
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32)


@message(api_key=35, kind="request", versions="1-4", flexible="2+")
class DescribeLogDirsRequest:
    """Asks what the log directories hold; null for everything. 2 flexible."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable="0+")


@struct
class DescribeLogDirsPartition:
    """One replica: its size, how far it lags, whether it is being moved here."""

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


@struct
class DescribeLogDirsTopic:
    """Replicas of one topic."""

    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@struct
class DescribeLogDirsResult:
    """One directory; -1 bytes when unknown."""

    error_code: int = int16(default=0)
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(versions="4+", ignorable=True, default=-1)
    usable_bytes: int = int64(versions="4+", ignorable=True, default=-1)


@message(api_key=35, kind="response", versions="1-4", flexible="2+")
class DescribeLogDirsResponse:
    """The directories. 2 flexible, 3 error of the whole, 4 volume sizes."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(versions="3+", ignorable=True, default=0)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
