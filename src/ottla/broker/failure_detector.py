"""Death is noticed, not waited for.

A session with the metadata store ends seconds after its broker does. A process that has died is
known at once to whoever has a connection to it: the kernel closes it, and refuses new ones. So the
controller keeps a connection to every other broker, and every broker keeps one to the controller.
When one of these ends, its address is tried; when that refuses a connection three times in a row,
nobody is there any more, and the registration is removed in the metadata: exactly that one, so that
a broker which has come back meanwhile is left alone.

In a small cluster every broker keeps a connection to every other one, but leaves it to the
controller to act. Where that dies together with others, whoever takes over has seen these die, too,
and need not wait for their sessions to end.

Nothing else is evidence. A connection that ends while the address still accepts, one that times
out, a host that cannot be reached: the broker may live, and its session decides. Where it lives all
the same (somebody has dropped its packets with a refusal) it loses its registration, leads nothing
and registers anew; then for ten minutes only its session decides about it. Every broker knows of
such a mistake, since it is part of the broker's state in the metadata: also one that becomes the
controller later makes it no second time.

It is safe to be wrong: who leads is fenced by epochs, whatever anybody believes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from ottla.cluster.membership import Membership
from ottla.cluster.registry import ImageChange, Registry
from ottla.cluster.store import StoreError
from ottla.model.broker import Broker, BrokerState, Endpoint
from ottla.net.channel import Channel, ChannelClosed
from ottla.runtime.tasks import Tasks

logger = logging.getLogger(__name__)

PROBES = 3
PROBE_PAUSE = 0.1
CONNECT_SECONDS = 5.0
FIRST_PAUSE = 0.02  # a broker registers just before it listens
LONGEST_PAUSE = 5.0
TRUST_SECONDS = 600.0
SMALL = 8
"""So many brokers all watch each other: the number of connections grows with the square."""
WITNESS_PAUSE = 0.2
"""Between two looks at one that is dead, and that it is for the controller to fence."""


class FailureDetector:
    """One broker's watch over others."""

    def __init__(
        self,
        registry: Registry,
        node_id: int,
        listener: str,
        tasks: Tasks,
    ) -> None:
        self._registry = registry
        self._members = Membership(registry)
        self._node_id = node_id
        self._listener = listener
        self._tasks = tasks
        self._watched: dict[int, tuple[int, asyncio.Task[None]]] = {}  # broker: epoch, task
        self.reached: set[int] = set()  # who would be missed at once
        self._suspects: set[int] = set()  # whose connection has ended, and whose address is tried
        # Brokers that were fenced and lived: when they came back, and until when they are trusted.
        self._survivors: dict[int, tuple[BrokerState, float]] = {}
        self._warned: dict[int, int] = {}  # broker: the registration that a line was logged about
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._registry.subscribe(self._on_image)
        for broker in self._registry.image.registrations:
            self._notice_survivor(broker)
        self.look()

    async def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None  # it may be called twice: stopped, then abandoned
        tasks = [task for _, task in self._watched.values()]
        self._watched.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_image(self, change: ImageChange) -> None:
        if change.brokers or change.new.controller_id != change.old.controller_id:
            for broker in change.brokers:
                self._notice_survivor(broker)
            self.look()

    def look(self) -> None:
        """Watch those who are to be watched, and nobody else."""
        image = self._registry.image
        # By the image: it may tell of our election before the controller here has heard of it.
        is_controller = image.controller_id == self._node_id
        all_watch = is_controller or len(image.brokers) <= SMALL
        chosen = {image.controller_id, *(image.brokers if all_watch else ())}
        chosen.discard(self._node_id)
        for broker_id, (epoch, task) in list(self._watched.items()):
            broker = image.registrations.get(broker_id)
            same = broker is None or (broker_id in self._suspects and broker.epoch == epoch)
            if same and not task.done():
                # Its session has ended, or its connection, and perhaps it was the controller until
                # then: whether it is dead we are about to know, and nobody else may.
                continue
            if broker_id not in chosen or broker is None or broker.epoch != epoch:
                task.cancel()
                del self._watched[broker_id]
        for broker_id in chosen - set(self._watched):
            broker = image.registrations.get(broker_id)
            endpoint = None if broker is None else self._endpoint(broker)
            if broker is not None and endpoint is not None:
                watching = self._watch(broker, endpoint)
                task = self._tasks.start(f"watching broker {broker_id}", watching)
                self._watched[broker_id] = (broker.epoch, task)

    def _notice_survivor(self, broker_id: int) -> None:
        """Whoever comes back as the same process was not dead when somebody took it for dead."""
        image = self._registry.image
        state = image.broker_states.get(broker_id)
        if state is None or not state.seen_dead or broker_id not in image.registrations:
            return
        known = self._survivors.get(broker_id)
        if known is None or known[0].epoch != state.epoch:
            logger.warning("broker %d lives: only its session decides about it now", broker_id)
            until = asyncio.get_running_loop().time() + TRUST_SECONDS
            self._survivors[broker_id] = (state, until)

    def _endpoint(self, broker: Broker) -> Endpoint | None:
        return broker.endpoints.get(self._listener) or next(iter(broker.endpoints.values()), None)

    async def _watch(self, broker: Broker, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        pause = FIRST_PAUSE
        reached = False
        while self._is_current(broker):
            begun = loop.time()
            try:
                channel = await Channel.open(endpoint.host, endpoint.port, timeout=CONNECT_SECONDS)
            except ChannelClosed as error:
                # Who was never reached gives no evidence of a death.
                suspicious = reached and error.errno == errno.ECONNREFUSED
            else:
                reached = suspicious = True
                self.reached.add(broker.id)
                try:
                    await channel.wait_closed()
                finally:
                    self.reached.discard(broker.id)
                    channel.abort()
            is_ours = self._is_ours(broker)
            if suspicious and is_ours:
                await self._examine(broker, endpoint)
            if loop.time() - begun > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            if not reached:  # it may die any moment, and would not be missed
                pause = max(FIRST_PAUSE, (loop.time() - started) / 4)
            elif suspicious and not is_ours:
                pause = WITNESS_PAUSE
            await asyncio.sleep(min(pause, LONGEST_PAUSE))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _examine(self, broker: Broker, endpoint: Endpoint) -> None:
        """Fence a broker if its address refuses connections, too."""
        self._suspects.add(broker.id)
        try:
            if await self._refuses(endpoint):
                await self._fence(broker)
        finally:
            self._suspects.discard(broker.id)
        self.look()  # perhaps it is not ours to watch any more

    def _is_ours(self, broker: Broker) -> bool:
        """Whether nobody else would do something about the death of a broker."""
        controller = self._registry.image.controller_id
        return controller < 0 or controller in (self._node_id, broker.id)

    def _is_current(self, broker: Broker) -> bool:
        registered = self._registry.image.registrations.get(broker.id)
        return registered is not None and registered.epoch == broker.epoch

    async def _refuses(self, endpoint: Endpoint) -> bool:
        """Whether nobody is at the address any more."""
        for attempt in range(PROBES):
            if attempt:
                await asyncio.sleep(PROBE_PAUSE)
            try:
                channel = await Channel.open(endpoint.host, endpoint.port, timeout=CONNECT_SECONDS)
            except ChannelClosed as error:
                if error.errno != errno.ECONNREFUSED:
                    return False
            else:
                channel.abort()
                return False
        return True

    async def _fence(self, broker: Broker) -> None:
        if self._is_trusted(broker.id):
            self._warn_once(broker, "broker %d refuses connections: only its session decides")
            return
        state = self._registry.image.broker_states.get(broker.id)
        stopping = state is not None and state.stopping
        registered = self._is_current(broker)
        try:
            if not await self._members.fence(broker.id, broker.epoch):
                return
            if stopping:
                if registered:  # otherwise the controller has noticed, and said it
                    logger.info("broker %d has stopped", broker.id)
            else:
                logger.warning("broker %d is dead: its address refuses connections", broker.id)
        except StoreError as error:
            self._warn_once(broker, "broker %d is dead, but cannot be fenced yet: %s", error)

    def _is_trusted(self, broker_id: int) -> bool:
        """Whether this very process was taken for dead not long ago, and was not."""
        state = self._registry.image.broker_states.get(broker_id)
        known = self._survivors.get(broker_id)
        if known is None or state is None or known[0].incarnation != state.incarnation:
            return False
        return known[1] > asyncio.get_running_loop().time()

    def _warn_once(self, broker: Broker, message: str, *details: object) -> None:
        """A line about a registration; its address is tried again and again."""
        if self._warned.get(broker.id) != broker.epoch:
            self._warned[broker.id] = broker.epoch
            logger.warning(message, broker.id, *details)
