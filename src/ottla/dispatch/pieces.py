"""How a request of many entries is cut into pieces, and how their answers become one.

Nearly every request is a list: of topics with their partitions, of groups, of resources. Each
entry is answered by itself, so a list of a hundred thousand can be given to its handler a few
hundred at a time, as if it had come in as many requests, with those of others in between.

One thing is lost: entries that contradict one another (a topic named twice) are only noticed when
they are in the same piece. Requests that are short enough are not cut and lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from ottla.protocol.schema import schema_of

PIECE = 128
"""Entries of a piece: about a millisecond of work. Where one takes longer there are fewer."""


class Pieces(Protocol):
    """How the requests of one API are cut."""

    @property
    def changes(self) -> bool:
        """Whether they change something: then all of it is done, even if the client has gone."""
        ...

    def split(self, body: Any) -> Iterator[Any]:
        """Bodies of a few entries each that together are this one; at least one."""
        ...

    def join(self, whole: Any, response: Any) -> None:
        """Add the response to the next piece to what there is."""
        ...

    def count(self, response: Any) -> int:
        """How many entries a response has."""
        ...


@dataclass(frozen=True, slots=True)
class ListOf:
    """A request with a list, each entry of which may have a list within."""

    asked: str
    answered: str
    asked_within: str | None = None
    answered_within: str | None = None
    same: Callable[[Any], object] | None = None
    """What makes two entries the same, where the second is not to be answered."""
    formerly: str | None = None
    """The list of older versions."""
    piece: int = PIECE
    changes: bool = False

    def split(self, body: Any) -> Iterator[Any]:
        asked = self.asked
        entries = getattr(body, asked)
        if not entries and self.formerly is not None:
            asked = self.formerly
            entries = getattr(body, asked)
        if not entries:
            yield body
            return
        if self.same is not None:
            entries = _distinct(entries, self.same)
        for chunk in split(entries, self.asked_within, self.piece):
            piece = copy(body)
            setattr(piece, asked, chunk)
            yield piece

    def join(self, whole: Any, response: Any) -> None:
        if getattr(response, "error_code", 0):  # of the request as a whole
            whole.error_code = response.error_code
        for endpoint in getattr(response, "node_endpoints", ()):
            if all(endpoint.node_id != each.node_id for each in whole.node_endpoints):
                whole.node_endpoints.append(endpoint)
        join(getattr(whole, self.answered), getattr(response, self.answered), self.answered_within)

    def count(self, response: Any) -> int:
        answers = getattr(response, self.answered)
        if self.answered_within is None:
            return len(answers)
        return len(answers) + sum(len(getattr(answer, self.answered_within)) for answer in answers)


def split(entries: Any, within: str | None, piece: int = PIECE) -> Iterator[list[Any]]:
    """Chunks of at most so many entries, those within included."""
    chunk: list[Any] = []
    room = piece
    for whole in entries:
        entry = whole
        inner = getattr(entry, within) if within is not None else None
        while inner is not None and len(inner) >= room:
            part = copy(entry)
            setattr(part, within or "", inner[:room])
            chunk.append(part)
            yield chunk
            chunk, inner, room = [], inner[room:], piece
            entry = copy(entry)
            setattr(entry, within or "", inner)
        if entry is not whole and not inner:
            continue
        chunk.append(entry)
        room -= 1 + len(inner or ())
        if room <= 0:
            yield chunk
            chunk, room = [], piece
    if chunk:
        yield chunk


def join(whole: list[Any], more: list[Any], within: str | None) -> None:
    """Add answers; the first of them to the last one, if that is about the same entry."""
    if within is not None and whole and more and _differ_only(whole[-1], more[0], within):
        getattr(whole[-1], within).extend(getattr(more[0], within))
        more = more[1:]
    whole.extend(more)


def _differ_only(one: Any, other: Any, within: str) -> bool:
    return all(
        getattr(one, field.name) == getattr(other, field.name)
        for field in schema_of(type(one)).fields
        if field.name != within
    )


def _distinct(entries: Any, same: Callable[[Any], object]) -> Iterator[Any]:
    seen: set[object] = set()
    for entry in entries:
        key = same(entry)
        if key not in seen:
            seen.add(key)
            yield entry
