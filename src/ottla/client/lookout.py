"""What is asked of brokers besides librdkafka while a consumer waits in vain.

librdkafka says nothing of records that it cannot read, or of a partition that nobody leads, so a
partition that stands still is looked at with requests of our own (`damage`). `Outside` asks, and
waits for the answer. `Lookout` has it asked by a thread, since neither a reader nor Ctrl-C should
wait for a broker that does not answer: what was found is fetched when it is there.

Not done   Where the connection needs TLS or SASL, which `wire` does not speak, nothing is found.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.client.offline import LOGGER as OFFLINE
from ottla.client.settings import LOGGER
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.errors import Damage
    from ottla.client.router import Router
    from ottla.model.ids import TopicPartition

T = TypeVar("T")

# Seconds that a broker has to answer.
_ASK = 5.0
# Seconds after which a look leaves the other partitions for the next one.
_LONGEST = 2.0
# Seconds without a delivery after which somebody looks.
_STALLED = 2.0


class Outside:
    """Asks brokers, where they can be asked."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._servers = str(config["bootstrap.servers"])
        self._plain = str(config.get("security.protocol", "plaintext")).lower() == "plaintext"
        self._group = str(config.get("group.id", ""))
        self._from_start = config.get("auto.offset.reset") == "earliest"

    def examine(self, tp: TopicPartition, offset: int) -> Damage | None:
        """What is wrong with the records at an offset; None when nothing is, or nobody knows."""
        try:
            return self.look(tp, offset)
        except KafkaError as error:
            LOGGER.debug("%s cannot be examined at %d: %s", tp, offset, error)
            return None

    def look(self, tp: TopicPartition, offset: int) -> Damage | None:
        """The same; raises KafkaError when the partition's leader cannot be asked."""
        from ottla.client.damage import examine

        return self._ask(lambda router: examine(router, tp, offset))

    def first_offset(self, tp: TopicPartition, offset: int) -> int | None:
        """The next record that can be read; None when none is, or nobody knows."""
        from ottla.client.damage import first_offset

        try:
            return self._ask(lambda router: first_offset(router, tp, offset))
        except KafkaError as error:
            LOGGER.debug("%s cannot be examined at %d: %s", tp, offset, error)
            return None

    def problems(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KafkaError]:
        """Why partitions cannot be asked, those of them that cannot; as far as anybody knows."""
        from ottla.client.offline import problems

        try:
            return self._ask(lambda router: problems(router, partitions)) or {}
        except KafkaError as error:
            LOGGER.debug("partitions cannot be looked at: %s", error)
            return {}

    def offline_of(self, topics: Iterable[str]) -> dict[TopicPartition, KafkaError]:
        """The partitions of these topics that are offline, as far as anybody knows."""
        from ottla.client.offline import offline_of

        try:
            return self._ask(lambda router: offline_of(router, topics)) or {}
        except KafkaError as error:
            LOGGER.debug("topics cannot be looked at: %s", error)
            return {}

    def position(self, tp: TopicPartition) -> int | None:
        """Where our group begins to read; None when that is at the end. Raises KafkaError."""
        if not self._plain:
            return None
        from ottla.client.groups import Groups
        from ottla.client.topic_offsets import EARLIEST

        with Groups(self._servers, timeout=_ASK) as groups:
            committed = groups.offsets(self._group).get(tp)
            if committed is not None:
                return committed.offset
            if not self._from_start:
                return None
            found = groups.topics.offsets({tp: EARLIEST}).get(tp)
            return None if found is None else found.offset

    def _ask(self, question: Callable[[Router], T]) -> T | None:
        if not self._plain:
            return None
        # Not needed by anybody whose records are whole.
        from ottla.client.router import Router

        with Router(self._servers, timeout=_ASK) as router:
            return question(router)


class Finding(NamedTuple):
    """Damage at the offset that a reader waits for."""

    partition: TopicPartition
    offset: int
    damage: Damage


class Lookout:
    """Has partitions looked at in the background, all of them once for each `begin`."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._thread: threading.Thread | None = None
        self._found: list[Finding] = []
        self._warnings = OfflineWarnings("Trying again")

    @property
    def busy(self) -> bool:
        """Whether a look is under way, or has results that nobody has fetched."""
        return self._thread is not None

    def begin(self, places: Mapping[TopicPartition, int | None]) -> None:
        """Look at these offsets; None is wherever the group begins. Returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._look, args=(dict(places),), name="ottla-lookout", daemon=True
            )
            self._thread.start()

    def fetch(self) -> list[Finding]:
        """What a look has found, once it is over."""
        if self._thread is None or self._thread.is_alive():
            return []
        self._thread = None
        found, self._found = self._found, []
        return found

    def _look(self, places: Mapping[TopicPartition, int | None]) -> None:
        deadline = time.monotonic() + _LONGEST
        offline = self._outside.problems(places)
        self._warnings.warn(offline)
        for tp, given in places.items():
            if tp in offline:
                continue
            if time.monotonic() >= deadline:
                return
            try:
                offset = self._outside.position(tp) if given is None else given
                damage = None if offset is None else self._outside.look(tp, offset)
            except KafkaError as error:
                # A broker that does not answer is no damage: librdkafka goes on trying.
                LOGGER.debug("%s cannot be looked at: %s", tp, error)
                return
            if damage is not None and offset is not None:
                self._found.append(Finding(tp, offset, damage))


class StandStill:
    """Notices that records wait to be sent and none gets through, and warns if that is
    because partitions are offline. Methods return at once."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._warnings = OfflineWarnings("Records for it wait until their time is up")
        self._thread: threading.Thread | None = None
        self._done = -1
        self._since = 0.0

    def look(self, done: int, topics: Iterable[str]) -> None:
        """Called again and again while records wait; `done` is how many are settled by now."""
        now = time.monotonic()
        if done != self._done:
            self._done, self._since = done, now
        elif now - self._since >= _STALLED and (
            self._thread is None or not self._thread.is_alive()
        ):
            self._since = now
            self._thread = threading.Thread(
                target=lambda chosen: self._warnings.warn(self._outside.offline_of(chosen)),
                args=(tuple(topics),),
                name="ottla-lookout",
                daemon=True,
            )
            self._thread.start()

    def begin_anew(self) -> None:
        """Nothing waits: what comes next has all its time."""
        self._done = -1


class OfflineWarnings:
    """Warns once that a partition is offline, and again when it was online in between."""

    def __init__(self, meanwhile: str) -> None:
        self._meanwhile = meanwhile
        self._known: set[TopicPartition] = set()

    def warn(self, found: Mapping[TopicPartition, KafkaError]) -> None:
        for tp, error in found.items():
            if tp not in self._known and error.code is ErrorCode.LEADER_NOT_AVAILABLE:
                OFFLINE.warning("%s. %s", error.message, self._meanwhile)
        self._known = set(found)
