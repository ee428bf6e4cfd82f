"""Brokers in the metadata store: how one registers, is admitted, is fenced.

Two keys say of a broker that it is there. Its registration is ephemeral and ends with its session;
its state is durable and tells whether the controller counts on it. A broker writes both in one
commit, its state as fenced; the controller's commit admits it. Fencing is one commit too. So for
every commit that relies on a broker it is enough to demand that its state has not changed.

    register        fenced, under a new epoch            by the broker
    admit           live                                 by the controller
    fence           fenced, and the registration gone    by whoever has seen it dead
    note_departure  fenced                               by the controller, when the session ended
    announce_stop   stopping                             by the broker
    note_failure    failed: a disk of it                 by the broker
    forget          nothing is remembered of it          by the controller, on request
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ottla.cluster import layout
from ottla.cluster.registry import Registry
from ottla.cluster.store import Check, Conflict, Delete, Op, Session, holder_key
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker, BrokerState, Endpoint, LostPartition
from ottla.model.features import supported
from ottla.runtime.clock import Clock, SystemClock

CONTROLLER_HOLDER = holder_key(layout.CONTROLLER)
TURN_SECONDS = 0.01
TURNS = 100
"""Twice what a registration takes in ZooKeeper; so many brokers have a turn of their own."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker that is there: as others see it, and the session that keeps it there."""

    broker: Broker
    session: Session


@dataclass(frozen=True, slots=True)
class Host:
    """What a broker says of itself when it registers."""

    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    host: str = ""
    directories: tuple[str, ...] = ()
    boot_id: str = ""
    incarnation: str = ""
    clean: bool = False
    lost: bool = False  # it knows that records are gone
    lost_partitions: frozenset[LostPartition] = frozenset()  # of these, and of no others


