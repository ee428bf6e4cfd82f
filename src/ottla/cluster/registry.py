"""Typed operations over any metadata store, and the image that every request reads.

The registry holds the newest `ClusterImage` and makes the next one when the store has changed:
`follow` does that for changes of others, and every operation here does it for its own change before
it returns, so whoever awaited a topic's creation finds the topic in the image. Listeners are called
with each new image, in order, before the operation that caused it returns. One that fails has
missed a change for good: that is told to `Tasks`, and ends the broker.

A new image costs one pass over the keys to see which differ (0.1 µs each) and a decode of those
that do; everything else is shared with the image before, down to the states of single partitions:
one that is the same object has not changed. Images never go backwards.

Writers compare and set. An operation that lost a race looks at the new state and tries again, until
it succeeds or has become impossible. It waits a moment before, a random one that grows: of many who
change the same keys one wins, and if the others all tried again at once, their attempts would grow
with the square of their number. Operations in the name of the controller take its `fence`, do not
wait, and raise `Fenced` once a later controller has begun.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from ottla.cluster import layout
from ottla.cluster.store import (
    MAX_COMMIT_BYTES,
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Op,
    Session,
    Set,
    Snapshot,
    StoreError,
    Term,
    epoch_key,
    holder_key,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker, BrokerState
from ottla.model.ids import TopicId, TopicPartition, topic_id_text
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionChange, PartitionState, Topic
from ottla.runtime.tasks import Tasks

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = 1_000
"""Ids taken from the store at once; Kafka's number. What is left of a block at a stop is lost."""

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.32
"""The longest that is waited after the first race that was lost, and after many."""
FEW_BROKERS = 10
"""So many wait no longer. Where there are more, each of them goes less often to the store, so that
all of them together go there no more often."""

Entropy = Callable[[int], bytes]
K = TypeVar("K")


class Fenced(StoreError):
    """A later controller has begun; this one must stop deciding."""


class ImageChange(NamedTuple):
    """One step of the image; `topics` and `brokers` name those that it made, changed or removed."""

    old: ClusterImage
    new: ClusterImage
    topics: frozenset[str]
    brokers: frozenset[int] = frozenset()


Listener = Callable[[ImageChange], None]


