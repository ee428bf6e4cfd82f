"""AlterReplicaLogDirs: a long request is no reason for others to wait, nor for a long log."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.dispatch.context import Request, Services
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.log_dirs import alter_replica_log_dirs
from ottla.protocol.messages.replicas import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)

MANY = 10_000


def absent(topic: str, index: int) -> None:
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_very_many_that_are_refused_let_others_have_their_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A hundred thousand held up the broker for nine seconds, and were as many lines in the log."""
    logs = SimpleNamespace(
        folders=("/d",), offline_folders={}, prefer=lambda partition, folder: None
    )
    replicas = SimpleNamespace(offline=lambda *_: None, replica_by_name=absent)
    services = cast("Services", SimpleNamespace(logs=logs, replicas=replicas))
    topic = AlterReplicaLogDirTopic(name="t", partitions=list(range(MANY)))
    body = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/d", topics=[topic])])
    request: Request[Any] = Request(2, None, cast("Any", None), body)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING, "ottla"):
        meanwhile = asyncio.ensure_future(other())
        answer = await alter_replica_log_dirs(request, services)
        meanwhile.cancel()
    [result] = answer.results
    assert {part.error_code for part in result.partitions} == {3}
    assert len(result.partitions) == MANY
    assert turns > 100
    [line] = caplog.messages
    assert line.startswith("t-0 is not moved to /d: UNKNOWN_TOPIC_OR_PARTITION, t-1 is not")
    assert line.endswith("and 9995 more")
