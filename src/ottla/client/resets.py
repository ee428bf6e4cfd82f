"""Moving a group's committed offsets: where to, worked out before anything is changed.

    partitions = scope(groups.topics, ["orders:0,1", "payments"])
    plan = plan_reset(groups, "billing", partitions, ToTime(moment_ms))
    groups.set_offsets("billing", plan.offsets)

The rules are those of kafka-consumer-groups: an offset outside of the log becomes its nearest end,
a moment after the last record becomes the end, and "current" is the committed offset, or the end
where there is none. Plans can be written to and read from its CSV files.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ottla.client.groups import Groups
from ottla.client.settings import timestamp_ms
from ottla.client.topic_offsets import EARLIEST, LATEST, TopicOffsets
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?"
    r"(?:(?P<seconds>[-+]?\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """The first record that is still there."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """After the last record."""


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """Where the group is; the end where it has committed nothing."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """This offset, in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first record that is not older than this."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """So many records on, or back."""

    records: int


@dataclass(frozen=True, slots=True)
class ToGiven:
    """An offset for each partition, as a file lists them."""

    offsets: Mapping[TopicPartition, int]


Target = ToEarliest | ToLatest | ToCurrent | ToOffset | ToTime | ShiftBy | ToGiven


@dataclass(frozen=True, slots=True)
class Plan:
    """The offsets to commit, and what about them may surprise."""

    offsets: Mapping[TopicPartition, int]
    too_young: tuple[TopicPartition, ...] = ()  # no record since then: the end


def plan_reset(  # noqa: PLR0911 - one branch for each kind of target
    groups: Groups, group: str, partitions: Sequence[TopicPartition], target: Target
) -> Plan:
    """Work out the new offsets of `partitions`; nothing is changed."""
    match target:
        case ToEarliest():
            return Plan(_ends(groups.topics, partitions, EARLIEST))
        case ToLatest():
            return Plan(_ends(groups.topics, partitions, LATEST))
        case ToCurrent():
            committed = groups.offsets(group)
            ends = _ends(groups.topics, [tp for tp in partitions if tp not in committed], LATEST)
            return Plan(
                {tp: committed[tp].offset if tp in committed else ends[tp] for tp in partitions}
            )
        case ToOffset(offset):
            return _within(groups.topics, dict.fromkeys(partitions, offset))
        case ToGiven(offsets):
            return _within(groups.topics, offsets)
        case ShiftBy(records):
            committed = groups.offsets(group)
            for tp in partitions:
                if tp not in committed:
                    raise ValueError(
                        f"Cannot shift offset for partition {tp} since there is no current "
                        f"committed offset"
                    )
            return _within(groups.topics, {tp: committed[tp].offset + records for tp in partitions})
        case ToTime(timestamp):
            found = groups.topics.offsets(dict.fromkeys(partitions, timestamp))
            _all_there(groups.topics, partitions, found)
            young = [tp for tp in partitions if found[tp].offset < 0]
            ends = _ends(groups.topics, young, LATEST)
            # What was written between the two answers is younger, and must not be left out.
            found |= groups.topics.offsets(dict.fromkeys(young, timestamp))
            late = tuple(tp for tp in young if found[tp].offset < 0)
            return Plan(
                {tp: ends[tp] if tp in late else found[tp].offset for tp in partitions}, late
            )


def scope(topics: TopicOffsets, arguments: Iterable[str]) -> list[TopicPartition]:
    """The partitions that `topic` and `topic:0,1` arguments mean, those with numbers first."""
    named: list[TopicPartition] = []
    whole: list[str] = []
    for argument in arguments:
        if ":" in argument:
            named += parse_topic_argument(argument)
        else:
            whole.append(argument)
    for partitions in topics.partitions(whole).values():
        named += partitions
    return list(dict.fromkeys(named))


def parse_topic_argument(argument: str) -> list[TopicPartition]:
    """Read `topic:0,1,2`."""
    topic, _, numbers = argument.partition(":")
    if not topic or not numbers or ":" in numbers:
        raise ValueError(f"Invalid topic arg '{argument}', expected topic name and partitions")
    partitions = []
    for number in numbers.split(","):
        if not (number.isascii() and number.isdigit()):
            raise ValueError(f"Invalid partition '{number}' specified in topic arg '{argument}''")
        partitions.append(TopicPartition(topic, int(number)))
    return partitions


def parse_datetime(text: str) -> int:
    """ISO 8601 with a `T`, in UTC unless it says otherwise, as milliseconds since the epoch."""
    if "T" not in text:
        raise ValueError(
            "Error parsing timestamp. It does not contain a 'T' according to ISO8601 format"
        )
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f'Unparseable date: "{text}"') from None
    return timestamp_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def parse_duration(text: str) -> timedelta:
    """ISO 8601's `P1DT2H30M`, as Java reads it."""
    found = _DURATION.fullmatch(text)
    parts = found.groupdict() if found else {}
    given = {
        name: float(parts[name].replace(",", "."))
        for name in ("days", "hours", "minutes", "seconds")
        if parts.get(name)
    }
    if not given or (parts["time"] or "").upper() == "T":
        raise ValueError("Text cannot be parsed to a Duration")
    span = timedelta(**given)
    return -span if parts["sign"] == "-" else span


