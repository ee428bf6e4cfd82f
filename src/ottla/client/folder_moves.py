"""Moving replicas between the data folders of a broker (KIP-113): what is asked of it, for tools.

with DirectAdmin("127.0.0.1:9092") as admin:
    failed = begin_moves(admin, {Replica(1, TopicPartition("t", 0)): "/data/b"})
    while any(each.future for each in places(admin, [1]).values()):
        ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.direct import BROKER, SET, DirectAdmin
from ottla.client.reassignments import FOLDER_RATE
from ottla.client.router import error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import Replica, TopicPartition
from ottla.protocol.messages.replicas import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)

_AT_ONCE = 50  # replicas in a request


class Place(NamedTuple):
    """Where a replica is, where it goes if it does, and the bytes of both. `folder` is None if only
    a copy of it is there."""

    folder: str | None
    size: int
    future: str | None = None
    copied: int = 0


def places(admin: DirectAdmin, brokers: Iterable[int]) -> dict[Replica, Place]:
    """Where the replicas of these brokers are, as far as they can be used."""
    found: dict[Replica, Place] = {}
    for broker in brokers:
        for folder in admin.log_dirs(broker):
            for each in folder.replicas:
                replica = Replica(broker, TopicPartition(each.topic, each.partition))
                known = found.get(replica, Place(None, 0))
                if each.future:
                    found[replica] = known._replace(future=folder.path, copied=each.size)
                else:
                    found[replica] = known._replace(folder=folder.path, size=each.size)
    return found


def begin_moves(
    admin: DirectAdmin, wanted: Mapping[Replica, str]
) -> dict[Replica, KafkaError | None]:
    """Have each replica moved to a folder of its broker, or, naming the one it is in, left there.
    What each was answered; None: it has begun.

    To begin takes some fsyncs for each, so brokers are asked for a few at a time: thousands would
    not be answered as long as anybody waits.
    """
    by_broker: defaultdict[int, list[tuple[TopicPartition, str]]] = defaultdict(list)
    for replica, path in wanted.items():
        by_broker[replica.broker].append((replica.partition, path))
    answers: dict[Replica, KafkaError | None] = {}
    for broker, mine in sorted(by_broker.items()):
        for first in range(0, len(mine), _AT_ONCE):
            folders = _by_folder(dict(mine[first : first + _AT_ONCE]))
            answer = admin.router.node(broker).ask(AlterReplicaLogDirsRequest(dirs=folders))
            for topic in answer.results:
                for part in topic.partitions:
                    tp = TopicPartition(topic.topic_name, part.partition_index)
                    code = error_code(part.error_code)
                    error = None if code is ErrorCode.NONE else KafkaError(code)
                    answers[Replica(broker, tp)] = error
    return answers


def _by_folder(wanted: Mapping[TopicPartition, str]) -> list[AlterReplicaLogDir]:
    folders: dict[str, dict[str, list[int]]] = {}
    for tp, path in wanted.items():
        folders.setdefault(path, {}).setdefault(tp.topic, []).append(tp.partition)
    return [
        AlterReplicaLogDir(
            path=path,
            topics=[
                AlterReplicaLogDirTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )
        for path, topics in folders.items()
    ]


def limit_folder_moves(admin: DirectAdmin, brokers: Iterable[int], rate: int) -> None:
    """Let moves between folders take so many bytes a second at most, of each of these brokers."""
    for broker in sorted(set(brokers)):
        admin.alter_configs(BROKER, str(broker), [(FOLDER_RATE, SET, str(rate))])
