"""EarlyBatches: what came before its partition was here, and was refused.

A client may know of a partition before this broker does. What it sends then is remembered until the
partition is there: so what is under way behind it is not stored before it. Of each producer as much
is kept as a log remembers; what is older its client has heard of, and sends before anything new.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.model.names import MAX_TOPIC_NAME
from ottla.records.batch import BatchHeader
from ottla.storage.refused import MOST

MOST_EARLY = 1_000
"""Producers of whom batches are remembered, in each partition: any number may come."""


class EarlyBatches:
    """The batches that one broker has refused like that."""

    def __init__(self) -> None:
        # By the topic's name or id, partition and producer; then by epoch and sequence, in the
        # order they last came in: over connections that its client has closed one may come again.
        self._batches: dict[tuple[str | bytes, int, int], dict[tuple[int, int], BatchHeader]] = {}

    def note(self, topic: str | bytes, index: int, header: BatchHeader) -> None:
        """A batch was refused whose partition is not here, which may be for a moment."""
        if header.producer_id < 0 or len(topic) > MAX_TOPIC_NAME:
            return
        key = topic, index, header.producer_id
        known = self._batches.pop(key, None)
        if len(self._batches) >= MOST_EARLY:
            del self._batches[next(iter(self._batches))]
        self._batches[key] = known = {} if known is None else known
        batch = header.producer_epoch, header.base_sequence
        known.pop(batch, None)
        if len(known) >= MOST:
            del known[next(iter(known))]
        known[batch] = header

    def take(self, names: Iterable[str | bytes], index: int) -> list[BatchHeader]:
        """Those of a partition that is here now, in the order they came in; they are forgotten."""
        names = frozenset(names)
        keys = [key for key in self._batches if key[1] == index and key[0] in names]
        return [header for key in keys for header in self._batches.pop(key).values()]
