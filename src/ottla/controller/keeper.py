"""Keeping the cluster as it should be, for as long as this broker is the controller.

Whenever the image has changed, the plan for it is made (`machine.py`) and carried out, until there
is nothing left to do. What is refused because somebody else was faster is planned again on the new
state. The store may be out of reach for a while: then it is tried again, with a growing pause.

A broker that is not there is dead, with one exception: when this broker's own session began less
than a session's time ago, or the store was out of its reach until then, the store itself may have
been away for all, and sessions have ended with it. Then the others are waited for. So are they when
this broker has become the controller before it could register again: for a session's time from then
on, and from its registration. A connection that only flickers is no outage, or nobody who is gone
would be missed for as long as it does.

From time to time partitions are given back to their preferred replicas, so that brokers which were
away share the load again (`auto.leader.rebalance.enable`); as in Kafka 4 any imbalance counts, and
a thousand partitions at a time are moved.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ottla.cluster.membership import Membership
from ottla.cluster.registry import Fenced, ImageChange, Registry
from ottla.cluster.store import Check, StoreClosed, StoreError, Term, returned_at
from ottla.controller.election import LogEnd, is_unclean
from ottla.controller.internal_replicas import plan_more_replicas
from ottla.controller.machine import (
    BrokerChange,
    Plan,
    plan,
    plan_preferred,
    plan_recovery,
    relied_on,
)
from ottla.controller.unclean import UncleanElections
from ottla.errors import KafkaError
from ottla.model.broker import BrokerState
from ottla.model.features import initial
from ottla.model.ids import TopicPartition
from ottla.model.topic import NO_LEADER, PartitionChange, Topic
from ottla.replication.isr import Rules
from ottla.runtime.logs import first_few

logger = logging.getLogger(__name__)

AskLogEnds = Callable[
    [TopicPartition, Collection[int]], Coroutine[Any, Any, Mapping[int, LogEnd | None]]
]
"""What replicas have of a partition; None where one answers that it cannot tell. Those that do not
answer are missing."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
ASKED_TOGETHER = 32
MOST_MOVED = 1000
MIN_INSYNC = "min.insync.replicas"
"""Who is eligible to lead was judged by it. Where fewer replicas suffice from now on, a leader goes
on alone that others counted on to stand still: so with it the eligible are forgotten (KIP-966)."""


class Upkeep(NamedTuple):
    """What the settings say about the controller's standing work."""

    # How often leaderships are balanced; None for never.
    balance_seconds: float | None = None
    # What `min.insync.replicas` is until somebody changes it for the cluster.
    min_insync: int = 1
    # How many replicas the brokers' own topics are to have, by name.
    factors: Mapping[str, int] = MappingProxyType({})


