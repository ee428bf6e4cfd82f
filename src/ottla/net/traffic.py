"""When the loop stays awake for the next request, and when answers are sent together.

Two rules, both about what it costs to wake a process that sleeps. They look at nothing but who was
answered when, and know no sockets.

Spinning  A process that sleeps takes tens of microseconds to be woken, more than answering a small
          request takes. So while one client sends its requests one by one, each as soon as it has
          its answer, the loop looks again for `SPIN_SECONDS` instead of going to sleep. Several
          busy clients keep the loop awake anyway, and a quiet broker uses no processor.
Crowds    On one machine `send(2)` to a client that sleeps takes three times as long as to one that
          is awake. So when `CROWD` clients or more were answered within `COUNT_SECONDS`, and the
          last of them less than `CROWD_SECONDS` ago, an answer to another client is gathered: it
          leaves with those of others when the loop's turn ends, or when there are `TOGETHER` of
          them. A few clients are better off when each can go on while the next is being served.
          (ADR 16 has the figures.)
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol

SPIN_SECONDS = 200e-6
CROWD = 8
COUNT_SECONDS = 1e-3
CROWD_SECONDS = 100e-6
TOGETHER = 32


class Client(Protocol):
    """A connection, as far as these rules go."""

    def send_gathered(self) -> None:
        """Send the answers that were kept back."""
        ...


class Traffic:
    """The requests of all connections of a broker, and what follows from their rhythm.

    `call_soon` is the loop's; `now` is a clock in seconds.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self._call_soon = call_soon
        self._now = now
        # who was answered last, and when
        self._last: Client | None = None
        self._last_at = 0.0
        # spinning
        self.spinning = False
        """Whether the loop is being kept awake."""
        self._spin_until = 0.0
        # crowds
        self._clients = 0  # answered in the last period
        self._counted: set[Client] = set()  # those of the present one
        self._counting_since = 0.0
        self._gathered: list[Client] = []

    def answered(self, client: Client) -> None:
        """`client` was just answered: its next request may be on its way."""
        now = self._now()
        if client is self._last and now - self._last_at < SPIN_SECONDS:
            self._spin_until = now + SPIN_SECONDS
            if not self.spinning:
                self.spinning = True
                self._call_soon(self._spin)
        else:
            self._last = client
        self._last_at = now
        if now - self._counting_since > COUNT_SECONDS:
            self._clients = len(self._counted)
            self._counted.clear()
            self._counting_since = now
        self._counted.add(client)

    def in_crowd(self, client: Client) -> bool:
        """Whether many clients ask at the same time, and another was answered just now."""
        return (
            self._clients >= CROWD
            and self._now() - self._last_at < CROWD_SECONDS
            and client is not self._last
        )

    def gather(self, client: Client) -> None:
        """Have it send the answers it keeps back when the turn ends."""
        if len(self._gathered) >= TOGETHER:
            self._send_gathered()
        if not self._gathered:
            self._call_soon(self._send_gathered)
        self._gathered.append(client)

    def forget(self, client: Client) -> None:
        """It has gone."""
        self._counted.discard(client)
        if client is self._last:
            self._last = None

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for client in gathered:
            client.send_gathered()

    def _spin(self) -> None:
        if self._now() < self._spin_until:
            self._call_soon(self._spin)
        else:
            self.spinning = False
