"""The clients that push metrics, and what they pushed last.

A client asks what it is to push, gets an id if it has none, and pushes at an interval. Who asks or
pushes earlier than that is refused, as in Kafka, so nobody makes this broker read more than was
wanted. What came is kept until the client has been silent for three intervals, a gauge only until
the push that does not have it. It is shown with the broker's own metrics:
`org.apache.kafka.producer.connection.creation.total` of a client is the counter
`client_org_apache_kafka_producer_connection_creation_total`, with the client as labels and the
attributes of the number as more of them.

Strangers decide what comes, so everything has a bound: clients, series of a client and of all,
names, attributes, lengths. A series with long texts counts as several. What is beyond is counted
and left out.

No I/O: the clock is handed in.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from ottla.config.declare import NOTHING, Texts
from ottla.errors import ErrorCode, KafkaError
from ottla.runtime.clock import Clock
from ottla.runtime.metrics import Reading
from ottla.telemetry.otlp import Point
from ottla.telemetry.subscriptions import Subscription, Wanted, prepared, wanted_of

NO_ID = bytes(16)
MOST_CLIENTS = 10_000
MOST_SERIES = 20_000
MOST_OF_A_CLIENT = 500
MOST_NAMES = 5_000
MOST_LABELS = 16
LONGEST_LABEL = 200
TEXT_OF_ONE = 200
SILENT_MS = 60_000
SMALL_BYTES = 16_384
MOST_LARGE = 8
TURN = 256
STEP = 32

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_RESERVED = ("_total", "_created")
_OWN_LABELS = ("client_id", "client_instance_id")
_HELP = "Pushed by clients (KIP-714)."

Series = tuple[str, str, tuple[tuple[str, str], ...]]
"""A metric's name as it is shown, its kind, and its attributes."""


def _size(series: Series) -> int:
    """As how many series it counts: one for every so many characters."""
    name, _, attributes = series
    return 1 + (len(name) + sum(len(key) + len(text) for key, text in attributes)) // TEXT_OF_ONE


class Numbers:
    """The numbers of one client, and as how many series they count."""

    __slots__ = ("size", "values")

    def __init__(self) -> None:
        self.values: dict[Series, float] = {}
        self.size = 0

    def put(self, series: Series, value: float) -> bool:
        """Take the number, if there is room for it."""
        if series not in self.values:
            size = self.size + _size(series)
            if size > MOST_OF_A_CLIENT:
                return False
            self.size = size
        self.values[series] = value
        return True

    def leave_out(self, unwanted: Callable[[Series], bool]) -> int:
        """Give up what is unwanted; how many these are."""
        found = [series for series in self.values if unwanted(series)]
        for series in found:
            del self.values[series]
            self.size -= _size(series)
        return len(found)

    def shrink(self, size: int) -> int:
        """Give up what was taken last until they count as no more than that; how many these are."""
        count = 0
        while self.size > size:
            series, _ = self.values.popitem()
            self.size -= _size(series)
            count += 1
        return count


class Instance:
    """One client."""

    __slots__ = (
        "error", "expires_ms", "got_ms", "id", "labels", "numbers", "pushed_ms", "terminating",
        "version", "wanted",
    )  # fmt: skip

    def __init__(self, instance_id: bytes, attributes: Mapping[str, str]) -> None:
        self.id = instance_id
        self.labels = tuple(attributes.get(name, "")[:LONGEST_LABEL] for name in _OWN_LABELS)
        # as it was told
        self.wanted = Wanted(0, (), 0)
        self.version = -1
        # what it has asked for and sent
        self.got_ms = self.pushed_ms = float("-inf")
        self.expires_ms = 0.0
        self.error = ErrorCode.NONE
        self.terminating = False
        self.numbers = Numbers()

    def may_get(self, now_ms: float) -> bool:
        """Whether the interval has passed since it last asked or pushed."""
        if now_ms - max(self.got_ms, self.pushed_ms) < self.wanted.interval_ms:
            return False
        self.got_ms = now_ms
        return True

    def may_push(self, now_ms: float) -> bool:
        """Whether the interval has passed since it last pushed, or it has only now asked."""
        if self.got_ms <= self.pushed_ms and now_ms - self.pushed_ms < self.wanted.interval_ms:
            return False
        self.pushed_ms = now_ms
        return True