class Membership:
    """The operations, over one broker's registry."""

    def __init__(self, registry: Registry, clock: Clock | None = None) -> None:
        self._registry = registry
        self._clock = clock or SystemClock()

    async def register(
        self, broker_id: int, about: Host, *, take_over: bool = False
    ) -> Registration:
        """Announce a broker under an epoch that no registration had before.

        DUPLICATE_BROKER_REGISTRATION while another one with this id is there. A broker that has
        just started may `take_over` from one with the same data folders on the same machine: it
        holds their locks, so the other one is dead, and only its session has not ended yet. With it
        goes the role of controller, if the dead one had it.
        """
        registry = self._registry
        await registry.load()
        lost = 0
        while True:
            image = registry.image
            before = image.broker_states.get(broker_id)
            key = layout.broker_key(broker_id)
            if broker_id in image.registrations:
                if not take_over:
                    raise _duplicate(image.registrations[broker_id])
                self.refuse_duplicate(broker_id, about.directories, about.host)
                version = registry.version(key)
                assert version is not None
                gone = [Delete(key, version), *self._no_controller(broker_id)]
                await registry.attempt(self._unchanged(broker_id), *gone)
                continue
            epoch, counter = registry.next_of(layout.BROKER_EPOCH, first=1)
            broker = Broker(
                broker_id,
                epoch,
                {each.listener: each for each in about.endpoints},
                about.rack,
                about.host,
                supported(),
            )
            state = BrokerState(
                epoch,
                about.directories,
                about.boot_id,
                about.incarnation,
                clean=about.clean,
                lost=_may_have_lost(before, about),
                lost_partitions=_lost_partitions(before, about),
                emptied=_was_emptied(before, about),
                failed=before is not None and before.failed and _lives_on(before, about),
                host=about.host,
                since_ms=self._clock.now_ms(),
                seen_dead=_was_seen_dead(before, about),
            )
            ops = (
                counter,
                registry.put(layout.broker_state_key(broker_id), layout.encode_broker_state(state)),
            )
            try:
                session = await registry.store.join(key, layout.encode_broker(broker), *ops)
            except Conflict:
                # All who register take the next epoch, and a hundred may start at once: then they
                # go one after the other, by their ids.
                lost += 1
                await asyncio.sleep(TURN_SECONDS * (broker_id % TURNS))
                if lost > 1:
                    await registry.let_others_go(lost)
                await registry.load()
                continue
            await registry.load_or_release(session)
            return Registration(broker, session)

    def refuse_duplicate(
        self, broker_id: int, directories: tuple[str, ...], host: str, *, answers: bool = False
    ) -> None:
        """DUPLICATE_BROKER_REGISTRATION where another broker is registered with this id.

        One that was registered from the same machine with the same folders is none: who holds the
        locks of the folders knows that it is dead. Unless it `answers`: then the folders are a copy
        of its own, which lacks what it has written since.
        """
        image = self._registry.image
        registered, state = image.registrations.get(broker_id), image.broker_states.get(broker_id)
        if registered is not None and (
            answers or state is None or state.directories != directories or registered.host != host
        ):
            raise _duplicate(registered)

    async def admit(self, broker_id: int, epoch: int, *, fence: Check | None = None) -> bool:
        """Make a registered broker live; False when that registration is not there any more."""

        def ops(state: BrokerState) -> list[Op]:
            key = layout.broker_key(broker_id)
            version = self._registry.version(key)
            registration = self._registry.image.registrations.get(broker_id)
            if version is None or registration is None or registration.epoch != epoch:
                return []
            return [
                Check(key, version),
                self._set(broker_id, _admitted(state)),
            ]

        return await self._change(broker_id, epoch, ops, fence, done=lambda state: not state.fenced)

    async def note_departure(
        self, broker_id: int, epoch: int, *, fence: Check | None = None
    ) -> bool:
        """The session has ended: the broker is fenced. False when it has registered again."""

        def ops(state: BrokerState) -> list[Op]:
            registration = self._registry.image.registrations.get(broker_id)
            if registration is not None and registration.epoch == epoch:
                return []
            return [self._set(broker_id, replace(state, fenced=True))]

        return await self._change(broker_id, epoch, ops, fence, done=lambda state: state.fenced)

    async def fence(self, broker_id: int, epoch: int) -> bool:
        """Fence a broker that was seen dead: exactly this registration goes, if it is still there,
        and with it the role of controller. False when the broker has registered again."""

        def ops(state: BrokerState) -> list[Op]:
            registry = self._registry
            dead = replace(state, fenced=True, seen_dead=True)
            changes: list[Op] = [self._set(broker_id, dead)]
            registration = registry.image.registrations.get(broker_id)
            if registration is not None:
                if registration.epoch != epoch:
                    return []
                key = layout.broker_key(broker_id)
                changes.append(Delete(key, registry.version(key) or 0))
            return [*changes, *self._no_controller(broker_id)]

        return await self._change(broker_id, epoch, ops, None, done=lambda state: state.fenced)

    async def announce_stop(self, broker_id: int, epoch: int) -> bool:
        """Ask to be relieved of every leadership; False when the registration is gone."""

        def ops(state: BrokerState) -> list[Op]:
            return [self._set(broker_id, replace(state, stopping=True))]

        return await self._change(broker_id, epoch, ops, None, done=lambda state: state.stopping)

    async def note_failure(self, broker_id: int, epoch: int) -> bool:
        """A disk of this broker has failed: its next start is not trusted with what it had. False
        when the registration is gone."""

        def ops(state: BrokerState) -> list[Op]:
            return [self._set(broker_id, replace(state, failed=True))]

        return await self._change(broker_id, epoch, ops, None, done=lambda state: state.failed)

    async def forget(self, broker_id: int, *, fence: Check | None = None) -> None:
        """Remember nothing of a broker that is gone. What it may have lost cannot be told when it
        comes back, so no partition must count on it any more.

        BROKER_ID_NOT_REGISTERED for one that is not known, INVALID_REQUEST for one that is there or
        that partitions name.
        """

        def ops() -> list[Op]:
            image = self._registry.image
            key = layout.broker_state_key(broker_id)
            version = self._registry.version(key)
            if version is None:
                raise KafkaError(
                    ErrorCode.BROKER_ID_NOT_REGISTERED,
                    f"Broker ID {broker_id} is not currently registered",
                )
            if broker_id in image.registrations:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is running: stop it first."
                )
            named = sum(
                broker_id in state.replicas
                for topic in image.topics.values()
                for state in topic.partitions
            )
            if named:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Broker {broker_id} has replicas of {named} partition(s): move them to other "
                    f"brokers first, as `ottla cluster drain {broker_id}` does.",
                )
            return [Delete(key, version)]

        await self._registry.change(ops, fence)

    # ------------------------------------------------------------------ inside

    async def _change(
        self,
        broker_id: int,
        epoch: int,
        ops: Callable[[BrokerState], list[Op]],
        fence: Check | None,
        *,
        done: Callable[[BrokerState], bool],
    ) -> bool:
        """Change the state that belongs to one registration."""

        def current() -> BrokerState | None:
            state = self._registry.image.broker_states.get(broker_id)
            return state if state is not None and state.epoch == epoch else None

        def changes() -> list[Op]:
            state = current()
            return [] if state is None or done(state) else ops(state)

        await self._registry.change(changes, fence)
        state = current()
        return state is not None and done(state)

    def _set(self, broker_id: int, state: BrokerState) -> Op:
        state = replace(state, since_ms=self._clock.now_ms())
        return self._registry.put(
            layout.broker_state_key(broker_id), layout.encode_broker_state(state)
        )

    def _no_controller(self, broker_id: int) -> list[Op]:
        """Take the role of controller from a broker that is dead, if it has it."""
        holder = self._registry.version(CONTROLLER_HOLDER)
        if holder is None or self._registry.image.controller_id != broker_id:
            return []
        return [Delete(CONTROLLER_HOLDER, holder)]

    def _unchanged(self, broker_id: int) -> Check:
        key = layout.broker_state_key(broker_id)
        version = self._registry.version(key)
        assert version is not None
        return Check(key, version)

    def unchanged(self, brokers: Mapping[int, BrokerState]) -> list[Check]:
        """For a commit that relies on these brokers: demand that they are what they were.

        INELIGIBLE_REPLICA when one of them is known not to be.
        """
        now = self._registry.image.broker_states
        for broker, state in brokers.items():
            if now.get(broker) != state:
                raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {broker} has changed")
        return [self._unchanged(each) for each in brokers]


