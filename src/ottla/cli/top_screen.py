"""The screen of `ottla top` and `ottla group watch`: what is drawn in a window, what keys do.

Pure: `render` makes lines of a `Snapshot`, a `View` (what the person at the keyboard has chosen)
and a size; `press` makes the next `View` of a key. No line is wider than the window and there are
never more of them than it has. What does not fit goes in this order: columns by their rank (never
the name, last the one sorted by), the ends of names, rows from the last, the totals, the second
table, the footer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from ottla.cli.live import age, in_bytes
from ottla.cli.output import count
from ottla.cli.top_figures import SORTS, GroupRow, Snapshot, TopicRow

Shown = Literal["both", "topics", "groups"]
_NEXT: dict[Shown, Shown] = {"both": "topics", "topics": "groups", "groups": "both"}
_LEAST_NAME = 8  # columns of the window that a name keeps as long as others can go
_USUAL_NAME = 24
_GAP = 2
_LOW = 6  # lines of a window: below this the header is one line
_LOWEST = 3  # below this there is no footer
_TWO_TABLES = 6  # lines that are needed for both


class Span(NamedTuple):
    """A piece of a line, and how it looks: a name in `STYLES`, or nothing."""

    text: str
    style: str = ""


Line = tuple[Span, ...]

# With and without colour; both say the same.
STYLES = {
    "heading": ("1", "1"),
    "sorted": ("1;4", "1;4"),
    "name": ("36", ""),
    "fine": ("32", ""),
    "late": ("33", "1"),
    "alarm": ("1;31", "1;7"),
    "quiet": ("2", "2"),
    "key": ("1", "1"),
}


@dataclass(frozen=True, slots=True)
class View:
    """What the person at the keyboard has chosen."""

    sort: str = "in"
    reverse: bool = False
    shown: Shown = "both"
    only: bool = False  # there is no other table than the one that is shown
    offset: int = 0
    filter: str = ""
    typing: bool = False
    help: bool = False
    warn: float = 10.0  # seconds
    alarm: float = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """What is shown beside the figures."""

    place: str  # the broker that is asked
    title: str = "ottla top"
    time: str = ""
    problem: str | None = None
    keys: bool = True


def press(view: View, key: str, page: int) -> View | None:  # noqa: C901, PLR0911 - one branch for each key
    """What is chosen after a key; None to leave."""
    if view.typing:
        return _type(view, key)
    if view.help and key != "q":
        return replace(view, help=False)
    letters = {letter: sort for sort, letter in SORTS.items()}
    if key in ("q", "Q"):
        return None
    if key in letters:
        return replace(view, sort=letters[key], reverse=False, offset=0)
    moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
    if key in moves:
        return replace(view, offset=max(0, view.offset + moves[key]))
    match key:
        case "r":
            return replace(view, reverse=not view.reverse, offset=0)
        case "home":
            return replace(view, offset=0)
        case "end":
            return replace(view, offset=1 << 30)
        case "/":
            return replace(view, typing=True)
        case "escape":
            return replace(view, filter="", offset=0)
        case "tab" if not view.only:
            return replace(view, shown=_NEXT[view.shown], offset=0)
        case "?" | "h":
            return replace(view, help=True)
    return view


def _type(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, typing=False)
    if key == "escape":
        return replace(view, typing=False, filter="", offset=0)
    if key == "backspace":
        return replace(view, filter=view.filter[:-1], offset=0)
    return replace(view, filter=view.filter + key, offset=0) if len(key) == 1 else view


def settled(view: View, snapshot: Snapshot | None, height: int) -> View:
    """A view that is scrolled no farther than to the last row, in a window of that height."""
    if snapshot is None:
        return replace(view, offset=0)
    topics, groups = _filtered(view, snapshot)
    for_topics, for_groups = _shares(view, len(topics), len(groups), _room(height))
    rows, room = (groups, for_groups) if view.shown == "groups" else (topics, for_topics)
    return replace(view, offset=max(0, min(view.offset, _last_offset(len(rows), room))))


# -- the whole


def render(
    view: View, snapshot: Snapshot | None, status: Status, width: int, height: int
) -> list[Line]:
    """The lines of the screen."""
    if view.help:
        return [fitted(line, width) for line in _help(view)[:height]]
    lines = _header(view, snapshot, status, width)
    if height < _LOW:
        # The totals have to go; when something is wrong, that is what matters.
        lines = [(Span(status.problem, "alarm"),)] if status.problem else lines[:1]
    room = _room(height)
    body = [] if snapshot is None else _body(view, snapshot, width, room)
    lines += [*body, *[()] * (room - len(body))]
    if height >= _LOWEST:
        lines.append(_footer(view, status, width))
    return [fitted(line, width) for line in lines[:height]]


def _room(height: int) -> int:
    """Lines between header and footer."""
    return max(0, height - (1 if height < _LOW else 3) - (height >= _LOWEST))


def fitted(line: Line, width: int) -> Line:
    """A line that is no wider than that."""
    spans: list[Span] = []
    for span in line:
        length = cell_len(span.text)
        if length > width:
            spans.append(Span(cut(span.text, width), span.style))
            break
        spans.append(span)
        width -= length
    return tuple(spans)


def cut(text: str, width: int) -> str:
    """A text that is no wider than that; one that was ends with an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def printable(text: str) -> str:
    """A name without what a terminal would obey; a group may have any."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def painted(line: Line, *, colour: bool) -> str:
    """A line as a terminal takes it."""
    parts = []
    for text, style in line:
        code = STYLES[style][not colour] if style else ""
        parts.append(f"\x1b[{code}m{text}\x1b[m" if code and text else text)
    return "".join(parts)


# -- above and below


def _header(view: View, snapshot: Snapshot | None, status: Status, width: int) -> list[Line]:
    place = Span(f"{status.title}  {status.place}", "heading")
    if snapshot is None:
        waits = status.problem or "asking for the first figures …"
        return [(place,), (Span(waits, "alarm" if status.problem else ""),), ()]
    counted = {"topic": len(snapshot.topics), "partition": snapshot.partitions}
    if view.only:
        counted = {"group": len(snapshot.groups)}
    facts = [
        count(snapshot.brokers, "broker"),
        *(f"{number:,} {noun}{'s' * (number != 1)}" for noun, number in counted.items()),
        status.time,
        f"cluster {printable(snapshot.cluster)}",
    ]
    first = [place, *(Span(fact) for fact in facts if fact)]
    if snapshot.offline:
        first.insert(1, Span(f"{snapshot.offline:,} offline", "alarm"))
    if snapshot.under_replicated:
        first.insert(1, Span(f"{snapshot.under_replicated:,} under replicated", "late"))
    if status.problem:
        second = [Span(status.problem, "alarm")]
    else:
        lag = Span(f"lag {snapshot.lag:,}", _lateness(view, _latest(snapshot)))
        second = [
            Span(f"in {_rate(snapshot.written or 0)} records/s, {_size(snapshot.grown or 0)}/s"),
            Span(f"out {_rate(snapshot.read or 0)} records/s"),
            lag,
        ][view.only :]
        if snapshot.first:
            second = [lag, Span("rates come with the next look", "quiet")]
        if view.filter:
            second.insert(0, Span(f"only with {view.filter!r}", "late"))
    return [_spread(first, width), _spread(second, width), ()]


def _spread(spans: Sequence[Span], width: int) -> Line:
    """As many of them as fit, the first in any case."""
    line = [spans[0]]
    used = cell_len(spans[0].text)
    for span in spans[1:]:
        used += _GAP + cell_len(span.text)
        if used > width:
            break
        line += [Span(" " * _GAP), span]
    return tuple(line)


def _footer(view: View, status: Status, width: int) -> Line:
    if view.typing:
        return Span("only names with: ", "key"), Span(f"{view.filter}▏  Enter: keep  Esc: all")
    if not status.keys:
        return (Span("Ctrl-C quits", "quiet"),)
    items = [("q", "quit"), ("?", "keys")]
    fields = GROUP_FIELDS if view.only else TOPIC_FIELDS
    there = {field.sort for field in fields}
    items += [(letter, sort) for sort, letter in SORTS.items() if sort in there]
    items += [("r", "reverse"), ("/", "filter"), ("Tab", "tables"), ("↑↓", "scroll")]
    if view.only:
        items.remove(("Tab", "tables"))
    line: list[Span] = []
    used = 0
    for key, text in items:
        used += len(key) + len(text) + 1 + (_GAP if line else 0)
        if used > width:
            break
        chosen = view.sort == text
        line += [Span(" " * _GAP)] if line else []
        line += [Span(key, "key"), Span(" "), Span(text, "sorted" if chosen else "")]
    return tuple(line)


def _help(view: View) -> list[Line]:
    rows = [
        ("i o s l n", "sort by records in, records out, size, lag, name"),
        ("r", "the other way round"),
        ("/", "only names with a text; Esc: all again"),
        ("Tab", "topics and groups, only topics, only groups"),
        ("↑ ↓ j k", "scroll; also Page Up, Page Down, Home, End"),
        ("Space", "look at once"),
        ("q Ctrl-C", "quit"),
    ]
    lines: list[Line] = [(Span("ottla top", "heading"),), ()]
    lines += [(Span(f"{keys:10}", "key"), Span(text)) for keys, text in rows]
    lines += [
        (),
        (Span("Lag is "), Span("green", "fine"), Span(" when everything is read,")),
        (
            Span("yellow", "late"),
            Span(f" when the next record is {age(view.warn)} old, "),
            Span("red", "alarm"),
            Span(f" from {age(view.alarm)} on."),
        ),
        (Span("OUT/S is what groups commit. - is not known, or not yet."),),
        (),
        (Span("Any key goes back.", "quiet"),),
    ]
    return lines


# -- tables


class Field(NamedTuple):
    """A column: which go first when there is no room (high ranks), and what is in it."""

    title: str
    rank: int
    width: int  # at least, so that columns do not jump when numbers grow
    text: Callable[[Any], str]
    sort: str = ""
    value: Callable[[Any], float | None] | None = None
    style: Callable[[View, Any], str] | None = None
    left: bool = False


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _size(value: float | None) -> str:
    return "-" if value is None else in_bytes(value)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _lateness(view: View, seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds >= view.alarm:
        return "alarm"
    if seconds >= view.warn:
        return "late"
    return "fine" if seconds == 0 else ""


def _latest(snapshot: Snapshot) -> float | None:
    return max((row.late for row in snapshot.groups if row.late is not None), default=None)


def _parts(row: TopicRow) -> str:
    return f"{row.partitions:,} ({row.offline:,} offline)" if row.offline else f"{row.partitions:,}"


def _lag_style(view: View, row: TopicRow | GroupRow) -> str:
    return _lateness(view, row.late)


TOPIC_FIELDS = (
    Field("TOPIC", 0, 0, lambda row: printable(row.name), "name", left=True,
          style=lambda _view, _row: "name"),
    Field("PARTS", 7, 5, _parts, style=lambda _view, row: "alarm" if row.offline else ""),
    Field("RECORDS", 6, 11, lambda row: _number(row.records)),
    Field("SIZE", 4, 8, lambda row: _size(row.size), "size", lambda row: row.size),
    Field("BYTES/S", 5, 8, lambda row: _size(row.grown)),
    Field("IN/S", 1, 8, lambda row: _rate(row.written), "in", lambda row: row.written),
    Field("OUT/S", 3, 8, lambda row: _rate(row.read), "out", lambda row: row.read),
    Field("LAG", 2, 9, lambda row: _number(row.lag), "lag", lambda row: row.lag, _lag_style),
)  # fmt: skip
GROUP_FIELDS = (
    Field("GROUP", 0, 0, lambda row: printable(row.name), "name", left=True,
          style=lambda _view, _row: "name"),
    Field("STATE", 4, 8, lambda row: row.state, left=True),
    Field("MEMBERS", 5, 7, lambda row: _number(row.members)),
    Field("PARTS", 6, 5, lambda row: _number(row.partitions)),
    Field("BEHIND", 2, 10, lambda row: age(row.late) or "-", style=_lag_style),
    Field("OUT/S", 3, 8, lambda row: _rate(row.read), "out", lambda row: row.read),
    Field("LAG", 1, 9, lambda row: _number(row.lag), "lag", lambda row: row.lag, _lag_style),
)  # fmt: skip


def _filtered(view: View, snapshot: Snapshot) -> tuple[list[TopicRow], list[GroupRow]]:
    topics = [row for row in snapshot.topics if view.filter in row.name]
    return topics, [row for row in snapshot.groups if view.filter in row.name]


def _shares(view: View, topics: int, groups: int, room: int) -> tuple[int, int]:
    """How many lines each table gets; groups a third, and each what the other does not need."""
    if view.shown == "groups":
        return 0, room
    if view.shown == "topics" or room < _TWO_TABLES:
        return room, 0
    room -= 1  # between the two
    for_groups = min(1 + max(1, groups), max(3, room // 3))
    for_topics = min(1 + max(1, topics), room - for_groups)
    return for_topics, room - for_topics


def _last_offset(rows: int, room: int) -> int:
    """How far a table can be scrolled: until its last row is shown."""
    return max(0, rows - max(1, room - 1))


def _body(view: View, snapshot: Snapshot, width: int, room: int) -> list[Line]:
    """The tables, in no more than `room` lines."""
    topics, groups = _filtered(view, snapshot)
    for_topics, for_groups = _shares(view, len(topics), len(groups), room)
    lines: list[Line] = []
    if for_topics:
        lines += _table(view, TOPIC_FIELDS, topics, "topics", width, for_topics, view.offset)
    if for_topics and for_groups:
        lines.append(())
    if for_groups:
        offset = view.offset if view.shown == "groups" else 0
        lines += _table(view, GROUP_FIELDS, groups, "groups", width, for_groups, offset)
    return lines


def in_order(view: View, fields: Sequence[Field], rows: Sequence[Any]) -> list[Any]:
    """Rows as they are sorted: numbers from the largest down, what is not known last."""
    field = _sorted_by(view, fields)
    rows = sorted(rows, key=lambda row: str(row.name))
    value = field.value
    if value is None:
        return rows[::-1] if view.reverse else rows
    known = [row for row in rows if value(row) is not None]
    known.sort(key=lambda row: value(row) or 0, reverse=not view.reverse)
    return known + [row for row in rows if value(row) is None]


def _sorted_by(view: View, fields: Sequence[Field]) -> Field:
    """The column that is sorted by; lag where there is no such column."""
    found = [field for field in fields if field.sort == view.sort]
    return (found or [field for field in fields if field.sort == "lag"])[0]


def _table(
    view: View, fields: Sequence[Field], rows: Sequence[Any], what: str, width: int, room: int,
    offset: int,
) -> list[Line]:  # fmt: skip
    """Titles, rows, and how many more there are."""
    ordered = in_order(view, fields, rows)
    offset = min(offset, _last_offset(len(ordered), room))
    rest = ordered[offset:]
    titled = room > 2 or (room == 2 and len(rest) <= 1)
    space = room - titled
    left_out = 0
    if len(rest) > space:
        left_out = len(rest) - max(1, space - 1)
    drawn = rest[: len(rest) - left_out]
    chosen, widths = fitting_columns(view, fields, drawn, width)
    lines: list[Line] = []
    if titled:
        lines.append(_titles(view, fields, chosen, widths))
    lines += [_cells(view, row, chosen, widths) for row in drawn]
    if not ordered:
        lines.append((Span(f"no {what}" + (f" with {view.filter!r}" if view.filter else "")),))
    if left_out and space > 1:
        above = f", {offset:,} above" if offset else ""
        lines.append((Span(f"… and {left_out:,} more{above}", "quiet"),))
    return lines[:room]


def fitting_columns(
    view: View, fields: Sequence[Field], rows: Sequence[Any], width: int
) -> tuple[list[Field], list[int]]:
    """The columns that there is room for, and how wide they are; the name takes what is left."""
    widths = {
        field.title: max(
            field.width,
            cell_len(field.title) + (2 if field.sort else 0),
            *(cell_len(field.text(row)) for row in rows),
            0,
        )
        for field in fields
    }
    name, *others = fields
    kept = _sorted_by(view, fields)
    chosen = list(others)

    def used() -> int:
        return sum(widths[field.title] + _GAP for field in chosen)

    while chosen and used() + min(widths[name.title], _USUAL_NAME) > width:
        droppable = [field for field in chosen if field is not kept]
        if not droppable and used() + _LEAST_NAME <= width:
            break
        chosen.remove(max(droppable or chosen, key=lambda field: field.rank))
    rest = max(0, min(widths[name.title], width - used()))
    return [name, *chosen], [rest, *(widths[field.title] for field in chosen)]


def _titles(
    view: View, fields: Sequence[Field], chosen: Sequence[Field], widths: Sequence[int]
) -> Line:
    sorted_by = _sorted_by(view, fields)
    descends = (sorted_by.value is not None) != view.reverse
    spans: list[Span] = []
    for field, width in zip(chosen, widths, strict=True):
        text, style = field.title, "heading"
        if field is sorted_by:
            text, style = f"{text} {'↓' if descends else '↑'}", "sorted"
        spans += _cell(text, style, width, left=field.left, first=not spans)
    return tuple(spans)


def _cells(view: View, row: Any, chosen: Sequence[Field], widths: Sequence[int]) -> Line:
    spans: list[Span] = []
    for field, width in zip(chosen, widths, strict=True):
        style = field.style(view, row) if field.style else ""
        spans += _cell(field.text(row), style, width, left=field.left, first=not spans)
    return tuple(spans)


def _cell(text: str, style: str, width: int, *, left: bool, first: bool) -> list[Span]:
    text = cut(text, width)
    blank = " " * (width - cell_len(text))
    gap = "" if first else " " * _GAP
    if left:
        return [Span(gap), Span(text, style), Span(blank)]
    return [Span(gap + blank), Span(text, style)]
