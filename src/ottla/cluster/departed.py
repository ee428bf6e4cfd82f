"""DepartedBrokers: those that were lost a moment ago, named to clients a little longer.

Kafka takes seconds to notice a death, so a client there asks who leads now while the dead broker is
still listed. Here the partitions have new leaders within a fraction of a second. A client of
librdkafka that learns of a partition's new leader in the same answer that no longer lists the old
one mixes up the two: it takes the old broker's connection down and the partition, which it has just
moved, with it, and asks again only a second later. So whoever is lost stays in the list for as long
as clients need to ask once.

Those who stop cleanly have given their leaderships away before, and are left out at once.
"""

from __future__ import annotations

from ottla.cluster.registry import ImageChange, Registry
from ottla.model.broker import Broker
from ottla.runtime.clock import Clock

LISTED_SECONDS = 10.0


class DepartedBrokers:
    """The brokers that this one has lost sight of."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._clock = clock
        self._lost: dict[int, tuple[Broker, float]] = {}  # each until when it is listed
        registry.subscribe(self._on_image)

    def recent(self) -> list[Broker]:
        """Those that were lost within the last seconds and have not come back."""
        if not self._lost:
            return []
        now = self._clock.monotonic()
        self._lost = {broker_id: lost for broker_id, lost in self._lost.items() if now < lost[1]}
        return [broker for broker, _until in self._lost.values()]

    def _on_image(self, change: ImageChange) -> None:
        for broker_id in change.brokers:
            before = change.old.brokers.get(broker_id)
            if broker_id in change.new.brokers:
                self._lost.pop(broker_id, None)
            elif before is not None and not self._stopped(change, broker_id):
                until = self._clock.monotonic() + LISTED_SECONDS
                self._lost[broker_id] = (before, until)

    @staticmethod
    def _stopped(change: ImageChange, broker_id: int) -> bool:
        """Whether it had said so: here before, or together with its end, if this broker is late."""
        known = (image.broker_states.get(broker_id) for image in (change.old, change.new))
        return any(state is not None and state.stopping for state in known)
