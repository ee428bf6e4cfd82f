"""The tables of kafka-consumer-groups, column for column as Kafka 4.2 pads them.

A table is preceded by an empty line. Where a group has nobody in it, a line about that goes to
stderr, as in Kafka, so that it does not get into what a script reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from ottla.client.groups import GroupDescription, GroupListing, GroupMember, PartitionLag
from ottla.model.ids import TopicPartition

MISSING = "-"
_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


def note_state(group: GroupDescription) -> None:
    """Say on stderr that nobody is in a group, or that it is being rebalanced."""
    if group.state == "Dead":
        print(f"\nError: Consumer group '{group.name}' does not exist.")
    elif group.state == "Empty":
        print(f"\nConsumer group '{group.name}' has no active members.", file=sys.stderr)
    elif group.state in _REBALANCING:
        print(f"\nWarning: Consumer group '{group.name}' is rebalancing.", file=sys.stderr)
    sys.stderr.flush()


def listing_lines(
    groups: Sequence[GroupListing], *, with_type: bool, with_state: bool
) -> Iterable[str]:
    """The table of --list with --type or --state."""
    width = max([15, *(len(each.name) for each in groups)]) + 10
    header = ["GROUP", *(["TYPE"] if with_type else []), *(["STATE"] if with_state else [])]
    rows = [
        [
            each.name,
            *([each.type] if with_type else []),
            *([each.state] if with_state else []),
        ]
        for each in groups
    ]
    for name, *more in (header, *rows):
        yield " ".join([name.ljust(width), *(cell.ljust(20) for cell in more)])


def offset_lines(
    group: GroupDescription, rows: Sequence[PartitionLag], *, verbose: bool
) -> Iterable[str]:
    """The table of --describe --offsets."""
    cells = [_offset_cells(group.name, row, verbose) for row in rows]
    header = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    header += ["CONSUMER-ID", "HOST", "CLIENT-ID"]
    widths = [15, 15, 10, 15, 15, 15, 15, 15, 0]
    if verbose:
        header.insert(3, "LEADER-EPOCH")
        widths.insert(3, 15)
    # These grow with what is in them; the other columns do not.
    for column in (0, 1, len(widths) - 3, len(widths) - 2):
        widths[column] = max([widths[column], *(len(row[column]) for row in cells)])
    for row in (header, *cells):
        yield " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _offset_cells(group: str, row: PartitionLag, verbose: bool) -> list[str]:
    member = row.member
    cells = [
        group,
        row.partition.topic,
        str(row.partition.partition),
        _or_missing(row.committed),
        _or_missing(row.end),
        _or_missing(row.lag),
        MISSING if member is None else member.id,
        MISSING if member is None else member.host,
        MISSING if member is None else member.client,
    ]
    if verbose:
        cells.insert(3, _or_missing(row.leader_epoch))
    return cells


def member_lines(group: GroupDescription, *, verbose: bool) -> Iterable[str]:
    """The table of --describe --members."""
    members = group.members
    with_instance = any(member.instance for member in members)
    # Only a group on its way from one protocol to the other has both kinds.
    upgrading = {member.kind for member in members} >= {"classic", "consumer"}
    header = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    rows = [[group.name, each.id, each.host, each.client] for each in members]
    widths = [15, 15, 15, 15]
    if with_instance:
        header.insert(2, "GROUP-INSTANCE-ID")
        widths.insert(2, 17)
        for row, each in zip(rows, members, strict=True):
            row.insert(2, each.instance or "")
    widths = [max([w, *(len(row[i]) for row in rows)]) for i, w in enumerate(widths)]
    header.append("#PARTITIONS")
    widths.append(15)
    for row, each in zip(rows, members, strict=True):
        row.append(str(len(each.assignment)))
    if not verbose:
        for row in (header, *rows):
            yield _padded(row, widths) + " "
        return
    header += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    for row, each in zip(rows, members, strict=True):
        row.extend(_verbose_cells(group, each))
    first = len(widths)
    widths += [
        15,
        max([20, *(len(row[first + 1]) for row in rows)]),
        15,
        max([20, *(len(row[first + 3]) for row in rows)]),
    ]
    if upgrading:
        header.append("UPGRADED")
        widths.append(0)
        for row, each in zip(rows, members, strict=True):
            row.append(str(each.kind == "consumer").lower())
    for row in (header, *rows):
        yield _padded(row, widths)


def _verbose_cells(group: GroupDescription, member: GroupMember) -> list[str]:
    return [
        _or_missing(member.epoch),
        assignment_text(member.assignment),
        _or_missing(group.target_epoch),
        assignment_text(member.target or ()),
    ]


def assignment_text(partitions: Sequence[TopicPartition]) -> str:
    """`orders:0,1;payments:2`."""
    topics: dict[str, list[str]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(str(tp.partition))
    return ";".join(f"{topic}:{','.join(each)}" for topic, each in topics.items()) or MISSING


def state_lines(group: GroupDescription, *, verbose: bool) -> Iterable[str]:
    """The table of --describe --state."""
    place = group.coordinator
    header = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
    row = [
        group.name,
        f"{place.host}:{place.port}  ({place.id})",
        group.assignor or MISSING,
        group.state,
        str(len(group.members)),
    ]
    widths = [max(15, len(row[0])), max(25, len(row[1])), 20, 20, 0]
    if verbose:
        header[4:4] = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        row[4:4] = [_or_missing(group.epoch), _or_missing(group.target_epoch)]
        widths[4:4] = [15, 25]
    yield _padded(header, widths)
    yield _padded(row, widths)


def reset_lines(plans: Mapping[str, Mapping[TopicPartition, int]]) -> Iterable[str]:
    """The table of --reset-offsets; just its header when no group was reset."""
    widths = [
        max([15, *map(len, plans)]),
        max([15, *(len(tp.topic) for plan in plans.values() for tp in plan)]),
        10,
        0,
    ]
    if plans:
        yield _padded(["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], widths)
    for group, plan in plans.items():
        for tp, offset in plan.items():
            yield _padded([group, tp.topic, str(tp.partition), str(offset)], widths)


def outcome_lines(outcomes: Mapping[tuple[str, int], str]) -> Iterable[str]:
    """The table of --delete-offsets; partition -1 is a topic that is not there."""
    width = max([15, *(len(topic) for topic, _ in outcomes)])
    yield _padded(["TOPIC", "PARTITION", "STATUS"], [width, 10, 15])
    for (topic, partition), outcome in sorted(outcomes.items()):
        number = str(partition) if partition >= 0 else MISSING
        yield _padded([topic, number, outcome], [width, 10, 15])


def show(lines: Iterable[str]) -> None:
    """An empty line, and the table."""
    print()
    for line in lines:
        print(line)
    sys.stdout.flush()


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _or_missing(value: int | None) -> str:
    return MISSING if value is None else str(value)