def _admitted(state: BrokerState) -> BrokerState:
    return replace(state, fenced=False, lost=False, lost_partitions=frozenset(), emptied=False)


def _may_have_lost(before: BrokerState | None, about: Host) -> bool:
    """Whether a broker can be trusted with what it had.

    After kill -9 the page cache still holds every finished write, unless the machine itself was
    started anew, or the disk had failed to write it: then the kernel may have dropped it since. A
    data folder that is new or missing has lost what was in it. What was found once stands until the
    controller has drawn its conclusions.
    """
    if before is None:
        return about.lost
    if before.fenced and before.lost:
        return True
    if before.failed and not _lives_on(before, about):
        return True
    if before.directories and set(before.directories) != set(about.directories):
        return True
    return about.lost or (not about.clean and before.boot_id != about.boot_id)


def _lost_partitions(before: BrokerState | None, about: Host) -> frozenset[LostPartition]:
    """Those of which records are gone: as just found, and as found before, without the controller
    having drawn its conclusions since."""
    if before is None or not before.fenced:
        return about.lost_partitions
    return about.lost_partitions | before.lost_partitions


def _was_emptied(before: BrokerState | None, about: Host) -> bool:
    """Whether nothing may be left of some partitions that a broker had: a data folder is missing.
    That stands, too, until the controller has drawn its conclusions."""
    if before is None:
        return False
    if before.fenced and before.emptied:
        return True
    return not {*before.directories} <= {*about.directories}


def _lives_on(before: BrokerState, about: Host) -> bool:
    """Whether it is the same process that registers anew."""
    return bool(before.incarnation) and before.incarnation == about.incarnation


def _was_seen_dead(before: BrokerState | None, about: Host) -> bool:
    """Whether somebody has taken this very process for dead, as the failure detector can, and it
    has not been live since."""
    if before is None or before.incarnation != about.incarnation:
        return False
    return before.seen_dead and before.fenced


def _duplicate(other: Broker) -> KafkaError:
    places = ", ".join(endpoint.address for endpoint in other.endpoints.values())
    return KafkaError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"Another broker is registered with broker id {other.id}"
        f"{f', at {places}' if places else ''}: give this one another broker.id.",
    )
