"""Groups: a generation gives each partition to one member, and committed offsets never go back.

Members commit ever higher offsets, and whoever gets a partition goes on from where its group has
come to. So the committed offset of a partition can only grow, and who asks for it is told at least
what was acknowledged before. A commit of an earlier generation is refused once there is a later
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.history import Event

TWO_OWNERS = "two-owners"
STALE_COMMIT = "stale-commit"
OFFSET_BACK = "committed-offset-went-back"
NEVER_COMMITTED = "offset-never-committed"


@dataclass(slots=True)
class _Commit:
    event: int
    group: str
    generation: int
    offsets: list[tuple[int, int]]
    newest: tuple[int, int]  # generation of the group, and the event that tells


class Groups(Check):
    """Checks 5 and 11 of the harness."""

    promises: ClassVar[Mapping[str, str]] = {
        TWO_OWNERS: "in a generation every partition has one owner",
        STALE_COMMIT: "the commit of an earlier generation is refused",
        OFFSET_BACK: "a committed offset never goes back",
        NEVER_COMMITTED: "an offset that is found was committed",
    }

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int, int], tuple[str, int]] = {}
        self._newest: dict[str, tuple[int, int]] = {}
        self._underway: dict[str, _Commit] = {}
        self._floors: dict[tuple[str, int], tuple[int, int]] = {}  # group, partition: offset, event
        self._tried: dict[tuple[str, int], set[int]] = {}
        self._asking: dict[str, dict[int, tuple[int, int]]] = {}

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "assign" and event.phase == "ok":
            return self._assigned(event)
        if event.action == "commit":
            return self._commits(event)
        if event.action == "committed":
            return self._asks(event)
        return ()

    def _assigned(self, event: Event) -> Iterator[Anomaly]:
        group, generation = event.data["group"], event.data["generation"]
        for number in event.data["partitions"]:
            owner, told = self._owners.setdefault(
                (group, generation, number), (event.data["member"], event.number)
            )
            if owner != event.data["member"]:
                yield Anomaly(
                    TWO_OWNERS,
                    f"partition {number} belongs to two members in generation {generation} of "
                    f"{group}",
                    (told, event.number),
                )
        if generation > self._newest.get(group, (-1, 0))[0]:
            self._newest[group] = generation, event.number

    def _commits(self, event: Event) -> Iterator[Anomaly]:
        if event.phase == "invoke":
            group = event.data["group"]
            offsets = [(number, offset) for number, offset in event.data["offsets"]]
            for number, offset in offsets:
                self._tried.setdefault((group, number), set()).add(offset)
            self._underway[event.client] = _Commit(
                event.number,
                group,
                event.data["generation"],
                offsets,
                self._newest.get(group, (-1, 0)),
            )
            return
        commit = self._underway.pop(event.client)
        if event.phase != "ok":
            return
        generation, told = commit.newest
        if commit.generation < generation:
            yield Anomaly(
                STALE_COMMIT,
                f"{commit.group} had generation {generation} when a member of generation "
                f"{commit.generation} committed",
                (told, commit.event, event.number),
            )
        for number, offset in commit.offsets:
            self._raise_floor(commit.group, number, offset, event.number)

    def _asks(self, event: Event) -> Iterator[Anomaly]:
        group = event.data["group"]
        if event.phase == "invoke":
            self._asking[event.client] = {
                number: floor for (name, number), floor in self._floors.items() if name == group
            }
            return
        floors = self._asking.pop(event.client)
        if event.phase != "ok":
            return
        for number, offset in event.data["offsets"]:
            floor, told = floors.get(number, (-1, 0))
            if offset < floor:
                yield Anomaly(
                    OFFSET_BACK,
                    f"{group} had committed {floor} of partition {number}, and later finds "
                    f"{'nothing' if offset < 0 else offset}",
                    (told, event.number),
                )
            elif offset >= 0 and offset not in self._tried.get((group, number), ()):
                yield Anomaly(
                    NEVER_COMMITTED,
                    f"{group} finds {offset} of partition {number}, which nobody has committed",
                    (event.number,),
                )
            self._raise_floor(group, number, offset, event.number)

    def _raise_floor(self, group: str, number: int, offset: int, event: int) -> None:
        if offset > self._floors.get((group, number), (-1, 0))[0]:
            self._floors[group, number] = offset, event
