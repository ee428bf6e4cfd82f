"""The controller: which broker it is, and what it commits.

Every broker has a `Controller` and runs it; the store elects one of them. Only that one accepts
changes, one request at a time: it plans on the newest image (`topics.py`, no I/O), then commits the
plan together with the fence of its term, so that a controller which was deposed while it planned
changes nothing. A request that loses a race is planned again on the new state.

Outcomes per topic or resource are data. A `KafkaError` is raised when there is none to give:
NOT_CONTROLLER when this broker does not hold the role (any more), KAFKA_STORAGE_ERROR when the
store failed and it is not known what was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial

from ottla.cluster.membership import Membership
from ottla.cluster.registry import Fenced, Registry
from ottla.cluster.store import Check, StoreClosed, StoreError, Term
from ottla.config.setting import ConfigError
from ottla.controller.election import LogEnd, is_unclean
from ottla.controller.elections import (
    Elections,
    plan_forced_elections,
    plan_preferred_elections,
    to_elect,
)
from ottla.controller.keeper import (
    ASKED_TOGETHER,
    MIN_INSYNC,
    AskLogEnds,
    ClusterKeeper,
    Upkeep,
    told,
)
from ottla.controller.machine import electable, relied_on
from ottla.controller.placement import Random
from ottla.controller.reassignment import plan_reassignment
from ottla.controller.topics import (
    ConfigCheck,
    DeleteTopic,
    GrowTopic,
    NewTopic,
    TopicCreation,
    TopicDefaults,
    TopicDeletion,
    TopicGrowth,
    plan_creation,
    plan_deletion,
    plan_growth,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.features import FORMATS, REASSIGNMENT, allows
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionChange, Topic
from ottla.replication.isr import Rules
from ottla.runtime.logs import first_few

logger = logging.getLogger(__name__)


class ResourceKind(Enum):
    """What can have dynamic settings."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"
    CLIENT_METRICS = "client-metrics"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """New settings for one topic, one group, one broker, or (a broker without a name) all brokers,
    or for one subscription to clients' metrics.

    `edit` makes the settings out of those in force, an empty mapping if there are none, and raises
    ConfigError or KafkaError when the result would not be valid. It may be called more than once.
    """

    kind: ResourceKind
    name: str
    edit: Callable[[Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """What became of it."""

    kind: ResourceKind
    name: str
    error: KafkaError | None = None


class Controller:
    """One broker's candidacy for the role, and the role when it holds it."""

    def __init__(
        self,
        registry: Registry,
        broker_id: int,
        *,
        defaults: Callable[[], TopicDefaults],
        check_topic_config: ConfigCheck,
        rng: Random,
        rules_of: Callable[[Topic], Rules],
        ask_log_ends: AskLogEnds,
        upkeep: Callable[[], Upkeep] = Upkeep,
    ) -> None:
        self._registry = registry
        self._rules_of = rules_of
        self._ask = ask_log_ends
        self._members = Membership(registry)
        self._cluster = ClusterKeeper(registry, rules_of, ask_log_ends, upkeep)
        self.unclean = self._cluster.unclean
        self._broker_id = broker_id
        self._defaults = defaults
        self._check_topic_config = check_topic_config
        self._rng = rng
        # While this broker is the controller.
        self._term: Term | None = None
        self._elected = asyncio.Event()
        self._busy = asyncio.Lock()  # one change at a time, whoever asks for it

    # --- the election -----------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._term is not None and not self._term.lost.happened

    @property
    def epoch(self) -> int:
        """The epoch of the term it serves, or -1."""
        return self._term.epoch if self._term is not None and self.active else -1

    @property
    def elections(self) -> int:
        """Leaders that this broker has elected, as the controller, since its start."""
        return self._cluster.elected

    def session_began(self) -> None:
        """This broker has registered: see `keeper.py` for why that makes a controller patient."""
        self._cluster.session_began()

    def session_ended(self) -> None:
        """Its registration is gone."""
        self._cluster.session_ended()

    async def wait_elected(self) -> None:
        """Returns when this broker holds the role."""
        await self._elected.wait()

    async def run(self) -> None:
        """Stand for the role, hold it, stand again; until cancelled or the store is closed."""
        while True:
            try:
                term = await self._registry.campaign(self._broker_id)
            except StoreClosed:
                return
            self._term = term
            self._elected.set()
            logger.info("broker %d is the controller, epoch %d", self._broker_id, term.epoch)
            try:
                await self._cluster.keep(term, self._busy)
            finally:
                self._term = None
                self._elected.clear()
                await self._resign(term)

    async def _resign(self, term: Term) -> None:
        logger.info("broker %d is not the controller any more", self._broker_id)
        try:
            await term.release()
        except StoreError as error:
            logger.warning("the role of controller could not be given back: %s", error)

    @asynccontextmanager
    async def _as_controller(self) -> AsyncIterator[Check]:
        """Exclusive use of the role; yields the fence for commits."""
        async with self._busy:
            term = self._term
            if term is None or not self.active:
                raise self._not_controller()
            try:
                await self._registry.load()
                yield term.fence
            except Fenced:
                raise self._not_controller() from None
            except StoreError as error:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"The metadata store cannot be used: {error}; try again when it can",
                ) from error

    def _not_controller(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_CONTROLLER, f"Broker {self._broker_id} is not the active controller."
        )

    # --- topics -----------------------------------------------------------------------------------

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicCreation]:
        """Create what can be created; the topics are in the image when this returns."""
        async with self._as_controller() as fence:
            outcomes = self._plan_creation(requests)
            if validate_only:
                return outcomes
            topics = [outcome.topic for outcome in outcomes if outcome.topic is not None]
            refused = {
                topic.name for topic in await self._registry.create_topics(topics, fence=fence)
            }
            if refused:
                late = self._plan_creation(
                    [request for request in requests if request.name in refused]
                )
                verdicts = {outcome.name: outcome for outcome in late}
                outcomes = [verdicts.get(outcome.name, outcome) for outcome in outcomes]
        created = [outcome.topic for outcome in outcomes if outcome.topic is not None]
        if len(created) == 1:
            [topic] = created
            logger.info("created topic %s with %d partition(s)", topic.name, len(topic.partitions))
        elif created:
            names = first_few(topic.name for topic in created)
            partitions = sum(len(topic.partitions) for topic in created)
            text = "created %d topics with %d partitions: %s"
            logger.info(text, len(created), partitions, names)
        return outcomes

    def _plan_creation(self, requests: Sequence[NewTopic]) -> list[TopicCreation]:
        return plan_creation(
            requests,
            self._registry.image,
            defaults=self._defaults(),
            rng=self._rng,
            new_id=self._registry.new_id,
            check_config=self._check_topic_config,
        )

    async def delete_topics(self, requests: Sequence[DeleteTopic]) -> list[TopicDeletion]:
        """Delete what can be deleted; the topics are gone from the image when this returns."""
        outcomes = []
        deleted: list[object] = []
        async with self._as_controller() as fence:
            for outcome in plan_deletion(requests, self._registry.image):
                if outcome.error is None:
                    try:
                        await self._registry.delete_topic(outcome.id, fence=fence)
                    except KafkaError as error:
                        outcomes.append(TopicDeletion(outcome.name, outcome.id, error))
                        continue
                    deleted.append(outcome.name)
                outcomes.append(outcome)
        if deleted:
            logger.info("deleted %d topic(s): %s", len(deleted), first_few(deleted))
        return outcomes

    async def create_partitions(
        self, requests: Sequence[GrowTopic], *, validate_only: bool = False
    ) -> list[TopicGrowth]:
        """Add the partitions that can be added; they are in the image when this returns."""
        outcomes = []
        async with self._as_controller() as fence:
            for outcome in plan_growth(requests, self._registry.image, rng=self._rng):
                if outcome.error is None and not validate_only:
                    try:
                        await self._registry.grow_topic(
                            outcome.id, outcome.first, outcome.partitions, fence=fence
                        )
                    except KafkaError as error:
                        outcomes.append(TopicGrowth(outcome.name, error=error))
                        continue
                    count = outcome.first + len(outcome.partitions)
                    logger.info("topic %s now has %d partitions", outcome.name, count)
                outcomes.append(outcome)
        return outcomes

    async def change_features(self, judge: Callable[[], Mapping[str, int]]) -> None:
        """Give features the levels that `judge` finds to be allowed in the newest state, when
        nothing else changes; the others keep theirs."""
        async with self._as_controller() as fence:
            levels = judge()
            await self._registry.set_features({**self._registry.features, **levels}, fence=fence)
        self._cluster.features_changed()

    async def elect_leaders(
        self, wanted: Sequence[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders in these partitions, or in all; what is wrong with each, or None.

        The leaders are in the image when this returns.
        """
        if unclean:
            return await self._elect_who_is_there(wanted)
        async with self._as_controller() as fence:
            return await self._elect(wanted, False, plan_preferred_elections, fence)

    async def _elect_who_is_there(
        self, wanted: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Ask all replicas that are there what they have of the partitions without a leader; those
        with most lead. Somebody has given up the others."""
        async with self._as_controller():
            image = self._registry.image
            left, _ = to_elect(image, wanted, unclean=True)
        # Meanwhile the cluster is looked after: some may take long to answer.
        reports = await self._ask_who_is_there(image, left)
        asked_of = image.broker_states

        def plan(now: ClusterImage, partitions: Collection[TopicPartition]) -> Elections:
            same = {each for each in now.brokers if now.broker_states[each] == asked_of.get(each)}
            sure = {
                tp: {each: end for each, end in ends.items() if each in same}
                for tp, ends in reports.items()
            }
            return plan_forced_elections(now, partitions, sure, self._rules_of)

        async with self._as_controller() as fence:
            return await self._elect(wanted, True, plan, fence)

    async def _ask_who_is_there(
        self, image: ClusterImage, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, dict[int, LogEnd]]:
        """What live replicas have; a broker that does not answer once is not waited for again. One
        that cannot tell of one partition, as of one on a disk that has failed, may have most of
        the next."""
        reports: dict[TopicPartition, dict[int, LogEnd]] = {}
        silent: set[int] = set()
        for first in range(0, len(partitions), ASKED_TOGETHER):
            questions = {
                tp: [
                    each
                    for each in image.topics[tp.topic].partitions[tp.partition].replicas
                    if each in image.brokers and each not in silent
                ]
                for tp in partitions[first : first + ASKED_TOGETHER]
            }
            answers = await asyncio.gather(*(self._ask(*each) for each in questions.items()))
            for (tp, asked), found in zip(questions.items(), answers, strict=True):
                reports[tp] = told(found)
                silent.update(each for each in asked if each not in found)
        return reports

    async def _elect(
        self,
        wanted: Sequence[TopicPartition] | None,
        unclean: bool,
        plan: Callable[[ClusterImage, Collection[TopicPartition]], Elections],
        fence: Check,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect as planned, and plan once more where somebody was faster."""
        outcomes: dict[TopicPartition, KafkaError | None] = {}
        elected: dict[TopicPartition, PartitionChange] = {}
        left = wanted
        while left is None or left:
            candidates, needless = to_elect(self._registry.image, left, unclean=unclean)
            planned = plan(self._registry.image, candidates)
            outcomes |= needless | planned.refused
            changes = planned.changes
            refused = await self._carry_out(changes, fence)
            left = [tp for tp, change in changes.items() if change in refused]
            elected |= {tp: change for tp, change in changes.items() if change not in refused}
        outcomes |= dict.fromkeys(elected)
        self._cluster.elected += len(elected)
        if elected:
            kind = "unclean" if unclean else "preferred"
            logger.info("%s election: %d partition(s) have a new leader", kind, len(elected))
        self.unclean.note(
            "unclean election on request",
            {
                tp: change.after.leader
                for tp, change in elected.items()
                if is_unclean(change.before, change.after)
            },
        )
        return outcomes

    async def _carry_out(
        self, changes: Mapping[TopicPartition, PartitionChange], fence: Check
    ) -> set[PartitionChange]:
        """Commit what was planned on the image; returns what was refused and is to be planned once
        more: leaders change in-sync sets at any time, and somebody may have been faster."""
        sure = relied_on(self._registry.image, changes.values())
        try:
            return set(
                await self._registry.change_partitions(
                    changes.values(), fence=fence, demands=partial(self._members.unchanged, sure)
                )
            )
        except KafkaError:
            # Somebody who is relied on has come or gone. What was done before that stands.
            now = self._registry.image.topics
            return {change for tp, change in changes.items() if not _is_in(now, tp, change)}

    async def reassign(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_factor_change: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Move partitions to these replicas, or (None) cancel that; what is wrong with each.

        What has begun is in the image when this returns.
        """
        outcomes: dict[TopicPartition, KafkaError | None] = {}
        done: dict[TopicPartition, PartitionChange] = {}
        async with self._as_controller() as fence:
            if not allows(self._registry.features, FORMATS, REASSIGNMENT):
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "partitions can be reassigned when the upgrade of this cluster is finalized: "
                    "`ottla cluster upgrade --finalize`",
                )
            left = dict(wanted)
            while left:
                image = self._registry.image
                able = electable(image)
                rules: dict[str, Rules] = {}  # worked out once: a throttle may name all partitions
                changes: dict[TopicPartition, PartitionChange] = {}
                for tp, replicas in left.items():
                    topic = image.topics.get(tp.topic)
                    if topic is not None and tp.topic not in rules:
                        rules[tp.topic] = self._rules_of(topic)
                    try:
                        before, after = plan_reassignment(
                            image,
                            tp,
                            replicas,
                            able,
                            rules.get(tp.topic, Rules(1)),
                            allow_factor_change=allow_factor_change,
                        )
                    except KafkaError as error:
                        outcomes[tp] = error
                        continue
                    outcomes[tp] = None
                    if after is not before and topic is not None:
                        changes[tp] = PartitionChange(topic.id, tp.partition, before, after)
                refused = await self._carry_out(changes, fence)
                left = {tp: wanted[tp] for tp, change in changes.items() if change in refused}
                done |= {tp: change for tp, change in changes.items() if change not in refused}
        if done:
            names = first_few(done)
            logger.info("the replicas of %d partitions are changed: %s", len(done), names)
        self.unclean.note(
            "cancelling a reassignment",
            {
                tp: change.after.leader
                for tp, change in done.items()
                if is_unclean(change.before, change.after)
            },
        )
        return outcomes

    async def unregister(self, broker_id: int) -> None:
        """Forget a broker that is gone, and that holds nothing. Raises KafkaError."""
        async with self._as_controller() as fence:
            await self._members.forget(broker_id, fence=fence)
        logger.info("broker %d is forgotten", broker_id)

    # --- settings ---------------------------------------------------------------------------------

    async def alter_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[ConfigOutcome]:
        """Apply each change that is valid; they are in the image when this returns."""
        outcomes = []
        async with self._as_controller() as fence:
            for change in changes:
                error = None
                try:
                    await self._alter(change, fence, validate_only)
                except ConfigError as problem:
                    error = KafkaError(ErrorCode.INVALID_CONFIG, str(problem))
                except KafkaError as problem:
                    error = problem
                outcomes.append(ConfigOutcome(change.kind, change.name, error))
        return outcomes

    async def _alter(self, change: ConfigChange, fence: Check, validate_only: bool) -> None:
        # As in Kafka the settings are judged first, and only then whether there is such a thing.
        image = self._registry.image
        if change.kind is ResourceKind.BROKER:
            before = image.broker_configs.get(change.name, {})
            config = change.edit(before)
            _check_broker(change.name, image)
            changed = config.get(MIN_INSYNC) != before.get(MIN_INSYNC)
            if changed:
                _check_min_insync(change.name, config, image)
            if not validate_only:
                await self._registry.set_broker_config(
                    change.name,
                    config,
                    fence=fence,
                    forget_eligible=_with_another_minimum(image, change.name, config),
                )
            return
        if change.kind is ResourceKind.CLIENT_METRICS:
            config = change.edit(image.client_metrics.get(change.name, {}))
            if not validate_only:
                await self._registry.set_client_metrics(change.name, config, fence=fence)
            return
        if change.kind is ResourceKind.GROUP:
            config = change.edit(image.group_configs.get(change.name, {}))
            if not validate_only:  # the group need not be there yet
                await self._registry.set_group_config(change.name, config, fence=fence)
            return
        topic = image.topics.get(change.name)
        config = change.edit(topic.config if topic is not None else {})
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{change.name}' does not exist."
            )
        if not validate_only:
            await self._registry.set_topic_config(
                topic.id,
                config,
                fence=fence,
                forget_eligible=config.get(MIN_INSYNC) != topic.config.get(MIN_INSYNC),
            )


def _is_in(topics: Mapping[str, Topic], tp: TopicPartition, change: PartitionChange) -> bool:
    """Whether a partition is what a change has made of it."""
    topic = topics.get(tp.topic)
    return (
        topic is not None
        and tp.partition < len(topic.partitions)
        and topic.partitions[tp.partition] == change.after
    )


def _with_another_minimum(image: ClusterImage, broker: str, config: Mapping[str, str]) -> list[str]:
    """The topics for which these settings of the brokers mean another min.insync.replicas."""
    if config.get(MIN_INSYNC) == image.broker_configs.get(broker, {}).get(MIN_INSYNC):
        return []
    return [topic.name for topic in image.topics.values() if MIN_INSYNC not in topic.config]


def _check_min_insync(broker: str, config: Mapping[str, str], image: ClusterImage) -> None:
    """All brokers have to agree on it, or a leader and the controller would know different
    replicas as eligible (KIP-966): one value for the cluster, once it has two brokers."""
    if broker and MIN_INSYNC in config:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Broker-level {MIN_INSYNC} cannot be altered while ELR is enabled.",
        )
    if not broker and MIN_INSYNC not in config and len(image.broker_states) > 1:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cluster-level {MIN_INSYNC} cannot be removed while ELR is enabled.",
        )


def _check_broker(name: str, image: ClusterImage) -> None:
    """Every broker that the cluster remembers has settings, be it away for now."""
    if not name:
        return
    if not (name.isascii() and name.isdecimal() and str(int(name)) == name):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid broker name {name}")
    if int(name) not in image.broker_states and int(name) not in image.brokers:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {name} found.")
