"""A broker's membership in the cluster, from its first registration to its last.

While a broker runs it does three things with the metadata store: it is registered, it follows the
metadata into its image, and it stands for the role of controller. `Lifecycle` starts these, keeps
them going and ends them in order.

Registration  An ephemeral key. When its session is lost (it expired, or somebody deleted the key)
              the broker leads nothing any more, and registers anew, under a new broker epoch; it
              leads again what the controller then gives it.
Certainty     What nobody but this broker holds it may tell only while its session is alive for
              certain (`replication/lease.py`). So it looks for its own key in the store a few times
              in a session's time: who reads it there is known to the store from then on for as long
              as a session lasts.
Outages       A store that is out of reach (`Unavailable`) is waited for, with pauses that grow. The
              broker meanwhile serves whatever needs no change of the metadata, and logs when the
              outage begins and ends (`cluster/contact.py`). It also leads on, though its session
              may be lost: nobody can lead in its place before the store is back, and if others
              reach it earlier, the followers that they take along are missing for every acks=all.
              During the start a store that goes away is waited for as long as one that was not
              there yet (`patience`: zookeeper.connection.timeout.ms); then the start fails and
              says why.
Failures      A store that does not come back (`StoreFailed`), and every error that is a bug, ends
              its task, and so the broker (`runtime.tasks`): an image that stands still is worse.

A broker is ready for clients when the controller, itself or another, has admitted it, and it has
read the metadata up to that.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from ottla.cluster import layout
from ottla.cluster.contact import StoreContact
from ottla.cluster.membership import Host, Membership, Registration
from ottla.cluster.registry import ImageChange, Registry
from ottla.cluster.store import StoreClosed, StoreError, StoreFailed, Unavailable
from ottla.controller.service import Controller
from ottla.errors import KafkaError
from ottla.model.image import ClusterImage
from ottla.replication.service import NO_REGISTRATION
from ottla.runtime.logs import RateLimit
from ottla.runtime.tasks import Tasks

logger = logging.getLogger(__name__)

# Between attempts to reach the store: the first pause, and the longest.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0  # well within a session: a controller does not wait longer for brokers
HAND_OVER_SECONDS = 10.0
REFUSAL_LOG_SECONDS = 60.0


async def load_in_time(registry: Registry, contact: StoreContact, seconds: float) -> ClusterImage:
    """The newest metadata; a store that is out of reach is waited for so long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await registry.load()
        except StoreFailed:
            raise
        except Unavailable as error:
            if loop.time() >= deadline:
                raise
            contact.failed(error)
        await asyncio.sleep(FIRST_PAUSE)


