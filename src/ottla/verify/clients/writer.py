"""Writers: each sends one batch after the other with acks=all, under an identity of its own.

An idempotent writer sends a batch again until it is answered, with the same sequence numbers; when
it has to give up it takes a new producer id, as nobody knows what became of the old one's last
batch. Any other writer sends a batch once. So a value may be stored once in both cases.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from ottla.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.messages.transactions import InitProducerIdRequest
from ottla.verify.clients.connections import Connections, NoAnswer, NotSent, Pause
from ottla.verify.history import Phase, Recorder
from ottla.verify.values import write_batch

GIVE_UP_SECONDS = 60.0

# The batch was refused before it was appended. Every other error may come after that.
_REFUSED = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.MESSAGE_TOO_LARGE,
    }
)
_STORED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
# What ends a producer id: whoever goes on needs a new one.
_FATAL = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


@dataclass(slots=True)
class Progress:
    """What the writers of a run have done; they share it."""

    busy: int = 0
    """How many requests are to be in flight when something breaks."""
    in_flight: int = 0
    pressing: int = 0
    """While it is not 0 nobody pauses: so many wait for many requests to be in flight."""
    acknowledged: int = 0
    places: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Of these, by topic and partition; every one that is written to is there from the start."""
    unknown: int = 0
    refused: int = 0
    last_acknowledged: float = 0.0
    longest_pause: float = 0.0

    def expect(self, topic: str, partitions: int) -> None:
        """Each of these partitions is written to all the time."""
        self.places.update({(topic, number): 0 for number in range(partitions)})

    def note_acknowledged(self, count: int, topic: str, partition: int) -> None:
        now = time.monotonic()
        if self.last_acknowledged:
            self.longest_pause = max(self.longest_pause, now - self.last_acknowledged)
        self.last_acknowledged = now
        self.acknowledged += count
        self.places[topic, partition] += count


@dataclass(frozen=True, slots=True)
class Load:
    """What writers write."""

    records: int = 20  # at most, in one batch
    size: int = 100  # bytes of a value
    pause: float = 0.0  # seconds between two batches of a writer


class Writer:
    """One of them; `await run(stopping)`."""

    def __init__(
        self,
        number: int,
        connections: Connections,
        recorder: Recorder,
        progress: Progress,
        load: Load,
        *,
        idempotent: bool,
        seed: int,
    ) -> None:
        self.name = f"writer-{number}"
        self._number = number
        self._connections = connections
        self._recorder = recorder
        self._progress = progress
        self._load = load
        self._idempotent = idempotent
        self._random = random.Random(seed)
        self._sent = 0
        # for one producer id
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Write until told to stop; what was sent has ended then."""
        pause = Pause()
        while not stopping.is_set():
            if self._idempotent and self._identity is None:
                await self._identify(pause)
                continue
            partition = self._random.randrange(max(1, self._connections.partitions))
            if await self._send(partition, self._random.randint(1, self._load.records)):
                pause.reset()
                if self._load.pause and not self._progress.pressing:
                    await asyncio.sleep(self._load.pause * self._random.uniform(0.5, 1.5))
            else:
                await pause.wait()

    async def _identify(self, pause: Pause) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        try:
            answer = await self._connections.ask_any(request)
        except NotSent:
            await pause.wait()
            return
        if answer.error_code:
            await pause.wait()
            return
        self._identity = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    async def _send(self, partition: int, count: int) -> bool:
        """Send one batch; whether it was acknowledged."""
        first, self._sent = self._sent, self._sent + count
        producer_id, producer_epoch = self._identity or (-1, -1)
        sequence = self._sequences.get(partition, 0) if self._idempotent else -1
        batch = write_batch(
            self._number, first, count, now_ms=int(time.time() * 1000), size=self._load.size,
            producer_id=producer_id, producer_epoch=producer_epoch, sequence=sequence,
        )  # fmt: skip
        self._recorder.record(
            self.name, "send", "invoke", p=partition, writer=self._number, first=first, count=count
        )
        self._progress.in_flight += 1
        phase, told = await self._deliver(partition, batch)
        self._progress.in_flight -= 1
        self._recorder.record(self.name, "send", phase, **told)
        if phase == "ok":
            self._sequences[partition] = sequence + count
            self._progress.note_acknowledged(count, self._connections.topic, partition)
            return True
        if phase == "unknown":
            self._progress.unknown += count
            self._identity = None
        else:
            self._progress.refused += count
        return False

    async def _deliver(self, partition: int, batch: bytes) -> tuple[Phase, dict[str, object]]:
        """Send a batch, an idempotent one again and again; how that ended."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        pause = Pause()
        perhaps = False  # whether an attempt may have been stored
        while True:
            phase, told = await self._attempt(partition, batch)
            if phase == "ok":
                return phase, told
            perhaps = perhaps or phase == "unknown"
            self._connections.forget_leader(partition)
            if (
                not self._idempotent
                or time.monotonic() > deadline
                or told.get("error") in {code.name for code in _FATAL}
            ):
                return ("unknown" if perhaps else "fail"), told
            await pause.wait()

    async def _attempt(self, partition: int, batch: bytes) -> tuple[Phase, dict[str, object]]:
        connections = self._connections
        try:
            leader, _ = await connections.leader(partition)
            request = ProduceRequest(
                acks=-1,
                timeout_ms=2_000,
                topic_data=[
                    TopicProduceData(
                        name=connections.topic,
                        topic_id=connections.topic_id,
                        partition_data=[
                            PartitionProduceData(index=partition, records=memoryview(batch))
                        ],
                    )
                ],
            )
            answer = await connections.ask(leader, request)
        except NotSent as error:
            return "fail", {"error": str(error)}
        except NoAnswer as error:
            return "unknown", {"error": str(error)}
        told = answer.responses[0].partition_responses[0]
        code = ErrorCode.of(told.error_code)
        if code in _STORED:
            return "ok", {"offset": told.base_offset if code is ErrorCode.NONE else -1}
        return ("fail" if code in _REFUSED else "unknown"), {"error": code.name}