class Registry:
    """What one broker knows of the cluster, and its way to change it."""

    def __init__(
        self, store: MetadataStore, *, entropy: Entropy = os.urandom, tasks: Tasks | None = None
    ) -> None:
        self.store = store
        self._entropy = entropy
        self._tasks = tasks or Tasks()
        # The newest state, as read and as decoded.
        self.image = ClusterImage(revision=-1)
        self.features: Mapping[str, int] = {}
        self._entries: Mapping[str, Entry] = {}
        self._topics: dict[str, layout.TopicEntry] = {}
        self._chunks: dict[TopicId, dict[int, tuple[PartitionState, ...]]] = {}
        # Who is told.
        self._refreshing = asyncio.Lock()
        self._listeners: list[Listener] = []

    # --- the image --------------------------------------------------------------------------------

    async def load(self) -> ClusterImage:
        """Read the store if it is newer than the image; returns the newest image."""
        async with self._refreshing:
            snapshot = await self.store.read("")
            if snapshot.revision > self.image.revision:
                self._advance(snapshot)
            return self.image

    async def follow(self) -> None:
        """Keep the image current with the changes of others, until the store is closed."""
        async for _ in self.store.watch(""):
            await self.load()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every image from now on; returns the way to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _advance(self, snapshot: Snapshot) -> None:
        old = self.image
        topics, brokers, image = self._apply(snapshot)
        self._entries = snapshot.entries
        self.image = image
        change = ImageChange(old, image, frozenset(topics), frozenset(brokers))
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception as error:
                # The others are told all the same. Nobody tells this one again: what it should
                # have done is missing from now on, so the broker must not go on as if it were not.
                self._tasks.died(f"following the metadata (revision {image.revision})", error)

    def _apply(self, snapshot: Snapshot) -> tuple[set[str], set[int], ClusterImage]:  # noqa: C901, PLR0912, PLR0915 - one branch for each kind of key, set or removed
        """Decode what differs from the last snapshot; returns the topics and brokers that changed,
        and the new image."""
        image = replace(self.image, revision=snapshot.revision)
        registrations = dict(image.registrations)
        broker_states = dict(image.broker_states)
        met: set[int] = set()  # brokers of which something changed
        broker_configs = dict(image.broker_configs)
        group_configs = dict(image.group_configs)
        client_metrics = dict(image.client_metrics)
        touched: set[str] = set()  # topics
        moved: set[TopicId] = set()  # topics whose partitions changed
        for key, entry in _differences(self._entries, snapshot.entries):
            value = None if entry is None else entry.value
            if (position := layout.parse_partitions_key(key)) is not None:
                topic_id, chunk = position
                moved.add(topic_id)
                states = self._chunks.setdefault(topic_id, {})
                if value is None:
                    states.pop(chunk, None)
                else:
                    states[chunk] = layout.decode_partitions(key, value, states.get(chunk, ()))
            elif (name := layout.parse_topic_key(key)) is not None:
                touched.add(name)
                if value is None:
                    self._topics.pop(name, None)
                else:
                    self._topics[name] = layout.decode_topic(key, value)
            elif (broker_id := layout.parse_broker_key(key)) is not None:
                met.add(broker_id)
                if value is None:
                    registrations.pop(broker_id, None)
                else:
                    registrations[broker_id] = layout.decode_broker(key, value)
            elif (broker_id := layout.parse_broker_state_key(key)) is not None:
                met.add(broker_id)
                if value is None:
                    broker_states.pop(broker_id, None)
                else:
                    broker_states[broker_id] = layout.decode_broker_state(key, value)
            elif (resource := layout.parse_broker_config_key(key)) is not None:
                if value is None:
                    broker_configs.pop(resource, None)
                else:
                    broker_configs[resource] = layout.decode_config(key, value)
            elif (group := layout.parse_group_config_key(key)) is not None:
                if value is None:
                    group_configs.pop(group, None)
                else:
                    group_configs[group] = layout.decode_config(key, value)
            elif (subscription := layout.parse_client_metrics_key(key)) is not None:
                if value is None:
                    client_metrics.pop(subscription, None)
                else:
                    client_metrics[subscription] = layout.decode_config(key, value)
            elif key == layout.CLUSTER and value is not None:
                image = replace(image, cluster_id=layout.decode_cluster(value))
            elif key == layout.FEATURES:
                self.features = {} if value is None else layout.decode_features(value)
            elif key == holder_key(layout.CONTROLLER):
                holder = -1 if value is None else layout.decode_holder(key, value)
                image = replace(image, controller_id=holder)
            elif key == epoch_key(layout.CONTROLLER) and entry is not None:
                image = replace(image, controller_epoch=entry.version + 1)
        if touched or moved:
            image = self._with_topics(image, touched, moved)
        if met:
            image = replace(
                image,
                brokers=_live(registrations, broker_states),
                registrations=registrations,
                broker_states=broker_states,
            )
        image = replace(
            image,
            broker_configs=broker_configs,
            group_configs=group_configs,
            client_metrics=client_metrics,
        )
        return touched, met, image

    def _with_topics(
        self, image: ClusterImage, touched: set[str], moved: set[TopicId]
    ) -> ClusterImage:
        names = dict(image.topic_names)
        topics = dict(image.topics)
        for name in touched:
            before, after = topics.get(name), self._topics.get(name)
            if before is not None and (after is None or after.id != before.id):
                names.pop(before.id, None)
            if after is not None:
                names[after.id] = name
        for topic_id in moved:
            if topic_id in names:
                touched.add(names[topic_id])
            if not self._chunks[topic_id]:
                del self._chunks[topic_id]
        for name in touched:
            entry = self._topics.get(name)
            if entry is None:
                topics.pop(name, None)
                continue
            states = self._chunks.get(entry.id, {})
            partitions = tuple(state for chunk in sorted(states) for state in states[chunk])
            topics[name] = Topic(name, entry.id, partitions, entry.config)
        return replace(image, topics=topics, topic_names=names)

    # --- the cluster and its brokers --------------------------------------------------------------

    def new_id(self) -> TopicId:
        """A random id: a version 4 UUID, never a reserved one, never spelled with a dash first.

        The spelling matters because people pass ids to commands, where a dash begins an option.
        """
        while True:
            raw = uuid.UUID(bytes=self._entropy(16), version=4).bytes
            if not topic_id_text(raw).startswith("-"):
                return TopicId(raw)

    async def ensure_cluster_id(self, wanted: str | None = None) -> str:
        """The cluster's id, created now if there is none: `wanted`, or a new random one.

        INCONSISTENT_CLUSTER_ID when the store belongs to a cluster other than the wanted one;
        StoreError while a broker's metadata is being carried into it.
        """
        proposal = wanted or topic_id_text(self.new_id())
        while not (await self.load()).cluster_id:
            await self.attempt(Create(layout.CLUSTER, layout.encode_cluster(proposal)))
        if layout.HAND_OVER in self._entries:
            raise StoreError(
                "the metadata of another broker is being handed over to the metadata store; start "
                "again when that is done"
            )
        found = self.image.cluster_id
        if wanted not in (None, found):
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"The metadata store belongs to cluster {found}, the data to cluster {wanted}: "
                "start with the data folder of this cluster, or with an empty one",
            )
        return found

    async def campaign(self, broker_id: int) -> Term:
        """Wait to become the controller."""
        term = await self.store.campaign(layout.CONTROLLER, layout.encode_holder(broker_id))
        await self.load_or_release(term)
        return term

    async def load_or_release(self, presence: Session | Term) -> None:
        """Bring the image up to date; a caller cancelled meanwhile must not keep what it won."""
        try:
            await self.load()
        except BaseException:
            await presence.release()
            raise

    async def set_broker_config(
        self,
        broker: str,
        config: Mapping[str, str],
        *,
        fence: Check | None = None,
        forget_eligible: Iterable[str] = (),
    ) -> None:
        """Replace the dynamic settings of a broker (an id in decimal), or of all (empty).

        In the same commit the partitions of the topics in `forget_eligible` lose their eligible
        replicas.
        """
        names = tuple(forget_eligible)
        # Most of them before: one commit may not have room for all.
        await self.change_partitions(self._forgetting_eligible(names), fence=fence)
        key = layout.broker_config_key(broker)
        await self._replace_config(key, config, fence, also=lambda: self._without_eligible(names))

    async def set_group_config(
        self, group: str, config: Mapping[str, str], *, fence: Check | None = None
    ) -> None:
        """Replace the settings of a group."""
        await self._replace_config(layout.group_config_key(group), config, fence)

    async def set_client_metrics(
        self, subscription: str, config: Mapping[str, str], *, fence: Check | None = None
    ) -> None:
        """Replace a subscription to clients' metrics; without settings there is none."""
        await self._replace_config(layout.client_metrics_key(subscription), config, fence)

    async def _replace_config(
        self,
        key: str,
        config: Mapping[str, str],
        fence: Check | None,
        also: Callable[[], list[Op]] = list,
    ) -> None:
        value = layout.encode_config(config)

        def ops() -> list[Op]:
            entry = self._entries.get(key)
            if config:
                return [self.put(key, value), *also()]
            return also() if entry is None else [Delete(key, entry.version), *also()]

        await self.change(ops, fence)

    async def set_features(self, levels: Mapping[str, int], *, fence: Check | None = None) -> None:
        """Replace the finalized feature levels."""
        value = layout.encode_features(levels)
        await self.change(lambda: [self.put(layout.FEATURES, value)], fence)

    async def allocate_producer_ids(self, count: int = PRODUCER_ID_BLOCK) -> range:
        """A block of producer ids that nobody was or will be given; durable before it returns."""
        return await self._take(layout.PRODUCER_IDS, count, first=0)

    async def _take(self, counter: str, count: int, *, first: int) -> range:
        block = range(0)

        def ops() -> list[Op]:
            nonlocal block
            start, change = self.next_of(counter, count, first=first)
            block = range(start, start + count)
            return [change]

        await self.change(ops, None)
        return block

    def next_of(self, counter: str, count: int = 1, *, first: int) -> tuple[int, Op]:
        """The next number of a counter, and the change that takes `count` of them."""
        entry = self._entries.get(counter)
        start = first if entry is None else layout.decode_counter(counter, entry.value)
        return start, self.put(counter, layout.encode_counter(start + count))

    # --- topics -----------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[Topic], *, fence: Check | None = None
    ) -> list[Topic]:
        """Create topics, in as few commits as their size allows.

        Each is created whole or not at all. Returns those that were not, because a topic of that
        name has come to exist.
        """
        refused: list[Topic] = []
        for group in _groups(topics):
            if await self.attempt(*(op for ops in group.values() for op in ops), fence=fence):
                continue
            for name, ops in group.items():
                if len(group) == 1 or not await self.attempt(*ops, fence=fence):
                    refused += (topic for topic in topics if topic.name == name)
        await self.load()
        return refused

    async def delete_topic(self, topic_id: TopicId, *, fence: Check | None = None) -> None:
        """Remove a topic and the states of its partitions. UNKNOWN_TOPIC_ID when it is gone."""

        def ops() -> list[Op]:
            topic = self._topic(topic_id)
            return [
                Delete(key, self._entries[key].version)
                for key in (layout.topic_key(topic.name), *self._partition_keys(topic_id))
            ]

        await self.change(ops, fence)

    async def grow_topic(
        self,
        topic_id: TopicId,
        first: int,
        partitions: Sequence[PartitionState],
        *,
        fence: Check | None = None,
    ) -> None:
        """Add partitions, numbered from `first` on, which must be the present number.

        UNKNOWN_TOPIC_ID when the topic is gone, INVALID_PARTITIONS when it has grown meanwhile.
        """

        def ops() -> list[Op]:
            topic = self._topic(topic_id)
            if len(topic.partitions) != first:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"Topic already has {len(topic.partitions)} partition(s).",
                )
            changes = []
            full = first // layout.CHUNK
            together = topic.partitions[full * layout.CHUNK :] + tuple(partitions)
            for number, states in enumerate(layout.chunks(together), full):
                key = layout.partitions_key(topic_id, number)
                changes.append(self.put(key, layout.encode_partitions(states)))
            return changes

        await self.change(ops, fence)

    async def set_topic_config(
        self,
        topic_id: TopicId,
        config: Mapping[str, str],
        *,
        fence: Check | None = None,
        forget_eligible: bool = False,
    ) -> None:
        """Replace the settings of a topic. UNKNOWN_TOPIC_ID when it is gone.

        With `forget_eligible` its partitions lose their eligible replicas in the same commit.
        """

        def ops() -> list[Op]:
            topic = self._topic(topic_id)
            key = layout.topic_key(topic.name)
            changed = self.put(key, layout.encode_topic(topic_id, config))
            return [changed, *self._without_eligible((topic.name,) if forget_eligible else ())]

        await self.change(ops, fence)

    def _forgetting_eligible(self, names: Iterable[str]) -> list[PartitionChange]:
        return [
            PartitionChange(topic.id, index, before, after)
            for name in names
            if (topic := self.image.topics.get(name)) is not None
            for index, before in enumerate(topic.partitions)
            if (after := before.forget_eligible()) is not before
        ]

    def _without_eligible(self, names: Iterable[str]) -> list[Op]:
        """The states of these topics' partitions with nobody eligible but those in sync."""
        by_key: dict[str, list[PartitionChange]] = {}
        for change in self._forgetting_eligible(names):
            key = layout.partitions_key(change.topic_id, change.partition // layout.CHUNK)
            by_key.setdefault(key, []).append(change)
        return [
            self.put(key, layout.encode_partitions(states))
            for key, changes in by_key.items()
            if (states := self._with_changes(changes, {})) is not None
        ]

    async def change_partitions(
        self,
        changes: Iterable[PartitionChange],
        *,
        fence: Check | None = None,
        demands: Callable[[], Iterable[Check]] = tuple,
    ) -> list[PartitionChange]:
        """Give partitions their next states, in as few commits as their size allows.

        Returns those that were refused, because the partition is gone or has changed meanwhile.
        Every commit includes what `demands` makes of the newest state; it raises KafkaError when
        that state does not allow the changes any more.
        """
        by_key: dict[str, list[PartitionChange]] = {}
        for change in changes:
            key = layout.partitions_key(change.topic_id, change.partition // layout.CHUNK)
            by_key.setdefault(key, []).append(change)
        refused: dict[PartitionChange, None] = {}

        def ops(keys: Iterable[str]) -> list[Op]:
            commit: list[Op] = []
            for key in keys:
                written = self._with_changes(by_key[key], refused)
                if written is not None:
                    commit.append(self.put(key, layout.encode_partitions(written)))
            return [*commit, *demands()] if commit else []

        sizes = {
            key: len(key) + 2 * len(self._entries[key].value)
            for key in by_key
            if key in self._entries
        }
        for change in (each for key in by_key if key not in sizes for each in by_key[key]):
            refused[change] = None
        for group in _commits(sizes):
            await self.change(partial(ops, group), fence)
        return list(refused)

    def _with_changes(
        self, changes: Iterable[PartitionChange], refused: dict[PartitionChange, None]
    ) -> list[PartitionState] | None:
        """The states of one key after these changes; None if none of them applies."""
        states: list[PartitionState] = []
        applied = False
        for change in changes:
            number, slot = divmod(change.partition, layout.CHUNK)
            if not states:
                states = list(self._chunks.get(change.topic_id, {}).get(number, ()))
            if slot < len(states) and states[slot] == change.before:
                states[slot] = change.after
                refused.pop(change, None)
                applied = True
            else:
                refused[change] = None
        return states if applied else None

    async def raise_leader_epochs(self, above: Mapping[TopicPartition, int]) -> None:
        """Give partitions a leader epoch that is new: above their present one and above the given.

        Those whose topic is gone are passed over, and so are those that have got another leader
        meanwhile, with an epoch of its own.
        """
        waiting = dict(above)
        leaders: dict[TopicPartition, int] = {}
        while waiting:
            changes = {}
            for (name, index), epoch in waiting.items():
                topic = self.image.topics.get(name)
                if topic is not None and index < len(topic.partitions):
                    before, tp = topic.partitions[index], TopicPartition(name, index)
                    led_by_another = leaders.setdefault(tp, before.leader) != before.leader
                    if led_by_another and before.leader_epoch > epoch:
                        continue
                    after = before.next_epoch(epoch)
                    changes[PartitionChange(topic.id, index, before, after)] = tp
            refused = await self.change_partitions(changes)
            waiting = {changes[change]: above[changes[change]] for change in refused}

    # --- compare and set --------------------------------------------------------------------------

    def _topic(self, topic_id: TopicId) -> Topic:
        name = self.image.topic_names.get(topic_id)
        if name is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic {topic_id_text(topic_id)}."
            )
        return self.image.topics[name]

    def _partition_keys(self, topic_id: TopicId) -> list[str]:
        return [layout.partitions_key(topic_id, chunk) for chunk in self._chunks.get(topic_id, ())]

    def version(self, key: str) -> int | None:
        """The version of a key in the newest state; None if it is not there."""
        entry = self._entries.get(key)
        return None if entry is None else entry.version

    def put(self, key: str, value: bytes) -> Op:
        """Create the key, or replace what the newest state has there."""
        entry = self._entries.get(key)
        return Create(key, value) if entry is None else Set(key, value, entry.version)

    async def change(self, ops: Callable[[], Sequence[Op]], fence: Check | None) -> None:
        """Commit what `ops` makes of the newest state; if that has moved, make it anew."""
        lost = 0
        while True:
            seen = self.image.revision
            impossible: KafkaError | None = None
            changes: Sequence[Op] = ()
            try:
                if seen >= 0:
                    changes = ops()
            except KafkaError as error:
                impossible = error
            if changes:
                if await self.attempt(*changes, fence=fence):
                    return
                if fence is None:
                    lost += 1
                    await self.let_others_go(lost)
            elif (await self.load()).revision == seen:
                # Impossible, or nothing to do, in what is certainly the newest state.
                if impossible is not None:
                    raise impossible
                return

    async def let_others_go(self, lost: int) -> None:
        """Wait after so many races that were lost in a row: longer among many brokers."""
        longest = min(FIRST_PAUSE * 2 ** min(lost - 1, 10), LONGEST_PAUSE)
        await asyncio.sleep(self.any_part_of(longest * self.crowding))

    @property
    def crowding(self) -> float:
        """How many times more brokers there are than few; 1 for few."""
        return max(1.0, len(self.image.broker_states) / FEW_BROKERS)

    def any_part_of(self, seconds: float) -> float:
        """At random: so that those who would do something at the same moment do not."""
        return seconds * int.from_bytes(self._entropy(4), "big") / 2**32

    async def attempt(self, *ops: Op, fence: Check | None = None) -> bool:
        """Commit, and bring the image up to date either way; False after a conflict."""
        try:
            revision = await self.store.commit(*ops, *([fence] if fence else []))
        except Conflict as conflict:
            if fence is not None and conflict.key == fence.key:
                raise Fenced(f"a later controller than that of {fence} has begun") from None
            await self.load()
            return False
        if self.image.revision < revision:
            await self.load()
        return True


def _live(
    registrations: Mapping[int, Broker], states: Mapping[int, BrokerState]
) -> dict[int, Broker]:
    """The brokers that are there and were admitted."""
    return {
        broker_id: broker
        for broker_id, broker in registrations.items()
        if (state := states.get(broker_id)) and state.epoch == broker.epoch and not state.fenced
    }


def _differences(
    old: Mapping[str, Entry], new: Mapping[str, Entry]
) -> list[tuple[str, Entry | None]]:
    """The keys whose entries differ, with the new one, or None for those that are gone."""
    find = old.get
    changed: list[tuple[str, Entry | None]] = [
        (key, entry)
        for key, entry in new.items()
        if (before := find(key)) is not entry and before != entry
    ]
    added = sum(key not in old for key, _ in changed)
    if len(old) + added != len(new):
        changed += ((key, None) for key in old if key not in new)
    return changed


def _commits(sizes: Mapping[K, int]) -> list[list[K]]:
    """Keys of the given sizes in groups that fit into one commit each."""
    groups: list[list[K]] = []
    room = 0
    for key, size in sizes.items():
        if not groups or size > room:
            groups.append([])
            room = MAX_COMMIT_BYTES
        groups[-1].append(key)
        room -= size
    return groups


def _groups(topics: Sequence[Topic]) -> list[dict[str, list[Op]]]:
    """The creation of topics, by name, in groups that fit into one commit each."""
    groups: list[dict[str, list[Op]]] = []
    room = 0
    for topic in topics:
        ops: list[Op] = [
            Create(layout.topic_key(topic.name), layout.encode_topic(topic.id, topic.config))
        ]
        for number, states in enumerate(layout.chunks(topic.partitions)):
            key = layout.partitions_key(topic.id, number)
            ops.append(Create(key, layout.encode_partitions(states)))
        size = sum(len(op.key) + len(op.value) for op in ops if isinstance(op, Create))
        if not groups or size > room:
            groups.append({})
            room = MAX_COMMIT_BYTES - 1_000  # the fence needs a little too
        groups[-1][topic.name] = ops
        room -= size
    return groups
