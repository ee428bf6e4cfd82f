"""Partitions on their way to other brokers, under load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ottla.client.direct import DirectAdmin
from ottla.client.reassignments import (
    begin,
    lift_broker_limits,
    lift_topic_limits,
    limit_copies,
    movements,
    ongoing,
)
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.verify.cluster import LOOK_SECONDS, REPLICAS, NotHealthy
from ottla.verify.faults.fault import Fault
from ottla.verify.patience import Patience

T = TypeVar("T")
Replicas = Mapping[TopicPartition, Sequence[int]]

_ASK_SECONDS = 5.0
_MOVED_SECONDS = 60.0
_RATES = 20_000, 2_000_000
"""Bytes a second, of a move that is throttled; writers may send more than the least of these."""
_SLOW_RATES = 5_000, 50_000
"""Of one that is to be cancelled or replaced on its way."""


class Reassign(Fault):
    """`reassign`: the same requests that an operator's tools send."""

    name = "reassign"
    about = (
        "Partitions are moved to other brokers, with or without a throttle; the move is completed, "
        "or cancelled or replaced by another one on its way."
    )
    seconds = (0.2, 4.0)
    brokers = 4

    async def start(self) -> str:
        chance = self.chance
        self._end = chance.choice(["completed", "completed", "cancelled", "replaced"])
        throttled = chance.random() < 0.5
        self._rate = chance.randint(*_RATES) if throttled else None
        if self._end != "completed":
            # A move that little slows down is over before it can be changed.
            self._rate = chance.randint(*_SLOW_RATES)
        self._moved: Replicas = {}
        await self._until_asked(self._begin, "no partition can be moved")
        moves = ", ".join(f"{partition} to {[*to]}" for partition, to in self._moved.items())
        speed = "at full speed" if self._rate is None else f"at {self._rate} bytes/s"
        return f"{moves}, {speed}, to be {self._end}"

    async def heal(self) -> None:
        """The end of the move: nothing is on its way any more, and nothing is throttled."""
        if self._end != "completed" and self._moved:
            await self._until_asked(self._change, "a reassignment cannot be changed")
        if self._rate is not None:
            await self._until_asked(self._lift, "the throttle cannot be lifted")
        patience = self._patience()
        while left := await self._until_asked(self._left, "nobody tells what is being moved"):
            if patience.over():
                raise NotHealthy(f"{', '.join(map(str, left))} are still being moved")
            await asyncio.sleep(LOOK_SECONDS)

    def happened(self) -> bool:
        return bool(self._moved)

    # ------------------------------------------------------------------ requests, in a thread

    def _begin(self, admin: DirectAdmin) -> None:
        held = {
            TopicPartition(topic.name, each.partition): each.replicas
            for topic in admin.describe_topics(self.cluster.topics)
            for each in topic.partitions
            if len(each.replicas) == REPLICAS  # nobody else moves it now
        }
        chosen = [each for each in held if self.chance.random() < 0.5]
        if not chosen:
            chosen = self.chance.sample(list(held), min(1, len(held)))
        self._moved = {each: self._elsewhere(held[each]) for each in chosen}
        if not self._moved:
            return
        if self._rate is not None:
            limit_copies(admin, movements({}, self._moved, held), self._rate)
        begin(admin.router, self._moved)

    def _change(self, admin: DirectAdmin) -> None:
        underway = ongoing(admin.router, self._moved)
        self.record(self._end, "ok", partitions=[str(each) for each in underway])
        if self._end == "cancelled":
            begin(admin.router, dict.fromkeys(underway))
        else:
            begin(admin.router, {each: self._elsewhere(self._moved[each]) for each in underway})

    def _lift(self, admin: DirectAdmin) -> None:
        lift_topic_limits(admin, self.cluster.topics)
        lift_broker_limits(admin, self.cluster.brokers)

    def _left(self, admin: DirectAdmin) -> list[TopicPartition]:
        return list(ongoing(admin.router))

    # ------------------------------------------------------------------ inside

    def _elsewhere(self, replicas: Sequence[int]) -> list[int]:
        """As many brokers in any order, one of which has no replica yet."""
        others = sorted(self.cluster.brokers.keys() - {*replicas})
        staying = self.chance.sample(list(replicas), len(replicas) - 1)
        chosen = [*staying, self.chance.choice(others)]
        self.chance.shuffle(chosen)
        return chosen

    def _patience(self) -> Patience:
        """The metadata store may be away for long, for another fault."""
        return Patience(_MOVED_SECONDS + self.cluster.outage_seconds)

    async def _ask(self, action: Callable[[DirectAdmin], T]) -> T:
        def ask() -> T:
            servers = ",".join(f"{host}:{port}" for host, port in self.cluster.bootstrap)
            with DirectAdmin(servers, timeout=_ASK_SECONDS, client_id="verify-reassign") as admin:
                return action(admin)

        return await asyncio.to_thread(ask)

    async def _until_asked(self, action: Callable[[DirectAdmin], T], failure: str) -> T:
        """Ask until somebody does it. Raises NotHealthy."""
        patience = self._patience()
        while True:
            try:
                return await self._ask(action)
            except KafkaError as error:
                if patience.over():
                    raise NotHealthy(f"{failure}: {error}") from None
            await asyncio.sleep(LOOK_SECONDS)
