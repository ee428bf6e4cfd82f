"""Readers: each reads one partition from its beginning, with positions of its own.

`PartitionReader` is what any of them is: it asks the leader, again and again, and takes an offset
that is not there any more for the end of it. `Reader` records what it is given of plain topics.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ottla.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.records.errors import InvalidBatch
from ottla.verify.clients.connections import Connections, NoAnswer, NotSent, Pause
from ottla.verify.history import Recorder
from ottla.verify.values import ForeignRecord, read_batches

WAIT_MS = 200
UNCOMMITTED = 0
_LATEST = -1


class PartitionReader(ABC):
    """One consumer of one partition; `await run(stopping)`, or `await read_to(end)`."""

    MOST_BYTES: ClassVar[int]

    def __init__(
        self,
        name: str,
        partition: int,
        connections: Connections,
        recorder: Recorder,
        *,
        isolation: int = UNCOMMITTED,
        wait_ms: int = WAIT_MS,
    ) -> None:
        self.name = name
        self.partition = partition
        self.position = 0
        self.broken = False
        self._connections = connections
        self._recorder = recorder
        self._isolation = isolation
        self._wait_ms = wait_ms
        self._pause = Pause()

    def come_to(self, _partition: int) -> int:
        """The offset that it wants next."""
        return self.position

    @abstractmethod
    async def answered(self) -> bool:
        """One fetch; whether it was answered."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Read until told to stop."""
        while not stopping.is_set() and not self.broken:
            if not await self.answered():
                await self._pause.wait()

    async def read_to(self, end: int, seconds: float) -> None:
        """Read everything below an offset. TimeoutError when nothing comes for so long."""
        now = asyncio.get_running_loop().time
        async with asyncio.timeout(seconds) as limit:
            while self.position < end and not self.broken:
                before = self.position
                if not await self.answered():
                    await self._pause.wait()
                if self.position > before:
                    limit.reschedule(now() + seconds)

    async def _fetch(self) -> tuple[Any, int]:
        """What the leader says of the partition, and under which epoch; None for what passes."""
        told, epoch = None, -1
        try:
            leader, epoch = await self._connections.leader(self.partition)
            answer = await self._connections.ask(leader, self._request(epoch))
            if not answer.error_code and answer.responses:
                told = answer.responses[0].partitions[0]
        except (NotSent, NoAnswer):
            pass
        if told is None or told.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            self._connections.forget_leader(self.partition)
            return None, epoch
        if told.error_code:
            self.broken = True
        else:
            self._pause.reset()
        return told, epoch

    def _note_damage(self, error: Exception) -> None:
        """What has come are no records of the run: nothing can be read from here on."""
        self.broken = True
        text = (
            f"{self.name} reads {self._connections.topic}-{self.partition} from "
            f"{self.position} on, and {error}"
        )
        self._recorder.record(self.name, "damaged", "ok", text=text)

    def _request(self, epoch: int) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=self._wait_ms,
            min_bytes=1,
            max_bytes=self.MOST_BYTES,
            isolation_level=self._isolation,
            topics=[
                FetchTopic(
                    topic=self._connections.topic,
                    topic_id=self._connections.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=self.partition,
                            current_leader_epoch=epoch,
                            fetch_offset=self.position,
                            partition_max_bytes=self.MOST_BYTES,
                        )
                    ],
                )
            ],
        )


class Reader(PartitionReader):
    """A consumer of a plain topic."""

    MOST_BYTES = 1 << 20

    async def answered(self) -> bool:
        begun = self._recorder.now()
        told, epoch = await self._fetch()
        if told is None:
            return False
        if told.error_code:
            self._recorder.record(
                self.name, "read", "fail",
                p=self.partition, begun=begun, epoch=epoch,
                error=ErrorCode.of(told.error_code).name, **{"from": self.position},
            )  # fmt: skip
            return False
        if told.records is not None and len(told.records):
            try:
                content = read_batches(memoryview(told.records), self.position)
            except (ForeignRecord, InvalidBatch) as error:
                self._note_damage(error)
                return False
            if content.next_offset > self.position:
                self._recorder.record(
                    self.name, "read", "ok",
                    p=self.partition, begun=begun, epoch=epoch, mark=told.high_watermark,
                    runs=content.runs, epochs=content.epochs, **{"from": self.position},
                )  # fmt: skip
                self.position = content.next_offset
        return True


async def ask_end(
    name: str, partition: int, connections: Connections, recorder: Recorder
) -> int | None:
    """How far a partition can be read, by its leader; None when that is not to be had."""
    begun = recorder.now()
    found = await ask_latest(partition, connections)
    if found is None:
        return None
    mark, epoch = found
    recorder.record(name, "mark", "ok", p=partition, begun=begun, epoch=epoch, mark=mark)
    return mark


async def ask_latest(
    partition: int, connections: Connections, isolation: int = UNCOMMITTED
) -> tuple[int, int] | None:
    """The end of a partition, and under which epoch its leader has told it."""
    try:
        leader, epoch = await connections.leader(partition)
        asked = ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=epoch, timestamp=_LATEST
        )
        answer = await connections.ask(
            leader,
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[ListOffsetsTopic(name=connections.topic, partitions=[asked])],
            ),
        )
    except (NotSent, NoAnswer):
        connections.forget_leader(partition)
        return None
    told = answer.topics[0].partitions[0]
    if told.error_code:
        connections.forget_leader(partition)
        return None
    return int(told.offset), epoch
