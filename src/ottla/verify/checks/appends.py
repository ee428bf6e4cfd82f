"""Appends: every partition is one log, to which each value is appended once, in real-time order.

What acknowledgements and reads tell of a partition is put into one map from offsets to values. It
must be a function (two values at one offset: the log was cut and written anew), every value must be
at one place (else it was stored twice), and who sends after an acknowledgement gets a higher
offset than was acknowledged. After the run everything is read once more (client `final`), and
every acknowledged value must be there.

With ten million records an event per value would not do: a run of values is compared at once, and
what is known is kept in arrays of numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.history import Event

INCONSISTENT = "inconsistent-offset"
OUT_OF_ORDER = "out-of-order-append"
LOST = "lost-write"
DUPLICATE = "duplicate"
REFUSED = "refused-write-stored"
PHANTOM = "phantom-value"
MISPLACED = "wrong-partition"
FORGOTTEN = "sequence-refused"

_NONE = -1
_OUT_OF_SEQUENCE = ("OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID")
_PLACE_BITS = 44  # of an offset, in a place


@dataclass(slots=True)
class _Send:
    """A send that has not ended, or not well."""

    event: int
    partition: int
    writer: int
    first: int
    count: int
    floor: int  # an offset that was acknowledged before
    floor_event: int


@dataclass(slots=True)
class _Partition:
    values: array[int] = field(default_factory=lambda: array("q"))
    events: array[int] = field(default_factory=lambda: array("q"))  # that told of the value first
    final: int = 0  # everything below was read in the end
    finished: int | None = None  # event that says so
    asked: int | None = None  # everything below was told when it was asked for the end
    floor: int = _NONE  # highest offset that was acknowledged
    floor_event: int = 0


@dataclass(slots=True)
class _Writer:
    places: array[int] = field(default_factory=lambda: array("q"))
    """By the value's number; `~partition` of one that was sent there, and was seen nowhere yet."""
    sent: int = 0