class Lifecycle:
    """One broker's membership. `await start()`, `await wait_ready()`; `await stop()` at the end."""

    def __init__(
        self,
        registry: Registry,
        controller: Controller,
        tasks: Tasks,
        contact: StoreContact,
        *,
        node_id: int,
        about: Host,
        on_registered: Callable[[int], None],
        on_certain: Callable[[float], None],
    ) -> None:
        # of the broker
        self._registry = registry
        self._controller = controller
        self._tasks = tasks
        self._node_id = node_id
        self._about = about
        self._clock = contact.clock
        self._on_registered = on_registered
        self._on_certain = on_certain
        self._contact = contact
        self._refusals = RateLimit(logger, contact.clock, burst=1, interval=REFUSAL_LOG_SECONDS)
        # while it is a member
        self._registration: Registration | None = None
        self._running: list[asyncio.Task[None]] = []
        self._ready = False
        self._not_ready_until = -math.inf

    async def start(self, *, patience: float = 0.0) -> None:
        """Register, follow the metadata, stand for controller.

        A store that goes away before the broker is ready is waited for so many seconds.
        Raises KafkaError when the id is in use, StoreError when the store does not answer.
        """
        self._not_ready_until = asyncio.get_running_loop().time() + patience
        await self._through_outages(partial(self._register, take_over=True))
        for what, work in (
            ("staying registered", self._stay_registered()),
            ("making sure of the session", self._make_sure()),
            ("running the controller", self._until_closed(self._controller.run)),
            ("following the metadata", self._until_closed(self._registry.follow)),
        ):
            self._running.append(self._tasks.start(what, work, endless=True))

    async def wait_ready(self) -> None:
        """Returns when clients can be served: a controller counts on this broker."""
        admitted = asyncio.Event()

        def look(change: ImageChange) -> None:
            broker, registration = change.new.brokers.get(self._node_id), self._registration
            if broker is not None and registration and broker.epoch == registration.broker.epoch:
                admitted.set()

        unsubscribe = self._registry.subscribe(look)
        try:
            look(ImageChange(self._registry.image, self._registry.image, frozenset()))
            await admitted.wait()
        finally:
            unsubscribe()
        self._ready = True
        # Whoever registers anew has lost nothing since.
        self._about = replace(self._about, lost=False, lost_partitions=frozenset())

    async def hand_over(self) -> None:
        """Have every partition led by another broker, where there is one that can."""
        registration = self._registration
        if registration is None or not set(self._registry.image.brokers) - {self._node_id}:
            return
        led_elsewhere = asyncio.Event()

        def look(change: ImageChange) -> None:
            topics = change.new.topics.values()
            if not any(
                state.leader == self._node_id for topic in topics for state in topic.partitions
            ):
                led_elsewhere.set()

        unsubscribe = self._registry.subscribe(look)
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                if await Membership(self._registry).announce_stop(
                    self._node_id, registration.broker.epoch
                ):
                    look(ImageChange(self._registry.image, self._registry.image, frozenset()))
                    await led_elsewhere.wait()
        except TimeoutError:
            logger.warning("broker %d stops with partitions that it leads", self._node_id)
        except StoreError as error:
            logger.warning("broker %d cannot hand over: %s", self._node_id, error)
        finally:
            unsubscribe()

    async def stop(self) -> None:
        """Follow no more, give the role of controller back, leave."""
        await self.abandon()
        if self._registration is not None:
            try:
                await self._registration.session.release()
            except StoreError as error:
                logger.warning("broker %d could not leave: %s", self._node_id, error)

    async def abandon(self) -> None:
        """Do nothing more, and leave the registration to end with the store's session."""
        running, self._running = self._running, []
        for task in reversed(running):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- kept going -------------------------------------------------------------------------------

    async def _register(self, *, take_over: bool = False) -> None:
        members = Membership(self._registry)
        asked = self._clock.monotonic()
        self._registration = await members.register(self._node_id, self._about, take_over=take_over)
        self._controller.session_began()
        self._on_registered(self._registration.broker.epoch)
        self._on_certain(asked + self._registry.store.session_seconds)

    async def _make_sure(self) -> None:
        store, key = self._registry.store, layout.broker_key(self._node_id)
        while True:
            await asyncio.sleep(min(store.session_seconds / 4, LONGEST_PAUSE))
            registration = self._registration
            assert registration is not None
            asked = self._clock.monotonic()
            self._contact.asked()
            try:
                entry = (await store.read(key)).entries.get(key)
            except StoreError:
                continue  # others wait for it, and say so
            self._contact.answered()
            epoch = -1 if entry is None else layout.decode_broker(key, entry.value).epoch
            if registration is self._registration and epoch == registration.broker.epoch:
                self._on_certain(asked + store.session_seconds)

    async def _stay_registered(self) -> None:
        while True:
            assert self._registration is not None
            await self._registration.session.lost
            self._controller.session_ended()
            if await self._store_answers():
                self._on_registered(NO_REGISTRATION)
            # What is in the page cache now is what was there before: this process has lived on. The
            # cluster knows what it had lost at its start.
            self._about = replace(self._about, clean=True, lost=False)
            # Another broker may have taken the id meanwhile, or the old key may not be gone yet.
            await self._through_outages(self._register, passing=(Unavailable, KafkaError))
            logger.warning(
                "the registration of broker %d was lost; it is registered anew, with epoch %d",
                self._node_id,
                self._registration.broker.epoch,
            )

    async def _store_answers(self) -> bool:
        """Whether the store is there, so that others may have taken over from this broker."""
        try:
            await self._registry.load()
        except Unavailable:
            return False
        return True

    async def _until_closed(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work`, which only ends when somebody has closed the store, through all outages."""
        await self._through_outages(work)
        raise StoreClosed("somebody has closed it")

    async def _through_outages(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        passing: tuple[type[Exception], ...] = (Unavailable,),
    ) -> None:
        """Do `work`, and again when an error has ended it that may pass."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while True:
            begun = loop.time()
            try:
                await work()
                return
            except StoreFailed:
                raise
            except passing as error:
                if not self._ready and loop.time() >= self._not_ready_until:
                    raise
                if isinstance(error, Unavailable):
                    self._contact.failed(error)
                else:
                    self._refusals.warning("refusal", "%s; the broker tries again", error)
            if loop.time() - begun > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
