"""Readers of transactional topics: of committed records, or of everything."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from ottla.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.verify.clients.connections import Connections, NoAnswer, NotSent, Pause
from ottla.verify.history import Recorder
from ottla.verify.txn_values import Aborted, read_log
from ottla.verify.values import Run

WAIT_MS = 200
_MOST_BYTES = 1 << 18
_LATEST = -1

Level = Literal["all", "committed"]
_ISOLATION: dict[Level, int] = {"all": 0, "committed": 1}


class TxnReader:
    """One consumer of one partition: `run(stopping)`, `read_to(end)`, or one `read()`."""

    def __init__(
        self,
        name: str,
        partition: int,
        level: Level,
        connections: Connections,
        recorder: Recorder,
        *,
        keyed: bool = False,
        wait_ms: int = WAIT_MS,
    ) -> None:
        self.position = 0
        self.broken = False
        self._name = name
        self._partition = partition
        self._level: Level = level
        self._connections = connections
        self._recorder = recorder
        self._keyed = keyed
        self._wait_ms = wait_ms
        self._pause = Pause()

    async def run(self, stopping: asyncio.Event) -> None:
        """Read until told to stop."""
        while not stopping.is_set() and not self.broken:
            if await self.read() is None:
                await self._pause.wait()

    async def read_to(self, end: int) -> None:
        """Read everything below an offset, however long that takes."""
        while self.position < end and not self.broken:
            if await self.read() is None:
                await self._pause.wait()

    async def read(self, transaction: int | None = None) -> list[Run] | None:
        """One fetch, in a transaction of its client; what it has brought, None without answer."""
        begun = self._recorder.now()
        told, epoch = await self._fetch()
        if told is None:
            self._connections.forget_leader(self._partition)
            return None
        known: dict[str, object] = {
            "topic": self._connections.topic, "p": self._partition, "level": self._level,
            "begun": begun, "from": self.position, "epoch": epoch, "txn": transaction,
        }  # fmt: skip
        if told.error_code:
            self.broken = True
            error = ErrorCode.of(told.error_code).name
            self._recorder.record(self._name, "txn-read", "fail", error=error, **known)
            return None
        self._pause.reset()
        if not told.records:
            return []
        aborted = None
        if self._level == "committed":
            aborted = [
                Aborted(each.producer_id, each.first_offset)
                for each in told.aborted_transactions or ()
            ]
        content = read_log(memoryview(told.records), self.position, aborted, keyed=self._keyed)
        if content.next_offset > self.position:
            if self._level == "all":
                known["markers"] = content.markers
            self.position = content.next_offset
            self._recorder.record(
                self._name, "txn-read", "ok",
                next=self.position, stable=told.last_stable_offset, runs=content.runs, **known,
            )  # fmt: skip
        return content.runs

    async def _fetch(self) -> tuple[Any, int]:
        """What the leader says of the partition, and under which epoch; None for what passes."""
        try:
            leader, epoch = await self._connections.leader(self._partition)
            answer = await self._connections.ask(leader, self._request(epoch))
        except (NotSent, NoAnswer):
            return None, -1
        if answer.error_code or not answer.responses:
            return None, epoch
        told = answer.responses[0].partitions[0]
        passes = told.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
        return (None if passes else told), epoch

    def _request(self, epoch: int) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=self._wait_ms,
            min_bytes=1,
            max_bytes=_MOST_BYTES,
            isolation_level=_ISOLATION[self._level],
            topics=[
                FetchTopic(
                    topic=self._connections.topic,
                    topic_id=self._connections.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=self._partition,
                            current_leader_epoch=epoch,
                            fetch_offset=self.position,
                            partition_max_bytes=_MOST_BYTES,
                        )
                    ],
                )
            ],
        )


async def ask_mark(
    name: str, partition: int, level: Level, connections: Connections, recorder: Recorder
) -> int | None:
    """How far a partition can be read at a level; None when that is not to be had."""
    begun = recorder.now()
    request_partition = ListOffsetsPartition(partition_index=partition, timestamp=_LATEST)
    try:
        leader, epoch = await connections.leader(partition)
        request_partition.current_leader_epoch = epoch
        answer = await connections.ask(
            leader,
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=_ISOLATION[level],
                topics=[ListOffsetsTopic(name=connections.topic, partitions=[request_partition])],
            ),
        )
    except (NotSent, NoAnswer):
        connections.forget_leader(partition)
        return None
    told = answer.topics[0].partitions[0]
    if told.error_code:
        connections.forget_leader(partition)
        return None
    recorder.record(
        name, "txn-mark", "ok",
        topic=connections.topic, p=partition, level=level, begun=begun, epoch=epoch,
        mark=told.offset,
    )  # fmt: skip
    return int(told.offset)
