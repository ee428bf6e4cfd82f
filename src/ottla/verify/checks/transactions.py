"""Transactions: all of one is seen, or nothing, and nothing before it is committed.

Who reads committed records sees a value only if the commit of its transaction was asked for before,
and never if that was aborted, refused or not asked for at all. In the end every transaction whose
commit was acknowledged is there as a whole; where nobody knows, it is there as a whole or not at
all. Everybody who read on the way saw what is there in the end, without a gap.

Transaction version 1 has flaws that no broker can mend: a request for an end that is late may end
the next transaction of the same epoch. What that leads to is called by the same names with `v1-`
in front, where an earlier end under the same epoch was never answered, and is no anomaly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.checks.appends import (
    DUPLICATE,
    FORGOTTEN,
    INCONSISTENT,
    LOST,
    MISPLACED,
    PHANTOM,
    REFUSED,
)
from ottla.verify.checks.reads import NO_POSITION, REWOUND, SKIPPED
from ottla.verify.checks.txn_book import Book, Place, Send, Transaction, name_of, read_values
from ottla.verify.history import Event

ABORTED_READ = "G1a"
UNCOMMITTED_READ = "uncommitted-read"
TORN = "torn-transaction"
SKIPPED_INSIDE = "int-poll-skip"
REWOUND_INSIDE = "int-nonmonotonic-poll"
VERSION_ONE = "v1-"

_OUT_OF_SEQUENCE = ("OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID")


@dataclass(slots=True)
class _Poll:
    """What somebody has read at once."""

    event: int
    client: str
    begin: int
    end: int
    offsets: tuple[int, int] | None  # the first and the last with a value
    count: int
    transaction: int | None


@dataclass(slots=True)
class _Log:
    """What is known of a partition: at every level, which value was seen at an offset."""

    known: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset: value, event
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # by readers of committed ones
    polls: dict[str, list[_Poll]] = field(default_factory=lambda: {"all": [], "committed": []})
    final: dict[str, dict[int, int]] = field(default_factory=lambda: {"all": {}, "committed": {}})
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)  # level: offset, event
    keyed: bool = False  # compaction removes some of it


class Transactions(Check):
    """Checks 3, 4 and 6 of the harness, in transactional topics."""

    promises: ClassVar[Mapping[str, str]] = {
        ABORTED_READ: "what was aborted, or never committed, is not seen by who reads committed "
        "records",
        UNCOMMITTED_READ: "nothing of a transaction is seen before its commit was asked for",
        TORN: "a transaction is there as a whole, in all its partitions, or not at all",
        SKIPPED_INSIDE: "within one poll, or one transaction, no record is skipped",
        REWOUND_INSIDE: "within one poll, or one transaction, offsets only grow",
    }

    def __init__(self) -> None:
        self._book = Book()
        self._logs: dict[Place, _Log] = defaultdict(_Log)
        self._flagged: set[int] = set()  # transactions with an anomaly, by identity

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if not event.action.startswith("txn-"):
            return ()
        send = self._book.underway(event.client)
        self._book.feed(event)
        if event.action == "txn-send" and event.phase != "invoke" and send is not None:
            return self._sent(event, send)
        if event.action == "txn-read":
            return self._read(event)
        if event.action == "txn-final" and event.phase == "ok":
            log = self._logs[event.data["topic"], event.data["p"]]
            log.ends[event.data["level"]] = event.data["end"], event.number
            log.keyed = event.data.get("keyed", False)
        return ()

    def finish(self) -> Iterable[Anomaly]:
        for transaction in self._book.transactions.values():
            yield from self._judge(transaction)
        for place, log in sorted(self._logs.items()):
            yield from self._aborted_reads(place, log)
            yield from self._duplicates(place, log)
            yield from self._refused(place, log)
            if not log.keyed:
                yield from self._losses(place, log)
                for level in log.ends:
                    yield from self._polls(place, log, level)

    # ------------------------------------------------------------------ sends and reads

    def _sent(self, event: Event, send: Send) -> Iterator[Anomaly]:
        error = event.data.get("error")
        if error in _OUT_OF_SEQUENCE:
            yield Anomaly(
                FORGOTTEN,
                f"{_shown(send.place)}: {event.client}, all of whose batches were acknowledged, is "
                f"told {error}",
                (send.event, event.number),
            )
        if send.offset >= 0:
            for index, value in enumerate(send.values):
                yield from self._observe(send.place, send.offset + index, value, event.number)

    def _read(self, event: Event) -> Iterator[Anomaly]:
        place = event.data["topic"], event.data["p"]
        position = event.data["from"]
        if event.phase == "fail":
            yield Anomaly(
                NO_POSITION,
                f"{event.client} has read {_shown(place)} up to {position}, and is told "
                f"{event.data.get('error', 'that it cannot go on')}",
                (event.number,),
            )
            return
        log, level = self._logs[place], event.data["level"]
        final = log.final[level] if event.client == "final" else None
        offsets: list[int] = []
        for offset, value in read_values(event):
            if offset < position:
                name = REWOUND_INSIDE if offsets else REWOUND
                yield Anomaly(
                    name,
                    f"{event.client} got offset {offset} of {_shown(place)} where {position} was "
                    "next",
                    (event.number,),
                )
            position = offset + 1
            offsets.append(offset)
            yield from self._observe(place, offset, value, event.number)
            if level == "committed" and offset not in log.seen:
                log.seen[offset] = value, event.number
                yield from self._uncommitted(place, offset, value, event)
            if final is not None:
                final[offset] = value
        log.polls[level].append(
            _Poll(
                event.number,
                event.client,
                event.data["from"],
                event.data["next"],
                (offsets[0], offsets[-1]) if offsets else None,
                len(offsets),
                event.data.get("txn"),
            )
        )

    def _observe(self, place: Place, offset: int, value: int, event: int) -> Iterator[Anomaly]:
        known = self._logs[place].known
        before = known.get(offset)
        if before is None:
            known[offset] = value, event
            sends = self._book.of(place[0], value)
            if not sends:
                yield Anomaly(
                    PHANTOM,
                    f"{_shown(place)} has value {name_of(value)} at offset {offset}, which nobody "
                    "has sent",
                    (event,),
                )
            elif all(send.place != place for send in sends):
                yield Anomaly(
                    MISPLACED,
                    f"{_shown(place)} has value {name_of(value)} at offset {offset}, which was "
                    f"sent to {_shown(sends[0].place)}",
                    (sends[0].event, event),
                )
        elif before[0] != value:
            yield Anomaly(
                INCONSISTENT,
                f"offset {offset} of {_shown(place)} is value {name_of(before[0])}, and then value "
                f"{name_of(value)}",
                (before[1], event),
            )

    def _uncommitted(
        self, place: Place, offset: int, value: int, event: Event
    ) -> Iterator[Anomaly]:
        """Seen before anybody asked for the commit."""
        sends = self._book.of(place[0], value)
        open_ones = [send.transaction for send in sends if send.transaction is not None]
        if len(open_ones) < len(sends) or any(each.asked for each in open_ones) or not sends:
            return
        last = open_ones[-1]
        if id(last) in self._flagged:
            return
        self._flagged.add(id(last))
        if last.state == "aborted":
            yield self._aborted_read(last, sends[-1], place, offset, value, event.number)
        else:
            yield self._anomaly(
                UNCOMMITTED_READ, last,
                f"value {name_of(value)} at offset {offset} of {_shown(place)} was read by "
                f"{event.client} while {last} was open",
                (sends[-1].event, event.number),
            )  # fmt: skip

    # ------------------------------------------------------------------ in the end

    def _judge(self, transaction: Transaction) -> Iterator[Anomaly]:
        """Whether a transaction is there as it should be."""
        sends = [send for send in transaction.sends if self._is_judged(send.place)]
        if not sends or len(sends) < len(transaction.sends) or not transaction.may_be_seen:
            return
        there = [send for send in sends if self._is_there(send)]
        missing = [send for send in sends if send not in there]
        if not missing or (transaction.state != "committed" and not there):
            return
        events = (missing[0].event, transaction.event, self._end_event(missing[0].place))
        what = (
            f"value {name_of(missing[0].values[0])}, sent to {_shown(missing[0].place)} in "
            f"{transaction},"
        )
        if there:
            yield self._anomaly(
                TORN, transaction,
                f"{what} is not there in the end, and value {name_of(there[0].values[0])} of "
                f"{_shown(there[0].place)} is",
                (there[0].event, *events),
            )  # fmt: skip
        else:
            yield self._anomaly(
                LOST, transaction, f"{what} was committed, and is not there", events
            )

    def _is_judged(self, place: Place) -> bool:
        log = self._logs[place]
        return "committed" in log.ends and not log.keyed

    def _end_event(self, place: Place) -> int:
        return self._logs[place].ends["committed"][1]

    def _is_there(self, send: Send) -> bool:
        """Whether readers of committed records get all of this batch in the end."""
        final = self._logs[send.place].final["committed"]
        if send.offset >= 0:
            return all(
                final.get(send.offset + index) == value for index, value in enumerate(send.values)
            )
        claimed = {
            other.offset + other.values.index(value)
            for value in send.values
            for other in self._book.of(send.place[0], value)
            if other is not send and other.offset >= 0 and other.place == send.place
        }
        found = {value for offset, value in final.items() if offset not in claimed}
        return found.issuperset(send.values)

    def _aborted_reads(self, place: Place, log: _Log) -> Iterator[Anomaly]:
        """Values that somebody has seen of transactions that were never committed."""
        for offset, (value, event) in sorted(log.seen.items()):
            sends = [
                send
                for send in self._book.of(place[0], value)
                if send.offset < 0 or send.offset + send.values.index(value) == offset
            ]
            owners = [send.transaction for send in sends]
            if not owners or any(each is None or each.may_be_seen for each in owners):
                continue
            owner = owners[-1]
            assert owner is not None
            if id(owner) not in self._flagged:
                self._flagged.add(id(owner))
                yield self._aborted_read(owner, sends[-1], place, offset, value, event)

    def _aborted_read(
        self, owner: Transaction, send: Send, place: Place, offset: int, value: int, event: int
    ) -> Anomaly:
        ended = () if owner.event == send.event else (owner.event,)
        how = "was aborted" if owner.state == "aborted" else "was never committed"
        return self._anomaly(
            ABORTED_READ, owner,
            f"value {name_of(value)} at offset {offset} of {_shown(place)} was read, and {owner} "
            f"{how}",
            (send.event, *ended, event),
        )  # fmt: skip

    def _duplicates(self, place: Place, log: _Log) -> Iterator[Anomaly]:
        """A value is there at most as often as it was sent."""
        places: dict[int, list[int]] = {}
        for offset, (value, _) in sorted(log.known.items()):
            places.setdefault(value, []).append(offset)
        for value, offsets in places.items():
            sent = [send for send in self._book.of(place[0], value) if send.place == place]
            if len(offsets) > len(sent) > 0:
                events = tuple(log.known[offset][1] for offset in offsets[: len(sent) + 1])
                yield Anomaly(
                    DUPLICATE,
                    f"value {name_of(value)} is at offsets {', '.join(map(str, offsets))} of "
                    f"{_shown(place)}, and was sent {len(sent)} times",
                    events,
                )

    def _refused(self, place: Place, log: _Log) -> Iterator[Anomaly]:
        """What is there although it was refused, as often as it was sent."""
        for offset, (value, event) in sorted(log.known.items()):
            sent = [send for send in self._book.of(place[0], value) if send.place == place]
            if sent and all(send.refused for send in sent):
                yield Anomaly(
                    REFUSED,
                    f"value {name_of(value)} was refused, and is at offset {offset} of "
                    f"{_shown(place)}",
                    (sent[-1].refused, event),
                )

    def _losses(self, place: Place, log: _Log) -> Iterator[Anomaly]:
        """What was acknowledged or read, and is not there in the end, whatever became of its
        transaction."""
        for level, known in (("all", log.known), ("committed", log.seen)):
            if level not in log.ends:
                continue
            end, last = log.ends[level]
            final = log.final[level]
            shown = 0
            for offset, (value, event) in sorted(known.items()):
                if final.get(offset) != value and event != shown:
                    shown = event
                    yield Anomaly(
                        LOST,
                        f"value {name_of(value)} was at offset {offset} of {_shown(place)}, and in "
                        f"the end it is not, for who reads {level} records up to {end}",
                        (event, last),
                    )

    def _polls(self, place: Place, log: _Log, level: str) -> Iterator[Anomaly]:
        """Everybody got what is there, from where he read to where he came."""
        offsets = sorted(log.final[level])
        end = log.ends[level][0]
        before: dict[str, _Poll] = {}
        for poll in log.polls[level]:
            last, before[poll.client] = before.get(poll.client), poll
            if poll.end > end:
                continue
            expected = _between(offsets, poll.begin, poll.end)
            if poll.count >= expected:
                continue
            inside = poll.offsets is not None and (
                _between(offsets, poll.offsets[0], poll.offsets[1] + 1) > poll.count
            )
            together = last is not None and last.transaction == poll.transaction is not None
            yield Anomaly(
                SKIPPED_INSIDE if inside or together else SKIPPED,
                f"{poll.client} read {_shown(place)} from {poll.begin} to {poll.end} and got "
                f"{poll.count} of {expected} values",
                (poll.event,) if last is None or inside else (last.event, poll.event),
            )

    def _anomaly(
        self, name: str, transaction: Transaction, text: str, events: tuple[int, ...]
    ) -> Anomaly:
        prefix = VERSION_ONE if transaction.excused else ""
        return Anomaly(prefix + name, text, tuple(sorted({*events})))


def _between(offsets: list[int], begin: int, end: int) -> int:
    return bisect_left(offsets, end) - bisect_left(offsets, begin)


def _shown(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
