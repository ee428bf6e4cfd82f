"""A copy of all keys, and what a commit has to look like as ZooKeeper's operations.

`apply` takes what commits did, in their order. `plan` says how ZooKeeper is to be asked for a
commit, given the copy, and what it will have done. A plan from a stale copy is refused by
ZooKeeper, never carried out wrongly: every step names the version it was made for.

Directories come and go with the keys below them, except those at the top and those that were keys
once: their versions must not begin anew (see `nodes.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.cluster.store import (
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    Op,
    Revision,
    Set,
    Snapshot,
    covers,
    why_not,
)
from ottla.cluster.zookeeper.nodes import Change, Effect, Kind, Node, encode_data, parent


class CreateNode(NamedTuple):
    path: str
    data: bytes
    ephemeral: bool = False
    sequence: bool = False


class SetNode(NamedTuple):
    path: str
    data: bytes
    version: int


class DeleteNode(NamedTuple):
    path: str
    version: int


class CheckNode(NamedTuple):
    path: str
    version: int


Step = CreateNode | SetNode | DeleteNode | CheckNode


class Plan(NamedTuple):
    """What to ask of ZooKeeper, and what that will have done."""

    steps: tuple[Step, ...]
    effects: tuple[Effect, ...]


_BUMPS = 20
"""Bits of a revision for what no commit did: ends of sessions since the newest commit."""


def revision_of(number: int, bumps: int = 0) -> Revision:
    """The revision that begins with the commit of this number; numbers begin at 0."""
    return Revision((number + 1 << _BUMPS) + bumps)


class Mirror:
    """The nodes as of one change."""

    def __init__(self, nodes: Mapping[str, Node] | None = None, position: int = -1) -> None:
        self.position = position
        self.nodes: dict[str, Node] = {}
        self._below: Counter[str] = Counter()  # how many nodes are directly below a path
        self._entries: dict[str, Entry] = {}
        self._bumps = 0
        self._everything: Snapshot | None = None
        for key, node in (nodes or {}).items():
            self._put(key, node)

    # --- reading ----------------------------------------------------------------------------------

    @property
    def revision(self) -> Revision:
        return revision_of(self.position, self._bumps)

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self._entries

    def snapshot(self, prefix: str) -> Snapshot:
        if self._everything is None or self._everything.revision != self.revision:
            self._everything = Snapshot(self.revision, dict(self._entries))
        if not prefix:
            return self._everything
        return Snapshot(
            self.revision,
            {key: entry for key, entry in self._entries.items() if covers(prefix, key)},
        )

    def ephemerals(self) -> Iterator[tuple[str, int]]:
        """Every ephemeral key, and the transaction that created it."""
        return ((key, node.born) for key, node in self.nodes.items() if node.ephemeral)

    # --- following --------------------------------------------------------------------------------

    def apply(self, changes: Iterable[Change], read: Mapping[str, Node | None]) -> set[str]:
        """Do what commits did; returns the keys concerned.

        `read` has the nodes whose values the changes do not hold, as they are after all of these.
        """
        touched: set[str] = set()
        for change in changes:
            for effect in change.effects:
                touched.add(effect.key)
                self._do(effect, change.transaction)
            self.position = change.number
            self._bumps = 0
        for key, node in read.items():
            if key in self.nodes and self.nodes[key].value is _UNREAD:
                self._remove(key)
                if node is not None:
                    self._put(key, node)
        return touched

    def vanish(self, key: str, born: int) -> bool:
        """An ephemeral key went with its session; False when that was known."""
        node = self.nodes.get(key)
        if node is None or node.born != born:
            return False
        self._remove(key)
        self._bumps += 1
        return True

    def carry_on_from(self, older: Mirror) -> set[str]:
        """Take the place of an older copy; returns the keys that differ."""
        if older.position == self.position:
            self._bumps = older._bumps + 1  # sessions may have ended; revisions do not go back
        keys = self._entries.keys() | older._entries.keys()
        return {
            key
            for key in keys
            if self._entries.get(key) != older._entries.get(key)
            or self.nodes[key].born != older.nodes[key].born
        }

    def _do(self, effect: Effect, transaction: int) -> None:
        kind, key, version, base, value = effect
        if kind is Kind.GONE:
            self._remove(key)
        elif kind is Kind.DIRECTORY:
            self._put(key, Node(None, version, 0, transaction))
        elif kind is Kind.SET:
            # One that is not there went with its session after this commit.
            if key in self.nodes:
                node = self.nodes[key]
                self._put(key, node._replace(value=_given(value), version=version, base=base))
        else:
            node = Node(_given(value), version, base, transaction, kind is Kind.EPHEMERAL)
            self._put(key, node)

    def _put(self, key: str, node: Node) -> None:
        if key not in self.nodes:
            self._below[parent(key)] += 1
        self.nodes[key] = node
        if node.value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = Entry(node.value, node.version - node.base)

    def _remove(self, key: str) -> None:
        if self.nodes.pop(key, None) is not None:
            self._entries.pop(key, None)
            above = parent(key)
            self._below[above] -= 1
            if not self._below[above]:
                del self._below[above]

    # --- planning ---------------------------------------------------------------------------------

    def plan(self, ops: Sequence[Op], ephemeral: str | None = None) -> Plan:
        """The steps of a commit; Conflict where the copy says that it cannot be."""
        planner = _Planner(self.nodes, self._below)
        for op in ops:
            planner.add(op, ephemeral=op.key == ephemeral)
        return Plan(tuple(planner.steps), tuple(planner.effects))


_UNREAD = b"\0unread"


def _given(value: bytes | None) -> bytes:
    return _UNREAD if value is None else value


def unread(changes: Iterable[Change]) -> set[str]:
    """Keys whose values these changes do not hold, after all of them."""
    keys: set[str] = set()
    for change in changes:
        for kind, key, _, _, value in change.effects:
            if value is None and kind in (Kind.CREATED, Kind.EPHEMERAL, Kind.SET):
                keys.add(key)
            else:
                keys.discard(key)
    return keys


class _Planner:
    """One commit, step by step, over the nodes as the steps before left them."""

    def __init__(self, nodes: Mapping[str, Node], below: Mapping[str, int]) -> None:
        self._nodes = nodes
        self._below = below
        self._changed: dict[str, Node | None] = {}
        self._more_below: Counter[str] = Counter()
        self.steps: list[Step] = []
        self.effects: list[Effect] = []

    def add(self, op: Op, *, ephemeral: bool) -> None:
        node = self._node(op.key)
        entry = None
        if node is not None and node.value is not None:
            entry = Entry(node.value, node.version - node.base)
        problem = why_not(op, entry)
        if problem:
            raise Conflict(op.key, problem)
        if isinstance(op, Create):
            self._create(op, node, ephemeral=ephemeral)
            return
        assert node is not None
        if isinstance(op, Set):
            self.steps.append(SetNode(op.key, encode_data(op.value, node.base), node.version))
            changed = node._replace(value=op.value, version=node.version + 1)
            self._note(Effect(Kind.SET, op.key, changed.version, node.base, op.value), changed)
        elif isinstance(op, Delete):
            self._delete(op.key, node)
        else:
            assert isinstance(op, Check)
            self.steps.append(CheckNode(op.key, node.version))

    def _create(self, op: Create, node: Node | None, *, ephemeral: bool) -> None:
        kind = Kind.EPHEMERAL if ephemeral else Kind.CREATED
        if node is None:
            self._make_room(op.key)
            self.steps.append(CreateNode(op.key, encode_data(op.value, 0), ephemeral))
            made = Node(op.value, 0, ephemeral=ephemeral)
            self._note(Effect(kind, op.key, 0, 0, op.value), made)
            return
        if ephemeral:
            raise Conflict(op.key, "has keys below it, which an ephemeral key cannot have")
        base = node.version + 1
        self.steps.append(SetNode(op.key, encode_data(op.value, base), node.version))
        self._note(Effect(kind, op.key, base, base, op.value), Node(op.value, base, base))

    def _make_room(self, key: str) -> None:
        """Directories for a new node, from the top."""
        missing = []
        above = parent(key)
        while above:
            node = self._node(above)
            if node is not None:
                if node.ephemeral:
                    raise Conflict(key, f"{above} is ephemeral, and has no keys below it")
                break
            missing.append(above)
            above = parent(above)
        for directory in reversed(missing):
            self.steps.append(CreateNode(directory, b""))
            self._note(Effect(Kind.DIRECTORY, directory), Node(None, 0))

    def _delete(self, key: str, node: Node) -> None:
        if node.base or self._count_below(key):
            self.steps.append(SetNode(key, b"", node.version))
            version = node.version + 1
            self._note(Effect(Kind.DIRECTORY, key, version), Node(None, version))
            return
        self.steps.append(DeleteNode(key, node.version))
        self._note(Effect(Kind.GONE, key), None)
        above = parent(key)
        while "/" in above:
            directory = self._node(above)
            empty = not self._count_below(above)
            if directory is None or directory.value is not None or directory.version or not empty:
                return
            self.steps.append(DeleteNode(above, 0))
            self._note(Effect(Kind.GONE, above), None)
            above = parent(above)

    def _node(self, key: str) -> Node | None:
        return self._changed[key] if key in self._changed else self._nodes.get(key)

    def _count_below(self, key: str) -> int:
        return self._below.get(key, 0) + self._more_below[key]

    def _note(self, effect: Effect, node: Node | None) -> None:
        self._more_below[parent(effect.key)] += (node is not None) - (
            self._node(effect.key) is not None
        )
        self._changed[effect.key] = node
        self.effects.append(effect)
