"""Changes that are no faults, under load."""

from __future__ import annotations

import asyncio

from ottla.client.direct import DirectAdmin
from ottla.client.reassignments import begin, ongoing
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.verify.cluster import REPLICAS
from ottla.verify.faults.fault import Fault

_ASK_SECONDS = 5.0


class PreferredElection(Fault):
    """`election`.

    Where leaders are the preferred ones already nothing is elected, so that others are preferred
    first: the order of a partition's replicas is another one.
    """

    name = "election"
    about = "Another replica of every partition is preferred, and the partition is given to it."
    seconds = (0.0, 0.5)

    async def start(self) -> str:
        self._elected = 0
        try:
            self._elected = await asyncio.to_thread(self._elect)
        except KafkaError as error:
            return f"no answer: {error}"
        return f"{self._elected} partitions"

    async def heal(self) -> None:
        """There is nothing to heal."""

    def happened(self) -> bool:
        return self._elected > 0

    def _elect(self) -> int:
        """In a thread: how many partitions were given to somebody."""
        servers = ",".join(f"{host}:{port}" for host, port in self.cluster.bootstrap)
        with DirectAdmin(servers, timeout=_ASK_SECONDS, client_id="verify-election") as admin:
            order = {
                TopicPartition(topic.name, each.partition): [*each.replicas[1:], each.replicas[0]]
                for topic in admin.describe_topics(self.cluster.topics)
                for each in topic.partitions
                if len(each.replicas) == REPLICAS
            }
            moving = ongoing(admin.router)
            begin(admin.router, {each: to for each, to in order.items() if each not in moving})
            return sum(error is None for error in admin.elect_leaders().values())