# -- files


def format_plans(plans: Mapping[str, Mapping[TopicPartition, int]], *, with_group: bool) -> str:
    """`topic,partition,offset` lines, or `group,topic,partition,offset` for several groups."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for group, offsets in plans.items():
        for tp, offset in offsets.items():
            writer.writerow([*([group] if with_group else []), tp.topic, tp.partition, offset])
    return output.getvalue()


def parse_plans(text: str, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Read what `format_plans` writes; lines without a group are about the only one given."""
    plans: dict[str, dict[TopicPartition, int]] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        if len(row) == 3 and len(groups) == 1:
            row = [groups[0], *row]  # noqa: PLW2901 - the row in its full form
        if len(row) != 4:
            raise ValueError(
                f"line {number}: expected topic,partition,offset for one group or "
                f"group,topic,partition,offset for several, not {','.join(row)!r}"
            )
        group, topic, partition, offset = (cell.strip() for cell in row)
        if not (partition.isascii() and partition.isdigit()):
            raise ValueError(f"line {number}: a partition is a number, not {partition!r}")
        if not (offset.isascii() and offset.removeprefix("-").isdigit()):
            raise ValueError(f"line {number}: an offset is a number, not {offset!r}")
        plans.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(offset)
    if not plans:
        raise ValueError("the file is empty")
    return plans


# -- inside


def _ends(
    topics: TopicOffsets, partitions: Sequence[TopicPartition], which: int
) -> dict[TopicPartition, int]:
    found = topics.offsets(dict.fromkeys(partitions, which))
    _all_there(topics, partitions, found)
    return {tp: found[tp].offset for tp in partitions}


def _all_there(
    topics: TopicOffsets,
    partitions: Iterable[TopicPartition],
    found: Mapping[TopicPartition, object],
) -> None:
    missing = [tp for tp in partitions if tp not in found]
    if missing:
        reason = topics.why_missing(missing)
        if reason is not None and reason.code is ErrorCode.LEADER_NOT_AVAILABLE:
            raise reason
        names = ", ".join(map(str, missing))
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'The partitions "{names}" do not exist'
        )


def _within(topics: TopicOffsets, wanted: Mapping[TopicPartition, int]) -> Plan:
    """The nearest offsets that are in the log."""
    starts = _ends(topics, list(wanted), EARLIEST)
    ends = _ends(topics, list(wanted), LATEST)
    return Plan({tp: max(starts[tp], min(ends[tp], offset)) for tp, offset in wanted.items()})
