"""Connections: one client's way to the brokers, on the event loop, without retries of its own.

librdkafka tries again by itself and tells only the outcome. Here every request is one request: who
sends it knows whether it has left, and to which leader under which epoch.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from ottla.client.peer import Peer
from ottla.errors import ErrorCode, KafkaError
from ottla.net.channel import ChannelClosed
from ottla.protocol.messages.groups import FindCoordinatorRequest
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

T = TypeVar("T")

CONNECT_SECONDS = 2.0
ASK_SECONDS = 3.0
SHORTEST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
_ONE_KEY = 3
"""The last version of FindCoordinator that asks for one group."""
_OF_GROUP, _OF_TRANSACTION = 0, 1

Address = tuple[str, int]


class NotSent(Exception):
    """The request has certainly not left: nobody can have seen it."""


class NoAnswer(Exception):
    """The request has left, and what became of it is not known."""


class Pause:
    """A pause that grows while things do not work."""

    def __init__(self, longest: float = LONGEST_PAUSE) -> None:
        self._next = SHORTEST_PAUSE
        self._longest = longest

    async def wait(self) -> None:
        await asyncio.sleep(self._next * random.uniform(0.5, 1.0))
        self._next = min(2 * self._next, self._longest)

    def reset(self) -> None:
        self._next = SHORTEST_PAUSE


class Connections:
    """Brokers, and who leads the partitions of one topic, as far as this client knows."""

    def __init__(
        self, bootstrap: Sequence[Address], topic: str, client_id: str, *, ask: float = ASK_SECONDS
    ) -> None:
        self.topic = topic
        self.topic_id = bytes(16)
        self.partitions = 0
        self.metadata: MetadataResponse | None = None
        self._client_id = client_id
        self._ask_seconds = ask
        self._bootstrap = list(bootstrap)
        self._brokers: dict[int, Address] = {}
        self._peers: dict[Address, Peer] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._epochs: dict[int, int] = {}
        """The newest that was seen. A broker that was deposed may tell of an older one."""
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._looking = asyncio.Lock()

    # ------------------------------------------------------------------ whom to ask

    async def leader(self, partition: int) -> tuple[Peer, int]:
        """Who leads, and under which epoch. Raises NotSent while nobody is known to."""
        found = self._leaders.get(partition)
        if found is None:
            await self.look()
            found = self._leaders.get(partition)
        if found is None or found[0] not in self._brokers:
            self._leaders.pop(partition, None)
            raise NotSent(f"partition {partition} has no leader")
        return self._peer(self._brokers[found[0]]), found[1]

    def forget_leader(self, partition: int) -> None:
        """Look again before the next request."""
        self._leaders.pop(partition, None)

    async def coordinator(self, group: str) -> Peer:
        """Who coordinates a group. Raises NotSent while nobody does."""
        return await self._coordinator(_OF_GROUP, group)

    async def transaction_coordinator(self, transactional_id: str) -> Peer:
        """Who coordinates the transactions of an id. Raises NotSent while nobody does."""
        return await self._coordinator(_OF_TRANSACTION, transactional_id)

    async def _coordinator(self, kind: int, key: str) -> Peer:
        if (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(key=key, key_type=kind)
            found = await self.ask_any(request, version=_ONE_KEY)
            if found.error_code:
                raise NotSent(f"{key}: {ErrorCode.of(found.error_code).text}")
            self._coordinators[kind, key] = (found.host, found.port)
        return self._peer(self._coordinators[kind, key])

    def forget_coordinator(self, key: str) -> None:
        """Look again before the next request, for a group or a transactional id."""
        for kind in (_OF_GROUP, _OF_TRANSACTION):
            self._coordinators.pop((kind, key), None)

    def controller(self) -> Peer:
        """The controller, by the last metadata. Raises NotSent while there is none."""
        number = -1 if self.metadata is None else self.metadata.controller_id
        if number not in self._brokers:
            raise NotSent("there is no controller")
        return self._peer(self._brokers[number])

    def broker(self, address: Address) -> Peer:
        """One broker by its address."""
        return self._peer(address)

    # ------------------------------------------------------------------ asking

    async def ask(
        self, peer: Peer, request: Any, *, seconds: float | None = None, version: int | None = None
    ) -> Any:
        """The answer of one broker. Raises NotSent or NoAnswer."""
        try:
            await peer.connect()
        except (ChannelClosed, KafkaError) as error:
            raise NotSent(str(error)) from None
        try:
            return await peer.ask(request, timeout=seconds or self._ask_seconds, version=version)
        except ChannelClosed as error:
            raise NoAnswer(str(error)) from None
        except KafkaError as error:
            peer.close()  # whoever answers late answers nobody
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise NotSent(str(error)) from None
            raise NoAnswer(str(error)) from None

    async def ask_any(self, request: Any, *, version: int | None = None) -> Any:
        """The answer of the first broker that gives one. Raises NotSent: nobody does."""
        addresses = list({*self._bootstrap, *self._brokers.values()})
        random.shuffle(addresses)
        reason = "no broker is known"
        for address in addresses:
            try:
                return await self.ask(self._peer(address), request, version=version)
            except (NotSent, NoAnswer) as error:
                reason = str(error)
        raise NotSent(reason)

    async def look(self) -> None:
        """Ask who leads what. Raises NotSent when nobody answers."""
        before = self.metadata
        async with self._looking:
            if self.metadata is not before:
                return  # somebody else has asked meanwhile
            topics = [MetadataRequestTopic(name=self.topic)] if self.topic else []
            answer = await self.ask_any(
                MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            )
            self.learn(answer)

    def learn(self, answer: MetadataResponse) -> None:
        """Take over what a broker says, unless it is older than what is known."""
        self.metadata = answer
        if answer.brokers:
            self._brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        for topic in answer.topics:
            if topic.name != self.topic or topic.error_code:
                continue
            self.topic_id = topic.topic_id
            self.partitions = max(self.partitions, len(topic.partitions))
            for each in topic.partitions:
                number, epoch = each.partition_index, each.leader_epoch
                if each.leader_id >= 0 and epoch >= self._epochs.get(number, -1):
                    self._leaders[number] = each.leader_id, epoch
                    self._epochs[number] = epoch

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def _peer(self, address: Address) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(
                *address, client_id=self._client_id, connect_timeout=CONNECT_SECONDS
            )
        return peer


async def give_up_after(seconds: float, what: Awaitable[T]) -> T:
    """TimeoutError when something takes longer."""
    async with asyncio.timeout(seconds):
        return await what