class Telemetry:
    """All clients of one broker."""

    def __init__(
        self,
        clock: Clock,
        subscriptions: Callable[[], Mapping[str, Texts]],
        new_id: Callable[[], bytes],
        *,
        shown: bool,
    ) -> None:
        self._clock = clock
        self._subscriptions = subscriptions
        self._new_id = new_id
        self._shown = shown  # what clients push is shown somewhere
        self._seen: Mapping[str, Texts] = NOTHING_YET
        self._prepared: tuple[Subscription, ...] = ()
        self._version = 0
        self._clients: OrderedDict[bytes, Instance] = OrderedDict()  # by their last request
        self._kinds: dict[str, str] = {}  # of the names that are shown
        self._series = 0
        self._large = 0  # pushes that are being read
        # counted
        self.throttled = 0
        self.unknown_subscriptions = 0
        self.pushes = 0
        self.failures = 0
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def offered(self) -> bool:
        """Whether clients are told that they can push: where somebody can see it, and wants it.
        Else every client would ask for nothing every five minutes, and librdkafka log that."""
        return self._shown and bool(self._subscriptions())

    # ------------------------------------------------------------------ what clients ask

    def subscribe(self, instance_id: bytes, client: Mapping[str, str]) -> tuple[bytes, Wanted]:
        """What a client is to push, and its id. Raises KafkaError."""
        if instance_id == NO_ID:
            instance_id = self._new_id()
        instance, now_ms = self._instance(instance_id, client), self._now_ms()
        retold = instance.error in (
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )
        if not instance.may_get(now_ms):
            if not retold:
                self.throttled += 1
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            instance.got_ms = now_ms
        instance.error = ErrorCode.NONE
        return instance_id, instance.wanted

    def admit(
        self,
        instance_id: bytes,
        client: Mapping[str, str],
        subscription_id: int,
        *,
        terminating: bool,
    ) -> Instance:
        """The client whose push may be read. Raises KafkaError."""
        if instance_id[:15] == NO_ID[:15] and instance_id[15] <= 1:  # Kafka's reserved ids
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        instance = self._instance(instance_id, client)
        ended, instance.terminating = instance.terminating, terminating
        if ended:
            raise self.failed(instance, ErrorCode.INVALID_REQUEST)
        if not instance.may_push(self._now_ms()) and not terminating:
            self.throttled += 1
            raise self.failed(instance, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if subscription_id != instance.wanted.id:
            self.unknown_subscriptions += 1
            raise self.failed(instance, ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        instance.error = ErrorCode.NONE
        return instance

    def failed(self, instance: Instance, code: ErrorCode) -> KafkaError:
        """Take note of what the client is told."""
        instance.error = code
        return KafkaError(code)

    @contextmanager
    def reading(self, instance: Instance) -> Iterator[Callable[[int], None]]:
        """While a push is read. Gives what is to be called with each size that it turns out to
        have, and raises KafkaError.

        A hundred bytes can be a megabyte when decompressed, and others are read in between: only a
        few that large are in memory at a time. The others' clients push again after the interval.
        """
        taken = 0

        def of_size(size: int) -> None:
            nonlocal taken
            if taken or size <= SMALL_BYTES:
                return
            if self._large >= MOST_LARGE:
                self.throttled += 1
                raise self.failed(instance, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            taken = 1
            self._large += 1

        try:
            yield of_size
        finally:
            self._large -= taken

    def keep(
        self, instance: Instance, points: Iterable[Point], left_out: int = 0
    ) -> Iterator[None]:
        """What a client has pushed, instead of what it had pushed before; in steps.

        A push has everything that there is to tell. So a gauge that is not in it is gone, as the
        lag of a partition that another consumer has now. What only grows stays as it was.
        """
        self.pushes += 1
        self.left_out += left_out
        fresh = Numbers()
        for number, point in enumerate(points, start=1):
            if not self._put(fresh, point, instance.numbers.values):
                self.left_out += 1
            if number % STEP == 0:
                yield
        for series, value in instance.numbers.values.items():
            if series[1] != "gauge" and series not in fresh.values:
                fresh.put(series, value)
        if self._clients.get(instance.id) is not instance:
            return  # too many others came meanwhile, and it was forgotten
        # In one step: what others do meanwhile counts, too.
        self._series -= instance.numbers.size
        self.left_out += fresh.leave_out(lambda series: not self._may_be_shown(series))
        self.left_out += fresh.shrink(MOST_SERIES - self._series)
        self._series += fresh.size
        instance.numbers = fresh

    def _put(self, fresh: Numbers, point: Point, before: Mapping[Series, float]) -> bool:
        if point.monotonic and not point.value >= 0:
            return False  # nothing that only grows is negative, or no number
        series = (_shown(point.name), "counter" if point.monotonic else "gauge", point.attributes)
        so_far = fresh.values.get(series, before.get(series, 0.0)) if point.delta else 0.0
        return fresh.put(series, so_far + point.value)

    def _may_be_shown(self, series: Series) -> bool:
        """Whether its name is free for it: a name has one kind, as its first series has it."""
        name, kind, _ = series
        if name not in self._kinds and len(self._kinds) >= MOST_NAMES:
            return False
        return self._kinds.setdefault(name, kind) == kind

    def _instance(self, instance_id: bytes, client: Mapping[str, str]) -> Instance:
        """The client, which knows the newest subscriptions from now on."""
        now_ms = self._now_ms()
        subscriptions = self._subscriptions()
        if subscriptions is not self._seen and subscriptions != self._seen:
            self._prepared = tuple(map(prepared, subscriptions.values()))
            self._version += 1
        self._seen = subscriptions
        attributes = {**client, "client_instance_id": shown_id(instance_id)}
        instance = self._clients.get(instance_id)
        if instance is None:
            instance = self._clients[instance_id] = Instance(instance_id, attributes)
            if len(self._clients) > MOST_CLIENTS:
                self._forget(next(iter(self._clients)))
        if instance.version != self._version:
            instance.version = self._version
            instance.wanted = wanted_of(attributes, self._prepared, instance_id)
            instance.got_ms = instance.pushed_ms = float("-inf")  # who has news is told at once
        self._clients.move_to_end(instance_id)
        instance.expires_ms = now_ms + max(SILENT_MS, 3 * instance.wanted.interval_ms)
        return instance

    def _forget(self, instance_id: bytes) -> None:
        self._series -= self._clients.pop(instance_id).numbers.size

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    # ------------------------------------------------------------------ what is shown

    def read(self) -> Iterator[Reading | None]:
        """The newest numbers of all clients that are not silent."""
        self._forget_silent()
        by_name: dict[tuple[str, str], list[tuple[Instance, Mapping[str, str], float]]] = {}
        number = 0
        for instance in list(self._clients.values()):
            for (name, kind, attributes), value in list(instance.numbers.values.items()):
                labels = {_label(key): text for key, text in attributes}
                by_name.setdefault((name, kind), []).append((instance, labels, value))
                number += 1
                if number % TURN == 0:
                    yield None
        for (name, kind), rows in sorted(by_name.items(), key=lambda one: one[0]):
            yield from _readings(name, kind, rows)

    def _forget_silent(self) -> None:
        now_ms = self._now_ms()
        silent = [key for key, one in self._clients.items() if one.expires_ms < now_ms]
        for instance_id in silent:
            self._forget(instance_id)
        if silent:  # a name is free for another kind once nobody has it any more
            clients = self._clients.values()
            self._kinds = {name: kind for one in clients for name, kind, _ in one.numbers.values}


def _readings(
    name: str, kind: str, rows: Iterable[tuple[Instance, Mapping[str, str], float]]
) -> Iterator[Reading | None]:
    """One reading, with turns for others before it."""
    found: dict[str, None] = {}
    for number, (_, labels, _) in enumerate(rows, start=1):
        if len(found) < MOST_LABELS:
            found.update(dict.fromkeys(labels))
        if number % TURN == 0:
            yield None
    names = tuple(found)[:MOST_LABELS]
    series: dict[tuple[str, ...], float] = {}
    for number, (instance, labels, value) in enumerate(rows, start=1):
        series[*instance.labels, *(labels.get(label, "") for label in names)] = value
        if number % TURN == 0:
            yield None
    shown = f"{name}_total" if kind == "counter" else name
    yield Reading(shown, _HELP, kind, (*_OWN_LABELS, *names), tuple(series.items()))
    yield None


def _shown(pushed: str) -> str:
    """The name under which a metric is shown."""
    name = "client_" + _NOT_IN_NAMES.sub("_", pushed)
    while name.endswith(_RESERVED):  # what OpenMetrics puts behind the name of a counter
        name = name.rpartition("_")[0]
    return name


def _label(key: str) -> str:
    name = _NOT_IN_NAMES.sub("_", key)
    return f"attribute_{name}" if not name[:1].isalpha() or name in (*_OWN_LABELS, "le") else name


def shown_id(instance_id: bytes) -> str:
    """An id as Kafka prints it."""
    return urlsafe_b64encode(instance_id).decode().rstrip("=")


NOTHING_YET: Mapping[str, Texts] = {"": NOTHING}
"""What no subscriptions are equal to: the first look at them is a change."""
