"""Readers: each reads one partition from its beginning, with positions of its own."""

from __future__ import annotations

import asyncio

from ottla.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.verify.clients.connections import Connections, NoAnswer, NotSent, Pause
from ottla.verify.history import Recorder
from ottla.verify.values import read_batches

WAIT_MS = 200
MOST_BYTES = 1 << 20
_LATEST = -1


class Reader:
    """One consumer of one partition; `await run(stopping)`, or `await read_to(end)`."""

    def __init__(
        self, name: str, partition: int, connections: Connections, recorder: Recorder
    ) -> None:
        self.name = name
        self.position = 0
        self.broken = False
        self._partition = partition
        self._connections = connections
        self._recorder = recorder
        self._pause = Pause()

    async def run(self, stopping: asyncio.Event) -> None:
        """Read until told to stop."""
        while not stopping.is_set() and not self.broken:
            if not await self.read():
                await self._pause.wait()

    async def read_to(self, end: int) -> None:
        """Read everything below an offset, however long that takes."""
        while self.position < end and not self.broken:
            if not await self.read():
                await self._pause.wait()

    async def read(self) -> bool:
        """One fetch; whether it was answered."""
        begun = self._recorder.now()
        try:
            leader, epoch = await self._connections.leader(self._partition)
            answer = await self._connections.ask(leader, self._request(epoch))
        except (NotSent, NoAnswer):
            self._connections.forget_leader(self._partition)
            return False
        if answer.error_code or not answer.responses:
            self._connections.forget_leader(self._partition)
            return False
        told = answer.responses[0].partitions[0]
        code = ErrorCode.of(told.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.broken = True
            self._recorder.record(
                self.name, "read", "fail",
                p=self._partition, begun=begun, epoch=epoch, error=code.name,
                **{"from": self.position},
            )  # fmt: skip
            return False
        if code is not ErrorCode.NONE:
            self._connections.forget_leader(self._partition)
            return False
        self._pause.reset()
        if told.records is not None and len(told.records):
            content = read_batches(memoryview(told.records), self.position)
            if content.next_offset > self.position:
                self._recorder.record(
                    self.name, "read", "ok",
                    p=self._partition, begun=begun, epoch=epoch, mark=told.high_watermark,
                    runs=content.runs, epochs=content.epochs, **{"from": self.position},
                )  # fmt: skip
                self.position = content.next_offset
        return True

    def _request(self, epoch: int) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=MOST_BYTES,
            topics=[
                FetchTopic(
                    topic=self._connections.topic,
                    topic_id=self._connections.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=self._partition,
                            current_leader_epoch=epoch,
                            fetch_offset=self.position,
                            partition_max_bytes=MOST_BYTES,
                        )
                    ],
                )
            ],
        )


async def ask_end(
    name: str, partition: int, connections: Connections, recorder: Recorder
) -> int | None:
    """How far a partition can be read, by its leader; None when that is not to be had."""
    begun = recorder.now()
    try:
        leader, epoch = await connections.leader(partition)
        answer = await connections.ask(
            leader,
            ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(
                        name=connections.topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=partition,
                                current_leader_epoch=epoch,
                                timestamp=_LATEST,
                            )
                        ],
                    )
                ],
            ),
        )
    except (NotSent, NoAnswer):
        connections.forget_leader(partition)
        return None
    told = answer.topics[0].partitions[0]
    if told.error_code:
        connections.forget_leader(partition)
        return None
    recorder.record(name, "mark", "ok", p=partition, begun=begun, epoch=epoch, mark=told.offset)
    return int(told.offset)