class Appends(Check):
    """Checks 1, 2 and 3 of the harness."""

    promises: ClassVar[Mapping[str, str]] = {
        INCONSISTENT: "an offset holds the same value for everybody, always",
        OUT_OF_ORDER: "who sends after an acknowledgement gets a higher offset",
        LOST: "what was acknowledged is there in the end",
        DUPLICATE: "a value is stored once, however often its request was sent",
        REFUSED: "what was refused is not stored",
        PHANTOM: "what is stored was sent",
        MISPLACED: "a value is in the partition that it was sent to",
        FORGOTTEN: "an idempotent producer's next batch is accepted after the one before it was",
    }

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self._writers: dict[int, _Writer] = {}
        self._underway: dict[str, _Send] = {}
        self._refused: dict[tuple[int, int], int] = {}  # writer and number: event
        self._acknowledged: list[tuple[int, int, int, int, int]] = []
        """Event, partition, writer, first and count, of those whose offset was not told."""

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "send":
            return self._sent(event)
        if event.action == "read" and event.phase == "ok":
            return self._read(event)
        if event.action == "end" and event.phase == "invoke":
            partition = self._partition(event.data["p"])
            partition.asked = len(partition.values)
        elif event.action == "end" and event.phase == "ok":
            partition = self._partition(event.data["p"])
            partition.final, partition.finished = event.data["end"], event.number
        return ()

    def finish(self) -> Iterable[Anomaly]:
        """Which acknowledged values were not there in the end."""
        for number, partition in sorted(self._partitions.items()):
            if partition.finished is not None and len(partition.values) > partition.final:
                yield from self._beyond(number, partition)
        for event, number, writer, first, count in self._acknowledged:
            if self._partition(number).finished is None:
                continue
            places = self._writer(writer).places
            for value in range(first, first + count):
                if places[value] < 0:
                    yield Anomaly(
                        LOST,
                        f"value {writer}.{value} was acknowledged, and partition {number} has it "
                        "nowhere",
                        (event,),
                    )
                    break

    # ------------------------------------------------------------------ sends

    def _sent(self, event: Event) -> Iterator[Anomaly]:
        data = event.data
        if event.phase == "invoke":
            number, writer, first, count = data["p"], data["writer"], data["first"], data["count"]
            partition = self._partition(number)
            of_writer = self._writer(writer)
            of_writer.sent = max(of_writer.sent, first + count)
            missing = of_writer.sent - len(of_writer.places)
            of_writer.places.extend([~number] * missing)
            self._underway[event.client] = _Send(
                event.number, number, writer, first, count, partition.floor, partition.floor_event
            )
            return
        send = self._underway.pop(event.client)
        if data.get("error") in _OUT_OF_SEQUENCE:
            yield Anomaly(
                FORGOTTEN,
                f"partition {send.partition}: {event.client}, all of whose batches were "
                f"acknowledged, is told {data['error']}",
                (send.event, event.number),
            )
        if event.phase == "fail":
            yield from self._refuse(send, event.number)
        elif event.phase == "ok":
            offset = data.get("offset", _NONE)
            if offset < 0:
                self._acknowledged.append(
                    (event.number, send.partition, send.writer, send.first, send.count)
                )
                return
            if offset <= send.floor:
                yield Anomaly(
                    OUT_OF_ORDER,
                    f"partition {send.partition}: offset {send.floor} was acknowledged before "
                    f"value {send.writer}.{send.first} was sent, which got offset {offset}",
                    (send.floor_event, send.event, event.number),
                )
            partition = self._partition(send.partition)
            if offset + send.count - 1 > partition.floor:
                partition.floor = offset + send.count - 1
                partition.floor_event = event.number
            yield from self._observe(
                event.number, send.partition, offset, send.writer, send.first, send.count
            )

    def _refuse(self, send: _Send, event: int) -> Iterator[Anomaly]:
        places = self._writer(send.writer).places
        for value in range(send.first, send.first + send.count):
            self._refused[send.writer, value] = event
            if places[value] >= 0:
                number, offset = _split(places[value])
                yield self._stored_though_refused(send.writer, value, number, offset, event)

    def _stored_though_refused(
        self, writer: int, value: int, number: int, offset: int, refusal: int
    ) -> Anomaly:
        return Anomaly(
            REFUSED,
            f"value {writer}.{value} was refused, and is at offset {offset} of partition {number}",
            (refusal, self._partitions[number].events[offset]),
        )

    # ------------------------------------------------------------------ reads

    def _read(self, event: Event) -> Iterator[Anomaly]:
        number = event.data["p"]
        for offset, writer, first, count in event.data["runs"]:
            yield from self._observe(event.number, number, offset, writer, first, count)

    def _observe(
        self, event: int, number: int, offset: int, writer: int, first: int, count: int
    ) -> Iterator[Anomaly]:
        """Values `first` and following are at `offset` and following."""
        of_writer = self._writers.get(writer)
        if of_writer is None or first + count > of_writer.sent or first < 0:
            yield Anomaly(
                PHANTOM,
                f"partition {number} has value {writer}.{first + count - 1} at offset "
                f"{offset + count - 1}, which nobody has sent",
                (event,),
            )
            return
        partition = self._partition(number)
        values, events = partition.values, partition.events
        end = offset + count
        if end > len(values):
            missing = end - len(values)
            values.extend([_NONE] * missing)
            events.extend([0] * missing)
        value = _value(writer, first)
        expected = array("q", range(value, value + count))
        if values[offset:end] == expected:
            return
        places = of_writer.places
        for index in range(count):
            at, here = offset + index, value + index
            if values[at] == here:
                continue
            if values[at] != _NONE:
                before = values[at]
                yield Anomaly(
                    INCONSISTENT,
                    f"offset {at} of partition {number} is value {_name(before)}, "
                    f"and then value {_name(here)}",
                    (events[at], event),
                )
                return  # the rest of the run says the same
            values[at], events[at] = here, event
            yield from self._place(event, number, at, writer, first + index, places)

    def _place(
        self, event: int, number: int, at: int, writer: int, value: int, places: array[int]
    ) -> Iterator[Anomaly]:
        if places[value] >= 0:
            other, offset = _split(places[value])
            yield Anomaly(
                DUPLICATE,
                f"value {writer}.{value} is at offset {offset} of partition {other} "
                f"and at offset {at} of partition {number}",
                (self._partitions[other].events[offset], event),
            )
            return
        if places[value] != ~number:
            yield Anomaly(
                MISPLACED,
                f"value {writer}.{value} was sent to partition {~places[value]}, and is at offset "
                f"{at} of partition {number}",
                (event,),
            )
        places[value] = number << _PLACE_BITS | at
        if self._refused:
            refusal = self._refused.get((writer, value))
            if refusal is not None:
                yield self._stored_though_refused(writer, value, number, at, refusal)

    def _beyond(self, number: int, partition: _Partition) -> Iterator[Anomaly]:
        """Values behind the end at which the log was found in the end. A request whose outcome
        nobody knew may come later still: what was told after the end was asked for says nothing."""
        shown = 0
        told = len(partition.values) if partition.asked is None else partition.asked
        for offset in range(partition.final, told):
            if partition.values[offset] != _NONE and partition.events[offset] != shown:
                shown = partition.events[offset]
                assert partition.finished is not None
                yield Anomaly(
                    LOST,
                    f"value {_name(partition.values[offset])} was at offset {offset} of partition "
                    f"{number}, and in the end the log ends at {partition.final}",
                    (shown, partition.finished),
                )

    # ------------------------------------------------------------------ inside

    def _partition(self, number: int) -> _Partition:
        found = self._partitions.get(number)
        if found is None:
            found = self._partitions[number] = _Partition()
        return found

    def _writer(self, number: int) -> _Writer:
        found = self._writers.get(number)
        if found is None:
            found = self._writers[number] = _Writer()
        return found


def _value(writer: int, number: int) -> int:
    return writer << 40 | number


def _name(value: int) -> str:
    return f"{value >> 40}.{value & (1 << 40) - 1}"


def _split(place: int) -> tuple[int, int]:
    return place >> _PLACE_BITS, place & (1 << _PLACE_BITS) - 1
