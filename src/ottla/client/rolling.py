"""Rolling: one broker after the other is restarted, while clients go on.

    rolling = Rolling(look, restart, report)
    rolling.run(order(look()))

A broker is stopped only while nothing is wrong: all brokers are up and reach the metadata store,
all replicas are in sync. Then it has to go, to come back, and to catch up, before the next one's
turn. The controller comes last, so that it moves once. At the first doubt everything stays as it
is, and `Doubt` says what is wrong. Ctrl-C is a doubt, too (`Interrupted`): it ends the watching,
not the broker that is under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ottla.client.cluster_health import min_insync
from ottla.client.descriptions import TopicDescription
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.cluster_health import BrokerHealth, ClusterHealth
    from ottla.client.direct import DirectAdmin

LOOK_SECONDS = 0.2
SHOWN = 3


class Doubt(Exception):
    """Why a rolling restart does not begin, or does not go on."""


class Interrupted(Doubt):
    """Ctrl-C: what is done, and what is not. `left` are the brokers that are still to be restarted;
    the first of them may have been stopped if the call that restarts it was not over (`halfway`).
    """

    def __init__(
        self, done: Sequence[int], under_way: int | None, left: Sequence[int], *, halfway: bool
    ) -> None:
        parts = [f"{_brokers(done)} restarted and in sync"]
        if under_way is not None:
            what = "may be stopped" if halfway else "was stopped and should come back"
            parts.append(f"broker {under_way} {what}: `ottla cluster status` tells how it is")
        untouched = [each for each in left if each != under_way]
        if untouched:
            parts.append(f"{_brokers(untouched)} left as before")
        super().__init__(f"interrupted: {'; '.join(parts)}")
        self.left = tuple(left)


def _brokers(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no broker is"
    named = ", ".join(map(str, numbers))
    return f"broker {named} is" if len(numbers) == 1 else f"brokers {named} are"


@dataclass(frozen=True, slots=True)
class Exposure:
    """Partitions that need this broker: without it they are offline, or refuse acks=all."""

    broker: int
    offline: tuple[TopicPartition, ...]
    refusing: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        parts = []
        if self.offline:
            parts.append(f"{_named(self.offline)} offline (there is no other replica)")
        if self.refusing:
            parts.append(f"{_named(self.refusing)} read-only (fewer than min.insync.replicas)")
        return f"without broker {self.broker}: {', '.join(parts)}"


def _named(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{tp.topic}-{tp.partition}" for tp in partitions[:SHOWN])
    more = len(partitions) - SHOWN
    return f"{shown} and {more:,} more are" if more > 0 else f"{shown} {_are(partitions)}"


def _are(partitions: Sequence[TopicPartition]) -> str:
    return "is" if len(partitions) == 1 else "are"


def exposures(admin: DirectAdmin, brokers: Iterable[int]) -> list[Exposure]:
    """What clients would notice of the absence of each of these; nothing where they would not.
    Raises Doubt where nobody tells how many replicas a topic needs."""
    described = admin.describe_each(admin.topics())
    topics = [each for each in described.values() if isinstance(each, TopicDescription)]
    least = min_insync(admin, [each.name for each in topics])
    if len(least) < len(topics):
        there = admin.topics()  # without those that were deleted meanwhile
        for each in topics:
            if each.name not in least and each.name in there:
                raise Doubt(f"no broker tells min.insync.replicas of topic {each.name}")
    return exposed(topics, least, brokers)


def exposed(
    topics: Collection[TopicDescription], least: Mapping[str, int], brokers: Iterable[int]
) -> list[Exposure]:
    found = []
    for broker in brokers:
        offline, refusing = [], []
        for topic in topics:
            for part in topic.partitions:
                others = [each for each in part.isr if each != broker]
                if broker not in part.isr:
                    continue
                tp = TopicPartition(topic.name, part.partition)
                if not others:
                    offline.append(tp)
                elif len(others) < min(least.get(topic.name, 1), len(part.replicas)):
                    refusing.append(tp)
        if offline or refusing:
            found.append(Exposure(broker, tuple(offline), tuple(refusing)))
    return found


def order(health: ClusterHealth, brokers: Collection[int] = ()) -> list[int]:
    """The brokers by their numbers, or these of them; the controller last."""
    known = {each.id for each in health.brokers}
    unknown = sorted(set(brokers) - known)
    if unknown:
        there = ", ".join(map(str, sorted(known)))
        raise Doubt(f"there is no broker {unknown[0]}: the cluster has {there}")
    return sorted(set(brokers) or known, key=lambda each: (each == health.controller, each))


def wrong(health: ClusterHealth) -> str | None:
    """What is not in order; None when everything is."""
    problem = next(filter(None, map(_wrong_with, health.brokers)), None)
    if problem is not None:
        return problem
    if health.known.silent:
        return f"broker {min(health.known.silent)} does not answer"
    if health.known.store_away:
        # All else may be as old as that, nobody is elected, and who stops cannot join again.
        away = ", ".join(map(str, sorted(health.known.store_away)))
        whose = f"broker {away} does" if len(health.known.store_away) == 1 else f"brokers {away} do"
        return f"{whose} not reach the metadata store"
    if health.controller is None:
        return "there is no controller"
    if health.troubled:
        worst = health.troubled[0]
        more = len(health.troubled) - 1
        others = f", and so are {more:,} more" if more else ""
        return f"{worst.name} is {worst.state}{others}"
    return None


def _wrong_with(broker: BrokerHealth) -> str | None:
    if broker.state == "missing" and not broker.replicas:
        return (
            f"broker {broker.id} is missing, and holds no partitions: start it, or have the "
            "cluster forget it with `kafka-cluster unregister`"
        )
    return None if broker.state == "up" else f"broker {broker.id} is {broker.state}"


class Rolling:
    """`look` tells how the cluster is, `restart` stops a broker that somebody starts again,
    `against` tells what speaks against that when its turn has come, and `check` what is wrong with
    one that is in sync again, if anything is."""

    def __init__(
        self,
        look: Callable[[], ClusterHealth],
        restart: Callable[[BrokerHealth], None],
        report: Callable[[int, str], None],
        *,
        against: Callable[[int], str | None] = lambda broker: None,
        check: Callable[[int, ClusterHealth], str | None] = lambda broker, health: None,
        patience: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look = look
        self._restart = restart
        self._report = report
        self._against = against
        self._check = check
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self.taken: dict[int, float] = {}
        """Who was restarted, and how many seconds that took."""
        self._under_way: int | None = None
        self._halfway = False  # it is being told to stop

    def run(self, brokers: Sequence[int]) -> None:
        """Restart these, in this order. Raises Doubt."""
        try:
            for broker in brokers:
                self._restart_one(broker)
        except KeyboardInterrupt:
            stopped = () if self._halfway else (self._under_way,)
            left = [each for each in brokers if each not in self.taken and each not in stopped]
            raise Interrupted(
                list(self.taken), self._under_way, left, halfway=self._halfway
            ) from None

    def _restart_one(self, broker: int) -> None:
        begun = self._clock()
        before = self._whole(broker)
        self._report(broker, "stopping")
        self._under_way, self._halfway = broker, True
        self._restart(before)
        self._halfway = False
        self._wait(broker, "restarts", partial(_is_new, before))
        self._report(broker, "back, catching up")
        health = self._wait(
            broker, "catches up", lambda found: wrong(found) is None and _is_new(before, found)
        )
        problem = self._check(broker, health)
        if problem is not None:
            raise Doubt(f"{problem}. The others were left as they are")
        self.taken[broker] = self._clock() - begun
        self._under_way = None
        self._report(broker, f"in sync, after {self.taken[broker]:.1f} s")

    def _whole(self, broker: int) -> BrokerHealth:
        """The broker as it is before its turn, in a cluster without a fault."""
        try:
            health = self._look()
            problem = wrong(health) or self._against(broker)
        except KafkaError as error:
            problem = error.message or str(error)
        if problem is not None:
            raise Doubt(f"{problem}; broker {broker} is left as it is")
        found = next((each for each in health.brokers if each.id == broker), None)
        if found is None:
            raise Doubt(f"broker {broker} is missing")
        if found.since_ms is None:
            raise Doubt(
                f"nobody tells since when broker {broker} is up, as only Ottla's brokers do, so "
                "that it could not be seen that it has come back: it is left as it is"
            )
        return found

    def _wait(self, broker: int, what: str, done: Callable[[ClusterHealth], bool]) -> ClusterHealth:
        """The cluster as it is when that is done. Raises Doubt when it takes too long."""
        deadline = self._clock() + self._patience
        problem: str | None = None
        while True:
            try:
                health = self._look()
            except KafkaError as error:
                problem = error.message
            else:
                if done(health):
                    return health
                problem = wrong(health) or f"broker {broker} still runs as before"
            if self._clock() >= deadline:
                raise Doubt(
                    f"{self._patience:.0f} s are not enough until broker {broker} {what}: "
                    f"{problem}. The others were left as they are"
                )
            self._sleep(LOOK_SECONDS)


def _is_new(before: BrokerHealth, health: ClusterHealth) -> bool:
    """Whether a broker has been admitted again since."""
    now = next((each for each in health.brokers if each.id == before.id), before)
    return now.state == "up" and now.since_ms not in (None, before.since_ms)
