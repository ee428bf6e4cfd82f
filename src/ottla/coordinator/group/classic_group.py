"""ClassicGroup: the members, the generation and the state of a group of the classic protocol.

    Empty ──join──> PreparingRebalance ──all joined──> CompletingRebalance ──leader synced──> Stable
      ^                 ^      ^                              │                                  │
      └──nobody joined──┘      └───────────── a member joins, leaves, fails or changes ──────────┘

A generation begins in memory, when everybody has joined. It is written down when its leader has
assigned the partitions, so the newest record of a group is its newest stable generation, or that it
was empty. `snapshot` is what is written, `install` what a record makes of the group: on loading
everything, on the group that the record was taken from only its assignments and the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

from ottla.coordinator.group import journal
from ottla.coordinator.group.commands import Joined, JoinedMember, Protocols
from ottla.coordinator.group.consumer_protocol import read_topics
from ottla.coordinator.group.group import CONSUMER_PROTOCOL, ExpiryBase, GroupType
from ottla.coordinator.group.journal import GroupSnapshot, MemberSnapshot
from ottla.coordinator.shard import Parked, Record
from ottla.errors import ErrorCode, KafkaError


class State(Enum):
    """Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class ClassicMember:
    """One member. Everything but the two waits and `is_new` is in the group's records."""

    __slots__ = (
        "assignment", "awaiting_join", "awaiting_sync", "client_host", "client_id", "instance_id",
        "is_new", "member_id", "protocol_type", "protocols", "rebalance_timeout_ms",
        "session_timeout_ms",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913, PLR0917 - the fields of a member, as its record holds them
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: Parked | None = None
        self.awaiting_sync: Parked | None = None
        self.is_new = False  # has not been part of a generation yet

    def __repr__(self) -> str:
        return f"<ClassicMember {self.member_id}>"

    @property
    def may_be_silent(self) -> bool:
        """Whether it is the coordinator's turn, so that no heartbeat can be expected.

        A new member is removed nevertheless: its client may be gone, and without an id it cannot
        come back as the same.
        """
        if self.is_new:
            return False
        return self.awaiting_join is not None or self.awaiting_sync is not None

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise LookupError(f"{self.member_id} does not support {protocol}")


class ClassicGroup:
    """One group. Only the machine (classic.py) and `install` change it."""

    __slots__ = (
        "added_meanwhile", "awaiting_joins", "generation", "id", "initial_delay", "leader",
        "members", "pending", "pending_sync", "protocol_name", "protocol_type",
        "since_ms", "state", "static_members", "subscribed", "supported",
    )  # fmt: skip

    type = GroupType.CLASSIC

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.id = group_id
        # in the records
        self.protocol_type: str = ""  # empty: nobody has joined yet, it only keeps offsets
        self.generation = 0
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.since_ms = now_ms  # when it got into its state; -1: unknown, from an old record
        self.members: dict[str, ClassicMember] = {}
        # worked out from the members
        self.static_members: dict[str, str] = {}  # member ids by instance id
        self.supported: Counter[str] = Counter()  # how many members offer a protocol
        self.awaiting_joins = 0
        self.subscribed: frozenset[str] | None = None  # None: not known
        # soft
        self.state = State.EMPTY
        self.pending: set[str] = set()  # ids given to clients that have not come back with them
        self.pending_sync: set[str] = set()  # members that have not asked for their assignment
        self.initial_delay: tuple[int, int] | None = None  # its length, and what may follow it
        self.added_meanwhile = False  # somebody joined during the initial delay

    def __repr__(self) -> str:
        return f"<ClassicGroup {self.id} {self.state.value} {self.generation} {list(self.members)}>"

    # ------------------------------------------------------------------ members

    def add(self, member: ClassicMember, parked: Parked | None = None) -> None:
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.supported.update(name for name, _ in member.protocols)
        member.awaiting_join = parked
        if parked is not None:
            self.awaiting_joins += 1
        self.pending.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Forget a member, or an id that was given out; the next member leads if it led."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.supported.subtract(name for name, _ in member.protocols)
            if member.awaiting_join is not None:
                self.awaiting_joins -= 1
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.discard(member_id)
        self.pending_sync.discard(member_id)

    def update(
        self,
        member: ClassicMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        parked: Parked | None,
    ) -> None:
        """A member joins again, with what it now offers."""
        if protocols != member.protocols:
            self.supported.subtract(name for name, _ in member.protocols)
            member.protocols = protocols
            self.supported.update(name for name, _ in protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.awaiting_joins += (parked is not None) - (member.awaiting_join is not None)
        member.awaiting_join = parked

    def take_join(self, member: ClassicMember) -> Parked | None:
        """The member's waiting Join, to be answered now."""
        parked, member.awaiting_join = member.awaiting_join, None
        if parked is not None:
            self.awaiting_joins -= 1
        return parked

    def rename(self, old_id: str, new_id: str) -> ClassicMember:
        """A static member under a new id, in the place and with the assignment of the old one.

        Whoever waits under the old id must have been answered.
        """
        member = self.members.pop(old_id)
        assert member.awaiting_join is None
        assert member.awaiting_sync is None
        assert member.instance_id is not None
        member.member_id = new_id
        self.members[new_id] = member
        self.static_members[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        self.pending_sync.discard(old_id)
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID unless this is who we know."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def all_joined(self) -> bool:
        return len(self.members) == self.awaiting_joins and not self.pending

    def elect_joined_leader(self) -> bool:
        """Whether the group has a leader that has joined, if need be a new one."""
        if self.leader is None:
            return False
        if self.members[self.leader].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader = member.member_id
                return True
        return False

    # ------------------------------------------------------------------ protocols

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a member that offers these can be part of it."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        return self.protocol_type == protocol_type and any(
            self.supported[name] == len(self.members) for name in protocols
        )

    def select_protocol(self, instead: tuple[str, Protocols] | None = None) -> str:
        """What most members prefer of that which all support.

        `instead` puts other protocols in place of those of one member.
        """
        offers = [
            instead[1]
            if instead is not None and member.member_id == instead[0]
            else member.protocols
            for member in self.members.values()
        ]
        favourites = {offer[0][0] for offer in offers}
        if len(favourites) == 1:
            return favourites.pop()  # all prefer it, so all support it
        common = set.intersection(*({name for name, _ in offer} for offer in offers))
        votes: Counter[str] = Counter()
        for offer in offers:
            choice = next((name for name, _ in offer if name in common), None)
            if choice is not None:
                votes[choice] += 1
        return votes.most_common(1)[0][0] if votes else ""

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics its members want, as far as they are consumers and can be understood."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        # Most members of a group subscribe alike: what is equal is read once.
        subscriptions = {member.metadata(self.protocol_name) for member in self.members.values()}
        try:
            return frozenset(topic for data in subscriptions for topic in read_topics(data))
        except ValueError:
            return None

    # ------------------------------------------------------------------ generations

    def to(self, state: State, now_ms: int) -> None:
        self.state = state
        self.since_ms = now_ms

    def begin_generation(self, now_ms: int) -> None:
        """Everybody who will has joined."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.to(State.COMPLETING, now_ms)
        else:
            self.protocol_name = None
            self.to(State.EMPTY, now_ms)
        self.subscribed = self.subscribed_topics()

    def joined(self, member_id: str, *, members: bool = False, skip: bool = False) -> Joined:
        """The answer to a member of this generation."""
        return Joined(
            member_id,
            generation=self.generation,
            protocol_type=self.protocol_type or None,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            skip_assignment=skip,
            members=self.joined_members() if members else (),
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    def snapshot(self, assignments: Mapping[str, bytes] | None = None) -> GroupSnapshot:
        """What is written of it, with these assignments in place of the members' own."""
        return GroupSnapshot(
            self.protocol_type,
            self.generation,
            self.protocol_name,
            self.leader,
            self.since_ms,
            tuple(
                MemberSnapshot(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol_name),
                    member.assignment if assignments is None else assignments[member.member_id],
                )
                for member in self.members.values()
            ),
        )

    def install(self, snapshot: GroupSnapshot) -> None:
        """Become what a record says; what is known beyond it of the same members is kept."""
        if self.state is State.COMPLETING and snapshot.generation == self.generation:
            # It was taken from this group a moment ago: only the assignments are new.
            assert len(snapshot.members) == len(self.members)
            for saved in snapshot.members:
                self.members[saved.member_id].assignment = saved.assignment
            self.to(State.STABLE, snapshot.since_ms)
            return
        known, self.members = self.members, {}
        self.static_members.clear()
        self.supported.clear()
        self.awaiting_joins = 0
        self.leader = None
        for saved in snapshot.members:
            offer = (snapshot.protocol or "", saved.subscription)
            member = known.get(saved.member_id)
            if member is None or offer not in member.protocols:
                # Not the member that the record was taken from: it is being loaded.
                member = ClassicMember(
                    saved.member_id,
                    saved.instance_id,
                    saved.client_id,
                    saved.client_host,
                    saved.rebalance_timeout_ms,
                    saved.session_timeout_ms,
                    snapshot.protocol_type,
                    (offer,),
                )
            member.instance_id = saved.instance_id
            member.client_id, member.client_host = saved.client_id, saved.client_host
            member.rebalance_timeout_ms = saved.rebalance_timeout_ms
            member.session_timeout_ms = saved.session_timeout_ms
            member.assignment = saved.assignment
            self.add(member, member.awaiting_join)
        self.protocol_type = snapshot.protocol_type
        self.generation = snapshot.generation
        self.protocol_name = snapshot.protocol
        self.leader = snapshot.leader
        self.to(State.STABLE if self.members else State.EMPTY, snapshot.since_ms)
        self.subscribed = self.subscribed_topics()

    # ------------------------------------------------------------------ what every group has

    @property
    def state_name(self) -> str:
        return self.state.value

    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        api_version: int,
        transactional: bool = False,
    ) -> None:
        if epoch < 0 and self.state is State.EMPTY:
            return  # a tool, or a consumer that assigns its partitions itself
        if epoch >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if epoch != self.generation:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and self.state is not State.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is State.COMPLETING:
            # The member knows of the new generation but not yet of its assignment: it may have lost
            # the partitions it commits for.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Anybody may read them."""

    def check_offset_delete(self) -> None:
        if self.state is not State.EMPTY and self.protocol_type != CONSUMER_PROTOCOL:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)  # what it reads, it alone knows

    def check_delete(self) -> None:
        if self.state is not State.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed(self, topic: str) -> bool:
        if self.subscribed is None:
            # Its members are consumers that we do not understand: any topic may be theirs.
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed

    def expiry_base(self) -> ExpiryBase | None:
        if not self.protocol_type:
            return lambda offset: offset.commit_timestamp_ms
        if self.state is State.EMPTY:
            since = self.since_ms
            if since >= 0:
                return lambda _: since
            return lambda offset: offset.commit_timestamp_ms
        if (
            self.state is State.STABLE
            and self.protocol_type == CONSUMER_PROTOCOL
            and self.subscribed is not None
        ):
            return lambda offset: offset.commit_timestamp_ms
        return None

    def should_expire(self) -> bool:
        return not self.pending

    def tombstones(self) -> list[Record]:
        return [journal.group_tombstone(self.id)]

    def validate(self) -> None:
        members = self.members
        assert all(member_id == member.member_id for member_id, member in members.items())
        assert self.static_members == {
            member.instance_id: member.member_id
            for member in members.values()
            if member.instance_id is not None
        }
        offered = Counter(name for member in members.values() for name, _ in member.protocols)
        assert +self.supported == offered
        waiting = [member for member in members.values() if member.awaiting_join is not None]
        assert self.awaiting_joins == len(waiting)
        assert not self.pending & members.keys()
        assert self.pending_sync <= members.keys()
        assert (self.leader in members) if members else self.leader is None
        if self.state is State.EMPTY:
            assert not members
        if self.state in (State.COMPLETING, State.STABLE):
            assert members
            assert not waiting
            assert all(
                self.protocol_name in [name for name, _ in member.protocols]
                for member in members.values()
            )
        if self.state is not State.COMPLETING:
            assert all(member.awaiting_sync is None for member in members.values())
        assert self.state is State.PREPARING or self.initial_delay is None
