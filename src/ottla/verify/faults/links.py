"""Faults of the network."""

from __future__ import annotations

from ottla.verify.cluster import SESSION_MS
from ottla.verify.faults.fault import ON_ZOOKEEPER, Fault
from ottla.verify.network import CLIENTS, ZOOKEEPER, Link


class _Links(Fault):
    """Something is done to some links, and undone."""

    cut = True
    delay = 0.0
    losing = False

    def links(self) -> list[Link]:
        """Those that are hit."""
        raise NotImplementedError

    async def start(self) -> str:
        self._links = self.links()
        delay = self.delay * self.chance.uniform(0.1, 1.0)
        for link in self._links:
            self.cluster.network.hinder(link, self, cut=self.cut, delay=delay, losing=self.losing)
        return ", ".join(f"{source} to {target}" for source, target in self._links)

    async def heal(self) -> None:
        released = [self.cluster.network.release(link, self) for link in self._links]
        self._met = any(released)

    def happened(self) -> bool:
        return self._met

    def _between(self, one: str, other: str) -> list[Link]:
        """Both ways, or one of them."""
        both = [(one, other), (other, one)]
        return self.chance.choice([both, both[:1], both[1:]])


class CutBrokers(_Links):
    """`cut-brokers`."""

    name = "cut-brokers"
    about = "Nothing gets from one broker to another, in one direction or in both."

    def links(self) -> list[Link]:
        one, other = map(self.cluster.name, self.two_brokers())
        return self._between(one, other)


class Isolate(_Links):
    """`isolate`."""

    name = "isolate"
    about = "A broker is cut off from all other brokers and from ZooKeeper, not from clients."
    seconds = (0.5, SESSION_MS / 1000 * 2.5)

    def links(self) -> list[Link]:
        broker = self.any_broker()
        name = self.cluster.name(broker)
        others = [self.cluster.name(each) for each in self.cluster.brokers if each != broker]
        return [link for other in (*others, ZOOKEEPER) for link in ((name, other), (other, name))]


class HalfIsolate(_Links):
    """`half-isolate`."""

    name = "half-isolate"
    about = "A broker is cut off from one other broker and from ZooKeeper; a third one follows it."
    seconds = (0.5, SESSION_MS / 1000 * 2.5)
    stores = ON_ZOOKEEPER

    def links(self) -> list[Link]:
        one, other = map(self.cluster.name, self.two_brokers())
        return [link for each in (other, ZOOKEEPER) for link in ((one, each), (each, one))]


class CutClients(_Links):
    """`cut-clients`."""

    name = "cut-clients"
    about = "Nothing gets from clients to a broker, or from it to clients, or neither way."

    def links(self) -> list[Link]:
        return self._between(CLIENTS, self.cluster.name(self.any_broker()))


class CutZooKeeper(_Links):
    """`cut-zookeeper`."""

    name = "cut-zookeeper"
    about = "Nothing gets from a broker to ZooKeeper, or back, or neither way; often not for long."
    seconds = (0.2, SESSION_MS / 1000)
    stores = ON_ZOOKEEPER

    def links(self) -> list[Link]:
        return self._between(ZOOKEEPER, self.cluster.name(self.any_broker()))


class SessionExpiry(CutZooKeeper):
    """`session-expiry`."""

    name = "session-expiry"
    about = "A broker is cut off from ZooKeeper until its session has expired."
    seconds = (SESSION_MS / 1000 * 1.5, SESSION_MS / 1000 * 3)

    def links(self) -> list[Link]:
        name = self.cluster.name(self.any_broker())
        return [(ZOOKEEPER, name), (name, ZOOKEEPER)]


class LostReplies(_Links):
    """`lost-replies`."""

    name = "lost-replies"
    about = "A broker's answers to clients are lost, and the connections with them."
    seconds = (0.1, 1.0)
    cut = False
    losing = True

    def links(self) -> list[Link]:
        return [(self.cluster.name(self.any_broker()), CLIENTS)]


class LostBrokerReplies(LostReplies):
    """`lost-broker-replies`."""

    name = "lost-broker-replies"
    about = "A broker's answers to other brokers are lost, and the connections with them."

    def links(self) -> list[Link]:
        one, other = map(self.cluster.name, self.two_brokers())
        return [(one, other)]


class Delay(_Links):
    """`delay`."""

    name = "delay"
    about = "Everything takes up to half a second longer, between two brokers or to ZooKeeper."
    cut = False
    delay = 0.5

    def links(self) -> list[Link]:
        one, other = map(self.cluster.name, self.two_brokers())
        chosen = self.chance.choice([other, other, CLIENTS, ZOOKEEPER])
        return [(one, chosen), (chosen, one)]
