from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ottla.cli.cluster_moves import _sizes
from ottla.client.descriptions import LogDirDescription, ReplicaInfo
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin


class Brokers:
    """Broker 1 has something, broker 2 has just died."""

    def log_dirs(self, broker: int) -> list[LogDirDescription]:
        if broker == 2:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "Connection refused")
        return [LogDirDescription("/data", 0, (ReplicaInfo("t", 0, 5, 0, False),))]


def test_the_sizes_of_replicas_are_those_of_brokers_that_answer() -> None:
    admin = cast("DirectAdmin", Brokers())
    assert _sizes(admin, [2, 1]) == {(TopicPartition("t", 0), 1): 5}
