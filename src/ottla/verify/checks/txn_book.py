"""What a history tells of transactions: who sent which value in which one, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ottla.verify.history import Event

State = Literal["open", "committing", "committed", "aborted", "unknown"]
"""`committing` was asked for and not answered yet, or never; `aborted` was never to be committed,
or was refused; `unknown` was to be committed, and nobody knows."""

Place = tuple[str, int]
"""Topic and partition."""


def value_of(writer: int, number: int) -> int:
    """A value as one number."""
    return writer << 40 | number


def name_of(value: int) -> str:
    return f"{value >> 40}.{value & (1 << 40) - 1}"


@dataclass(slots=True)
class Transaction:
    """One transaction of one instance of a producer."""

    client: str
    number: int
    version: int
    identity: tuple[str | None, int, int]  # transactional id, producer id, epoch
    state: State = "open"
    sends: list[Send] = field(default_factory=list)
    event: int = 0  # the last one about its end, or else about itself
    asked: int = 0  # the event that asked for its commit
    excused: bool = False
    """Version 1, and an end of an earlier transaction under the same epoch was never answered: that
    request may have ended this one."""

    @property
    def may_be_seen(self) -> bool:
        return self.state in ("committing", "committed", "unknown")

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.client}"


@dataclass(slots=True)
class Send:
    """One batch. Without a transaction it counts by itself."""

    event: int
    place: Place
    values: list[int]
    transaction: Transaction | None
    acknowledged: int = 0  # the event
    refused: int = 0  # the event
    offset: int = -1


class Book:
    """Everything that producers have done. `feed` takes events in their order."""

    def __init__(self) -> None:
        self.transactions: dict[tuple[str, int], Transaction] = {}
        self.sends: dict[str, dict[int, list[Send]]] = {}
        """By topic and value."""
        self._versions: dict[str, tuple[int, str | None]] = {}  # of instances
        self._sending: dict[str, Send] = {}
        self._ending: dict[str, tuple[Transaction, bool]] = {}
        self._doubtful: dict[tuple[str | None, int, int], tuple[str, int]] = {}

    def feed(self, event: Event) -> None:
        if event.action == "txn-init" and event.phase == "invoke":
            self._versions[event.client] = event.data.get("v", 2), event.data.get("id")
        elif event.action == "txn-send":
            self._send(event)
        elif event.action == "txn-end":
            self._end(event)

    def of(self, topic: str, value: int) -> list[Send]:
        """Every batch with this value."""
        return self.sends.get(topic, {}).get(value, [])

    def underway(self, client: str) -> Send | None:
        return self._sending.get(client)

    def _send(self, event: Event) -> None:
        data = event.data
        if event.phase == "invoke":
            place = data["topic"], data["p"]
            values = list(flat(data["values"]))
            transaction = None
            if data.get("txn") is not None:
                transaction = self._transaction(event)
            send = Send(event.number, place, values, transaction)
            if transaction is not None:
                transaction.sends.append(send)
            self._sending[event.client] = send
            of_topic = self.sends.setdefault(place[0], {})
            for value in values:
                of_topic.setdefault(value, []).append(send)
            return
        send = self._sending.pop(event.client)
        if event.phase == "ok":
            send.acknowledged, send.offset = event.number, data.get("offset", -1)
        elif event.phase == "fail":
            send.refused = event.number

    def _end(self, event: Event) -> None:
        if event.phase == "invoke":
            transaction = self._transaction(event)
            commit = event.data["commit"]
            transaction.state = "committing" if commit else "aborted"
            transaction.event = event.number
            if commit:
                transaction.asked = event.number
            self._ending[event.client] = transaction, commit
            return
        transaction, commit = self._ending.pop(event.client)
        transaction.event = event.number
        if commit:
            outcomes: dict[str, State] = {"ok": "committed", "fail": "aborted"}
            transaction.state = outcomes.get(event.phase, "unknown")
        if event.data.get("lost") and transaction.version == 1:
            self._doubtful.setdefault(
                transaction.identity, (transaction.client, transaction.number)
            )

    def _transaction(self, event: Event) -> Transaction:
        key = event.client, event.data["txn"]
        found = self.transactions.get(key)
        if found is None:
            version, name = self._versions.get(event.client, (2, event.data.get("id")))
            identity = name, event.data.get("pid", -1), event.data.get("epoch", -1)
            found = Transaction(event.client, event.data["txn"], version, identity)
            found.event = event.number
            before = self._doubtful.get(identity)
            found.excused = before is not None and before != key
            self.transactions[key] = found
        return found


def flat(values: list[list[int]]) -> Iterator[int]:
    """The values of runs `[writer, first, count]`."""
    for writer, first, count in values:
        first_value = value_of(writer, first)
        yield from range(first_value, first_value + count)


def read_values(event: Event) -> Iterator[tuple[int, int]]:
    """Offset and value of everything that was read."""
    for offset, writer, first, count in event.data["runs"]:
        value = value_of(writer, first)
        for index in range(count):
            yield offset + index, value + index
