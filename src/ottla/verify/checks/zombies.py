"""Zombies: who has the transactional id now has fenced everybody who had it before.

An instance that begins to initialise when another one has done so is the later one. From the moment
it is told its identity, nothing that an earlier one then begins can succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.history import Event

NOT_FENCED = "zombie-not-fenced"

_REQUESTS = {
    "txn-send": "sent a batch",
    "txn-end": "ended a transaction",
    "txn-offsets": "committed offsets",
}


@dataclass(slots=True)
class _Init:
    client: str
    invoked: int
    done: int = 0


class Zombies(Check):
    """Check 8 of the harness."""

    promises: ClassVar[Mapping[str, str]] = {
        NOT_FENCED: "a producer that another one has replaced can write and commit nothing more",
    }

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}  # of instances
        self._initialising: dict[str, _Init] = {}
        self._latest: dict[str, _Init] = {}  # by transactional id
        self._own: dict[str, int] = {}  # by instance: when its last initialisation was done
        self._stale: dict[str, tuple[int, _Init]] = {}  # by instance: a request that must fail

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "txn-init":
            self._init(event)
        elif event.action in _REQUESTS:
            return self._request(event)
        return ()

    def _init(self, event: Event) -> None:
        if event.phase == "invoke":
            name = event.data.get("id")
            if name is not None:
                self._ids[event.client] = name
                self._initialising[event.client] = _Init(event.client, event.number)
            return
        init = self._initialising.pop(event.client, None)
        if init is None or event.phase != "ok":
            return
        init.done = event.number
        self._own[event.client] = event.number
        name = self._ids[event.client]
        latest = self._latest.get(name)
        if latest is None or init.invoked > latest.invoked:
            self._latest[name] = init

    def _request(self, event: Event) -> Iterator[Anomaly]:
        name = self._ids.get(event.client)
        if name is None:
            return
        if event.phase == "invoke":
            latest = self._latest.get(name)
            self._stale.pop(event.client, None)
            if (
                latest is not None
                and latest.client != event.client
                and latest.invoked > self._own.get(event.client, 0)
            ):
                self._stale[event.client] = event.number, latest
            return
        stale = self._stale.pop(event.client, None)
        if stale is not None and event.phase == "ok":
            invoked, latest = stale
            yield Anomaly(
                NOT_FENCED,
                f"{event.client} {_REQUESTS[event.action]}, though {latest.client} had taken over "
                f"{name} before",
                (self._own.get(event.client, 0), latest.done, invoked, event.number)
                if event.client in self._own
                else (latest.done, invoked, event.number),
            )
