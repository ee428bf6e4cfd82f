"""The watcher: asks every broker who leads, and every leader how far its log is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.verify.clients.connections import Address, Connections, NoAnswer, NotSent
from ottla.verify.clients.reader import ask_end
from ottla.verify.history import Recorder

EVERY_SECONDS = 0.25


class Watcher:
    """`await run(stopping)`."""

    def __init__(
        self, brokers: Mapping[int, Address], connections: Connections, recorder: Recorder
    ) -> None:
        self._brokers = brokers
        self._connections = connections
        self._recorder = recorder

    async def run(self, stopping: asyncio.Event) -> None:
        """Look around until told to stop."""
        views = [self._view(broker, stopping) for broker in self._brokers]
        await asyncio.gather(*views, self._marks(stopping))

    async def _view(self, broker: int, stopping: asyncio.Event) -> None:
        connections = self._connections
        while not stopping.is_set():
            begun = self._recorder.now()
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=connections.topic)],
                allow_auto_topic_creation=False,
            )
            try:
                answer = await connections.ask(
                    connections.broker(self._brokers[broker]), request, seconds=1.0
                )
            except (NotSent, NoAnswer):
                await asyncio.sleep(EVERY_SECONDS)
                continue
            leaders = [
                (each.partition_index, each.leader_id, each.leader_epoch)
                for topic in answer.topics
                if not topic.error_code
                for each in topic.partitions
            ]
            self._recorder.record(
                f"watcher-{broker}", "view", "ok",
                broker=broker, begun=begun, controller=answer.controller_id, leaders=leaders,
            )  # fmt: skip
            await asyncio.sleep(EVERY_SECONDS)

    async def _marks(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            for partition in range(self._connections.partitions):
                await ask_end("watcher", partition, self._connections, self._recorder)
            await asyncio.sleep(EVERY_SECONDS)
