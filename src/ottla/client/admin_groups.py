"""What `Admin` does with groups and with the brokers' data folders.

librdkafka has no request for some of it, so these methods speak for themselves (`groups`,
`direct`): connections are made for the call and closed after it, which is what lets threads share
an `Admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ottla.client.descriptions import LogDirDescription
from ottla.client.direct import DirectAdmin
from ottla.client.errors import PartialFailureError
from ottla.client.groups import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    Groups,
    PartitionLag,
)
from ottla.client.positions import Position, check_offset, check_partition, check_position
from ottla.client.resets import (
    ShiftBy,
    Target,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    plan_reset,
)
from ottla.client.settings import timestamp_ms
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

_STATES = (
    "Assigning",
    "CompletingRebalance",
    "Dead",
    "Empty",
    "NotReady",
    "PreparingRebalance",
    "Reconciling",
    "Stable",
)
_TYPES = ("classic", "consumer", "share", "streams")


class GroupAdmin:
    """The part of `Admin` that asks brokers with our own protocol."""

    def __init__(
        self, bootstrap: str, *, timeout: float, client_id: str, config: Mapping[str, Any]
    ) -> None:
        self._bootstrap = bootstrap
        self._timeout = timeout
        self._client_id = client_id
        self._security = {
            name: str(config[name]) for name in ("security.protocol",) if name in config
        }

    # -- groups

    def list_groups(
        self, *, states: str | Iterable[str] = (), types: str | Iterable[str] = ()
    ) -> tuple[GroupListing, ...]:
        """All groups, or those in these states ("Stable", "Empty") and of these types
        ("classic", "consumer")."""
        chosen = _known(states, _STATES, "state")
        kinds = _known(types, _TYPES, "type")
        with self._groups() as groups:
            return groups.list_groups(states=chosen, types=kinds)

    def describe_group(self, name: str) -> GroupDescription:
        """One group with its members and what each of them reads."""
        with self._groups() as groups:
            return groups.describe(name)[name]

    def delete_groups(self, *names: str) -> None:
        """Delete groups that have no members, with their offsets."""
        with self._groups() as groups:
            _raise_failed(groups.delete(*names))

    def group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed."""
        with self._groups() as groups:
            return groups.offsets(group)

    def group_lag(self, group: str) -> tuple[PartitionLag, ...]:
        """How far a group is behind, partition by partition, and who reads it."""
        with self._groups() as groups:
            return tuple(groups.lag(group))

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        """Commit offsets for a group that has no members; a group that is not there is made."""
        checked = {
            check_partition(tp): at if isinstance(at, CommittedOffset) else check_offset(at)
            for tp, at in offsets.items()
        }
        with self._groups() as groups:
            groups.set_offsets(group, checked)

    def reset_group_offsets(
        self,
        group: str,
        partitions: str | Iterable[TopicPartition | tuple[str, int]],
        to: Position,
        *,
        validate_only: bool = False,
    ) -> dict[TopicPartition, int]:
        """Move a group that has no members to a position in these partitions (a topic's name for
        all of its): an offset, "earliest", "latest", the first record since a datetime, or -N for
        N records before where the group is. Returns the new offsets; `validate_only` only that.
        """
        target = _target(check_position(to))
        with self._groups() as groups:
            if isinstance(partitions, str):
                chosen = list(groups.topics.partitions([partitions])[partitions])
            else:
                chosen = [check_partition(tp) for tp in partitions]
            described = groups.describe(group)[group]
            if not described.idle:
                raise KafkaError(
                    ErrorCode.NON_EMPTY_GROUP,
                    f"group {group!r} has {len(described.members)} members; stop them first",
                )
            plan = plan_reset(groups, group, chosen, target)
            if not validate_only:
                groups.set_offsets(group, plan.offsets)
            return dict(plan.offsets)

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> None:
        """Forget what a group has committed for partitions that no member reads."""
        chosen = [check_partition(tp) for tp in partitions]
        with self._groups() as groups:
            codes = groups.delete_offsets(group, chosen)
        _raise_failed({str(tp): code for tp, code in codes.items()})

    # -- brokers

    def describe_log_dirs(self, *brokers: int) -> dict[int, tuple[LogDirDescription, ...]]:
        """The data folders of brokers (of all) with the partitions in them and their sizes."""
        with self._direct() as direct:
            numbers = brokers or tuple(node.id for node in direct.describe_cluster().nodes)
            return {number: direct.log_dirs(number) for number in numbers}

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        unclean: bool = False,
    ) -> tuple[TopicPartition, ...]:
        """Give these partitions, or all, to the first of their replicas; returns those that have a
        new leader. With `unclean` only partitions without a leader, to any replica that is there:
        records that it lacks are lost. A partition that has such a leader already is no error.
        """
        chosen = None if partitions is None else [check_partition(tp) for tp in partitions]
        with self._direct() as direct:
            outcomes = direct.elect_leaders(chosen, unclean=unclean)
        failed = {
            str(tp): error
            for tp, error in outcomes.items()
            if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
        }
        if failed:
            raise PartialFailureError(failed)
        return tuple(tp for tp, error in outcomes.items() if error is None)

    # -- inside

    def _direct(self) -> DirectAdmin:
        return DirectAdmin(
            self._bootstrap,
            timeout=self._timeout,
            client_id=self._client_id,
            config=self._security,
        )

    def _groups(self) -> Groups:
        return Groups(
            self._bootstrap,
            timeout=self._timeout,
            client_id=self._client_id,
            config=self._security,
        )


def _known(given: str | Iterable[str], known: tuple[str, ...], what: str) -> list[str]:
    """The names of a filter. To brokers one that nobody knows is no error: they list nothing."""
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name.lower() not in map(str.lower, known):
            raise ValueError(f"{name!r} is no {what} of a group; there are {', '.join(known)}")
    return names


def _target(position: Position) -> Target:
    if isinstance(position, datetime):
        return ToTime(timestamp_ms(position))
    if position == "earliest":
        return ToEarliest()
    if position == "latest":
        return ToLatest()
    assert isinstance(position, int)
    return ToOffset(position) if position >= 0 else ShiftBy(position)


def _raise_failed(codes: Mapping[str, ErrorCode]) -> None:
    failed = {name: KafkaError(code) for name, code in codes.items() if code is not ErrorCode.NONE}
    if failed:
        raise PartialFailureError(failed)