class ClusterKeeper:
    """The controller's standing work."""

    def __init__(
        self,
        registry: Registry,
        rules_of: Callable[[Topic], Rules],
        ask: AskLogEnds,
        upkeep: Callable[[], Upkeep] = Upkeep,
    ) -> None:
        self._registry = registry
        self._ask = ask
        self._members = Membership(registry)
        self._rules_of = rules_of
        self.unclean = UncleanElections()
        self.elected = 0  # leaders, since the start
        # Until then brokers that are missing may come back: see above. By the loop's clock.
        self.patient_until = float("-inf")
        self._in_session = False  # whether this broker is registered itself
        self._upkeep = upkeep
        # When leaderships are balanced next.
        self._balance_at = float("inf")
        self._asking: asyncio.Task[None] | None = None  # replicas, what they have
        self._in_vain: set[TopicPartition] = set()  # asked about the last time
        self._shut_out: set[BrokerChange] = set()  # who is too old, and was said to be
        # What has changed since the last plan.
        self._changed = asyncio.Event()
        self._topics: set[str] = set()
        self._everything = True

    def session_began(self) -> None:
        """This broker's session is new: for as long as one lasts, others may not be back yet."""
        self._in_session = True
        self._be_patient()

    def session_ended(self) -> None:
        """This broker has lost its registration; perhaps all have, with the store."""
        self._in_session = False

    def features_changed(self) -> None:
        """The cluster has finalized other levels: who was not let in may be now."""
        self._everything = True
        self._changed.set()

    def _be_patient(self) -> None:
        self.patient_until = asyncio.get_running_loop().time() + self._session_seconds

    def _patience(self, now: float) -> float:
        """For how long brokers that are missing are waited for, from now on."""
        returned = returned_at(self._registry.store)
        return max(self.patient_until, returned + self._session_seconds) - now

    @property
    def _session_seconds(self) -> float:
        seconds = self._registry.store.session_seconds
        return seconds if math.isfinite(seconds) else 0.0  # nobody's outlives this process

    async def keep(self, term: Term, busy: asyncio.Lock) -> None:
        """Carry out what is to be done, until the term is lost or the store closed."""
        unsubscribe = self._registry.subscribe(self._on_image)
        self._everything = True
        self._changed.set()
        self._plan_balance()
        if not self._in_session:
            self._be_patient()
        lost = asyncio.ensure_future(_happened(term))
        try:
            while not term.lost.happened:
                pause = await self._attempt(term, busy)
                await self._wait(lost, pause)
        except (Fenced, StoreClosed):
            pass
        finally:
            unsubscribe()
            lost.cancel()
            if self._asking is not None:
                self._asking.cancel()
                await asyncio.gather(self._asking, return_exceptions=True)
                self._asking = None

    def _on_image(self, change: ImageChange) -> None:
        self._topics |= change.topics
        if change.brokers:
            self._everything = True
        if change.topics or change.brokers:
            self._changed.set()

    async def _wait(self, lost: asyncio.Future[None], pause: float | None) -> None:
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((lost, changed), timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def _attempt(self, term: Term, busy: asyncio.Lock) -> float | None:
        """Do what is to be done; returns after how long to look again if nothing changes."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with busy:
                    await self._registry.load()
                    await self._finalize_features(term.fence)
                    to_ask = await self._reconcile(term.fence)
                    if asyncio.get_running_loop().time() >= self._balance_at:
                        await self._balance(term.fence)
                break
            except (Fenced, StoreClosed):
                raise
            except StoreError as error:
                if pause == FIRST_PAUSE:
                    logger.warning("the controller waits for the metadata store (%s)", error)
                self._everything = True
                if term.lost.happened:
                    return None
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        if to_ask and self._asking is None:
            # Meanwhile the rest of the cluster is looked after: some may take long to answer.
            asking = self._recover(to_ask, term.fence, busy)
            self._asking = asyncio.get_running_loop().create_task(asking)
        now = asyncio.get_running_loop().time()
        waiting = self._patience(now)
        balance = max(0.0, self._balance_at - now)
        if waiting > 0:
            self._everything = True
            return min(waiting, balance)
        return None if balance == float("inf") else balance

    def _plan_balance(self) -> None:
        seconds = self._upkeep().balance_seconds
        if seconds is None:
            seconds = float("inf")
        self._balance_at = asyncio.get_running_loop().time() + seconds

    async def _balance(self, fence: Check) -> None:
        """Give partitions back to their preferred replicas."""
        changes = plan_preferred(self._registry.image)
        if len(changes) <= MOST_MOVED:
            self._plan_balance()
        changes = changes[:MOST_MOVED]
        if not changes:
            return
        sure = relied_on(self._registry.image, changes)
        try:
            refused = await self._registry.change_partitions(
                changes, fence=fence, demands=lambda: self._members.unchanged(sure)
            )
        except KafkaError as error:
            logger.info("leaderships are balanced later: %s", error.message)
            return
        balanced = len(changes) - len(refused)
        self.elected += balanced
        logger.info("%d partitions are led by their preferred replicas again", balanced)

    async def _finalize_features(self, fence: Check) -> None:
        """Agree on the levels of features in a new cluster."""
        new = initial(self._registry.features)
        if new:
            await self._registry.set_features(new, fence=fence)

    async def _reconcile(self, fence: Check) -> Mapping[TopicPartition, tuple[int, ...]]:
        """Plan and carry out until nothing is left; returns what replicas have to be asked for."""
        while True:
            # Before a second broker is admitted: all of them have to judge by the same number.
            if await self._settle_min_insync(fence):
                self._everything = True
            patient = self._patience(asyncio.get_running_loop().time()) > 0
            topics, self._topics = self._topics, set()
            everything, self._everything = self._everything, False
            self._changed.clear()
            todo = plan(
                self._registry.image,
                self._rules_of,
                patient=patient,
                topics=None if everything else topics,
                levels=self._registry.features,
            )
            for shut_out in todo.shut_out.keys() - self._shut_out:
                logger.error(
                    "broker %d (epoch %d) is not let in: %s. Start a newer version of Ottla there",
                    *shut_out,
                    todo.shut_out[shut_out],
                )
            self._shut_out = {*todo.shut_out}
            if not todo:
                if await self._grow_internal_topics(fence):
                    self._everything = True
                    continue
                return todo.to_ask
            self._everything = True  # until all of it is done
            await self._carry_out(todo, fence)

    async def _settle_min_insync(self, fence: Check) -> bool:
        """From the second broker on, the cluster has one `min.insync.replicas` of its own: brokers
        whose files say different things would not agree on who is eligible."""
        image = self._registry.image
        config = image.broker_configs.get("", {})
        if len(image.broker_states) < 2 or MIN_INSYNC in config:
            return False
        value = str(self._upkeep().min_insync)
        await self._registry.set_broker_config("", {**config, MIN_INSYNC: value}, fence=fence)
        logger.info("%s of the cluster is %s", MIN_INSYNC, value)
        return True

    async def _grow_internal_topics(self, fence: Check) -> bool:
        """Give the brokers' own topics the replicas that there are brokers for."""
        changes = plan_more_replicas(self._registry.image, self._upkeep().factors)
        if not changes:
            return False
        refused = await self._registry.change_partitions(changes, fence=fence)
        logger.info(
            "%d partitions of internal topics get more replicas", len(changes) - len(refused)
        )
        return True

    async def _carry_out(self, todo: Plan, fence: Check) -> None:
        for departure in todo.departures:
            state = self._registry.image.broker_states.get(departure[0])
            stopping = state is not None and state.stopping
            if await self._members.note_departure(*departure, fence=fence):
                if stopping:
                    logger.info("broker %d has stopped", departure[0])
                else:
                    logger.warning("broker %d is gone (epoch %d)", *departure)
        try:
            refused = await self._registry.change_partitions(
                todo.partitions,
                fence=fence,
                demands=lambda: self._members.unchanged(todo.relied_on),
            )
        except KafkaError as error:
            logger.info("planning again: %s", error.message)
            return
        self.elected += _report(todo.partitions, refused)
        self._note_unclean(
            "unclean election",
            [change for change in todo.partitions if change in todo.unclean - {*refused}],
        )
        if refused:
            return  # those who arrive may depend on it
        for arrival in todo.arrivals:
            if await self._members.admit(*arrival, fence=fence):
                logger.info("broker %d has joined the cluster (epoch %d)", *arrival)

    def _note_unclean(self, what: str, changes: Collection[PartitionChange]) -> None:
        names = self._registry.image.topic_names
        self.unclean.note(
            what,
            {
                TopicPartition(names.get(change.topic_id, "?"), change.partition): (
                    change.after.leader
                )
                for change in changes
            },
        )

    async def _recover(
        self,
        to_ask: Mapping[TopicPartition, tuple[int, ...]],
        fence: Check,
        busy: asyncio.Lock,
    ) -> None:
        """Nobody is certain to have all of these partitions, and all who could have it are there:
        let those lead who have most of them. Afterwards everything is looked at again.

        A replica that does not answer is waited for once, for all partitions. It may answer for
        some: those that were asked about in vain come last the next time.
        """
        silent: set[int] = set()
        waiting, left = sorted(to_ask.items(), key=lambda each: each[0] in self._in_vain), False
        self._in_vain.intersection_update(to_ask)
        # Who registers anew after having been asked may not have any more what it has reported.
        asked_of = self._registry.image.broker_states
        try:
            while waiting:
                together, waiting = waiting[:ASKED_TOGETHER], waiting[ASKED_TOGETHER:]
                asked = [
                    (partition, answering)
                    for partition, replicas in together
                    if self._can_decide(
                        partition,
                        answering := tuple(each for each in replicas if each not in silent),
                    )
                ]
                left = left or len(asked) < len(together)
                answers = await asyncio.gather(*(self._ask(*each) for each in asked))
                async with busy:
                    decided: defaultdict[frozenset[int], dict[TopicPartition, PartitionChange]]
                    decided = defaultdict(dict)  # by those whose reports decide
                    for (partition, replicas), found in zip(asked, answers, strict=True):
                        reports = told(found)
                        silent.update(each for each in replicas if each not in reports)
                        change = plan_recovery(self._registry.image, partition, reports)
                        if change is not None:
                            ends = {each: str(end) for each, end in reports.items()}
                            logger.debug("%s: %s", partition, ends)
                            decided[frozenset(reports)][partition] = change
                    for reporting, changes in decided.items():
                        sure = {each: asked_of[each] for each in reporting}
                        for partition in await self._elect_recovered(changes, sure, fence):
                            del changes[partition]
                done = {each for changes in decided.values() for each in changes}
                in_vain = [partition for partition, _ in asked if partition not in done]
                left = left or bool(in_vain)
                self._in_vain.update(in_vain)
            if left:
                await asyncio.sleep(LONGEST_PAUSE)
        except StoreError as error:
            logger.warning("partitions cannot be recovered now: %s", error)
            await asyncio.sleep(FIRST_PAUSE)
        except Exception:
            # Whatever it was: they must be asked again, or their partitions are offline for ever.
            logger.exception("partitions cannot be recovered now")
            await asyncio.sleep(LONGEST_PAUSE)
        self._asking = None
        self._everything = True
        self._changed.set()

    def _can_decide(self, partition: TopicPartition, replicas: Iterable[int]) -> bool:
        """Whether it is enough to know what these replicas have."""
        reports = {each: LogEnd(0, 0) for each in replicas}
        return plan_recovery(self._registry.image, partition, reports) is not None

    async def _elect_recovered(
        self,
        changes: Mapping[TopicPartition, PartitionChange],
        sure: Mapping[int, BrokerState],
        fence: Check,
    ) -> list[TopicPartition]:
        """Let these lead, of whom the same brokers have reported what they have; returns the
        partitions that are to be asked about again.

        All at once, so that what may be lost is told as soon as it is: a controller that dies in
        between tells nobody.
        """
        try:
            refused = await self._registry.change_partitions(
                changes.values(), fence=fence, demands=lambda: self._members.unchanged(sure)
            )
        except KafkaError as error:
            logger.info("%s: asking again: %s", first_few(map(str, changes)), error.message)
            return list(changes)
        done = [change for change in changes.values() if change not in refused]
        self.elected += len(done)
        self._note_unclean(
            "unclean recovery, by what the replicas have",
            [change for change in done if is_unclean(change.before, change.after)],
        )
        return [partition for partition, change in changes.items() if change in refused]


def told(answers: Mapping[int, LogEnd | None]) -> dict[int, LogEnd]:
    """The answers of those who could tell."""
    return {replica: end for replica, end in answers.items() if end is not None}


async def _happened(term: Term) -> None:
    await term.lost


def _report(changes: list[PartitionChange], refused: list[PartitionChange]) -> int:
    """Say in one line what became of partitions, however many; returns how many have a new
    leader."""
    elected = offline = moved = 0
    for change in changes:
        if change in refused:
            continue
        moved += change.before.reassigning and not change.after.reassigning
        if change.after.leader == NO_LEADER:
            offline += change.before.leader != NO_LEADER
        else:
            elected += change.after.leader != change.before.leader
    if elected or offline:
        logger.info("%d partition(s) have a new leader, %d have none now", elected, offline)
    if moved:
        logger.info("%d partition(s) are on the replicas that they were to be moved to", moved)
    return elected
