"""The creator: creates topics during the run, each under a name of its own."""

from __future__ import annotations

import asyncio

from ottla.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from ottla.verify.clients.connections import Address, Connections, NoAnswer, NotSent
from ottla.verify.history import Phase, Recorder

EVERY_SECONDS = 1.0
MOST_TOPICS = 300
_REFUSED = frozenset(
    {ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NOT_CONTROLLER, ErrorCode.POLICY_VIOLATION}
)


class Creator:
    """`await run(stopping)`; in the end `await look()` at each broker."""

    name = "creator"

    def __init__(
        self, prefix: str, replicas: int, connections: Connections, recorder: Recorder
    ) -> None:
        self.names: list[str] = []
        self._prefix = prefix
        self._replicas = replicas
        self._connections = connections
        self._recorder = recorder

    async def run(self, stopping: asyncio.Event) -> None:
        """Create a topic every so often."""
        while not stopping.is_set():
            if len(self.names) < MOST_TOPICS:
                await self._create(f"{self._prefix}-{len(self.names)}")
            await asyncio.sleep(EVERY_SECONDS)

    async def _create(self, topic: str) -> None:
        record = self._recorder.record
        self.names.append(topic)
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic, num_partitions=1, replication_factor=self._replicas,
                    assignments=[], configs=[],
                )
            ],
            timeout_ms=2_000,
        )  # fmt: skip
        record(self.name, "create", "invoke", topic=topic)
        try:
            await self._connections.look()
            peer = self._connections.controller()
            answer = await self._connections.ask(peer, request)
        except NotSent as error:
            record(self.name, "create", "fail", error=str(error))
            return
        except NoAnswer as error:
            record(self.name, "create", "unknown", error=str(error))
            return
        code = ErrorCode.of(answer.topics[0].error_code)
        if code is ErrorCode.NONE:
            record(self.name, "create", "ok")
        else:
            phase: Phase = "fail" if code in _REFUSED else "unknown"
            record(self.name, "create", phase, error=code.name)

    async def look(self, broker: int, address: Address) -> bool:
        """Say in the history which of these topics a broker knows; whether it has answered."""
        connections = self._connections
        try:
            answer = await connections.ask(
                connections.broker(address), MetadataRequest(topics=None), seconds=10.0
            )
        except (NotSent, NoAnswer):
            return False
        known = sorted(
            topic.name for topic in answer.topics if topic.name.startswith(f"{self._prefix}-")
        )
        self._recorder.record(self.name, "topics", "ok", broker=broker, topics=known)
        return True
