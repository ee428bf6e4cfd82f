from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.cli.top_figures import SORTS, GroupRow, Snapshot, TopicRow
from ottla.cli.top_screen import (
    STYLES,
    Line,
    Status,
    View,
    painted,
    press,
    render,
    settled,
)

PLACE = Status("127.0.0.1:9092", time="12:00:00")


def topic(name: str, **figures: float | None) -> TopicRow:
    row = TopicRow(name, 3, 0, 1_234_567, 20_000_000, 150.0, 2_000.0, 140.0, 18, 5.0)
    return replace(row, **figures)


def group(name: str, lag: int = 18, late: float | None = 5.0) -> GroupRow:
    return GroupRow(name, "Stable", 2, 3, lag, late, 140.0)


def snapshot(topics: int = 3, groups: int = 2) -> Snapshot:
    return Snapshot(
        "id", 3, topics * 3, 0, 0,
        tuple(topic(f"topic-{n}", written=100.0 + n, size=n, lag=n) for n in range(topics)),
        tuple(group(f"group-{n}", lag=n) for n in range(groups)),
    )  # fmt: skip


def texts(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line).rstrip() for line in lines]


def drawn(
    found: Snapshot | None, width: int = 100, height: int = 24, view: View | None = None
) -> list[str]:
    return texts(render(view or View(), found, PLACE, width, height))


def test_a_wide_window_shows_everything() -> None:
    assert drawn(snapshot(), 100, 14) == [
        "ottla top  127.0.0.1:9092  3 brokers  3 topics  9 partitions  12:00:00  cluster id",
        "in 303 records/s, 6.0 kB/s  out 280 records/s  lag 1",
        "",
        "TOPIC    PARTS      RECORDS      SIZE   BYTES/S    IN/S ↓     OUT/S        LAG",
        "topic-2      3    1,234,567       2 B    2.0 kB       102       140          2",
        "topic-1      3    1,234,567       1 B    2.0 kB       101       140          1",
        "topic-0      3    1,234,567       0 B    2.0 kB       100       140          0",
        "",
        "GROUP    STATE     MEMBERS  PARTS      BEHIND     OUT/S      LAG ↓",
        "group-1  Stable          2      3         5 s       140          1",
        "group-0  Stable          2      3         5 s       140          0",
        "",
        "",
        "q quit  ? keys  i in  o out  s size  l lag  n name  r reverse  / filter  Tab tables"
        "  ↑↓ scroll",
    ]


def test_the_first_screen_has_totals_and_lag_and_no_rates_yet() -> None:
    found = snapshot(1, 1)
    found = replace(
        found,
        first=True,
        topics=(topic("orders", written=None, grown=None, read=None),),
        groups=(replace(group("billing"), read=None),),
    )
    lines = drawn(found)
    assert lines[1] == "lag 18  rates come with the next look"
    assert lines[4].split() == ["orders", "3", "1,234,567", "20.0", "MB", "-", "-", "-", "18"]
    assert lines[7].split() == ["billing", "Stable", "2", "3", "5", "s", "-", "18"]


def test_before_the_first_figures_the_screen_says_whom_it_asks() -> None:
    assert drawn(None, 80, 5)[0] == "ottla top  127.0.0.1:9092"
    assert drawn(None, 80, 7)[1] == "asking for the first figures …"


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (78, ["TOPIC", "PARTS", "RECORDS", "SIZE", "BYTES/S", "IN/S ↓", "OUT/S", "LAG"]),
        (77, ["TOPIC", "RECORDS", "SIZE", "BYTES/S", "IN/S ↓", "OUT/S", "LAG"]),
        (60, ["TOPIC", "SIZE", "BYTES/S", "IN/S ↓", "OUT/S", "LAG"]),
        (50, ["TOPIC", "SIZE", "IN/S ↓", "OUT/S", "LAG"]),
        (40, ["TOPIC", "IN/S ↓", "OUT/S", "LAG"]),
        (30, ["TOPIC", "IN/S ↓", "LAG"]),
        (20, ["TOPIC", "IN/S ↓"]),
        (10, ["TOPIC"]),
    ],
)
def test_a_narrow_window_has_fewer_columns(width: int, columns: list[str]) -> None:
    titles = drawn(snapshot(), width, 24)[3]
    assert [each.replace("_", " ") for each in titles.replace(" ↓", "_↓").split()] == columns


def test_the_column_that_is_sorted_by_stays_longest() -> None:
    assert drawn(snapshot(), 30, 24, View("size"))[3].split() == ["TOPIC", "SIZE", "↓", "IN/S"]
    assert drawn(snapshot(), 20, 24, View("size"))[3].split() == ["TOPIC", "SIZE", "↓"]


def test_a_name_takes_what_the_other_columns_leave() -> None:
    found = replace(snapshot(), topics=(topic("a" * 60),))
    assert drawn(found, 140)[4].startswith("a" * 60 + " ")
    assert drawn(found, 100)[4].startswith("a" * 28 + "…  ")
    assert drawn(found, 9)[4] == "a" * 8 + "…"


@pytest.mark.parametrize("height", range(1, 40))
def test_rows_that_do_not_fit_are_counted(height: int) -> None:
    view = View("name", shown="topics")
    lines = drawn(snapshot(30, 5), 100, height, view)
    rows = [line for line in lines if line.startswith("topic-")]
    left = [line for line in lines if line.startswith("… and ")]
    assert len(lines) == height
    assert len(rows) == 30 or left == [f"… and {30 - len(rows)} more"] or height < 4


def test_a_low_window_keeps_what_matters() -> None:
    assert drawn(snapshot(), 100, 1) == [drawn(snapshot(), 100, 24)[0]]
    lines = drawn(snapshot(), 100, 4)
    assert [lines[0][:9], lines[1][:9], lines[2], lines[3][:6]] == [
        "ottla top", "topic-2  ", "… and 2 more", "q quit",
    ]  # fmt: skip
    assert "GROUP" not in " ".join(drawn(snapshot(), 100, 9))
    assert "GROUP" in " ".join(drawn(snapshot(), 100, 10))


def test_the_two_tables_share_the_window() -> None:
    lines = drawn(snapshot(50, 50), 100, 34)
    assert sum(line.startswith("topic-") for line in lines) == 18
    assert sum(line.startswith("group-") for line in lines) == 7
    assert [line for line in lines if line.startswith("…")] == ["… and 32 more", "… and 43 more"]
    lines = drawn(snapshot(2, 50), 100, 34)
    assert sum(line.startswith("group-") for line in lines) == 24, "what topics do not need"


def names(view: View, found: Snapshot) -> list[str]:
    lines = drawn(found, view=view)
    return [line.split()[0] for line in lines if line.startswith(("topic-", "group-"))]


def test_keys_sort() -> None:
    rows = (topic("topic-a", written=1.0, read=9.0, size=5, lag=None),
            topic("topic-b", written=3.0, read=None, size=4, lag=7),
            topic("topic-c", written=2.0, read=8.0, size=6, lag=70))  # fmt: skip
    found = replace(snapshot(0, 0), topics=rows)
    wanted = {"i": "bca", "o": "acb", "s": "cab", "l": "cba", "n": "abc"}
    for key, order in wanted.items():
        view = press(View("name"), key, 5)
        assert view is not None
        assert names(view, found) == [f"topic-{letter}" for letter in order], key
    assert set(wanted) == set(SORTS.values())


def test_r_turns_round_and_what_is_not_known_stays_last() -> None:
    rows = (topic("topic-a", lag=None), topic("topic-b", lag=7), topic("topic-c", lag=70))
    found = replace(snapshot(0, 0), topics=rows)
    view = press(View("lag"), "r", 5)
    assert view is not None
    assert names(view, found) == ["topic-b", "topic-c", "topic-a"]
    assert "LAG ↑" in " ".join(drawn(found, view=view))


def test_q_leaves() -> None:
    assert press(View(), "q", 5) is None
    assert press(View(help=True), "q", 5) is None
    assert press(View(typing=True), "q", 5) == View(typing=True, filter="q")


def test_a_filter_is_typed_kept_and_taken_back() -> None:
    view: View | None = View(offset=3)
    for key in ["/", "p", "i", "x", "backspace", "c", "-", "1", "up"]:
        assert view is not None
        view = press(view, key, 5)
    assert view == View(filter="pic-1", typing=True)
    assert drawn(snapshot(), view=view)[-1].startswith("only names with: pic-1")
    view = press(view, "enter", 5)
    assert view is not None
    lines = drawn(snapshot(12), view=view)
    assert lines[1].startswith("only with 'pic-1'")
    assert names(view, snapshot(12)) == ["topic-11", "topic-10", "topic-1"]
    assert "no groups with 'pic-1'" in lines
    assert press(view, "escape", 5) == View()


def test_tab_shows_one_table_or_both() -> None:
    view = View()
    found = []
    for _ in range(3):
        pressed = press(view, "tab", 5)
        assert pressed is not None
        view = pressed
        found.append({name.partition("-")[0] for name in names(view, snapshot())})
    assert found == [{"topic"}, {"group"}, {"topic", "group"}]


def test_where_there_are_only_groups_nothing_is_said_of_topics() -> None:
    view = View("lag", shown="groups", only=True)
    status = replace(PLACE, title="ottla group watch")
    assert texts(render(view, replace(snapshot(), topics=()), status, 100, 8)) == [
        "ottla group watch  127.0.0.1:9092  3 brokers  2 groups  12:00:00  cluster id",
        "out 280 records/s  lag 1",
        "",
        "GROUP    STATE     MEMBERS  PARTS      BEHIND     OUT/S      LAG ↓",
        "group-1  Stable          2      3         5 s       140          1",
        "group-0  Stable          2      3         5 s       140          0",
        "",
        "q quit  ? keys  o out  l lag  n name  r reverse  / filter  ↑↓ scroll",
    ]
    assert press(view, "tab", 5) == view


def scrolled(*keys: str, height: int = 14) -> list[str]:
    view = View("name", shown="topics")
    for key in keys:
        pressed = press(view, key, height // 2)
        assert pressed is not None
        view = settled(pressed, snapshot(20), height)
    lines = drawn(snapshot(20), 100, height, view)
    return [
        line if line.startswith("…") else line.split()[0]
        for line in lines
        if line.startswith(("topic-", "…"))
    ]


def test_arrows_scroll() -> None:
    # By name: 0, 1, 10, 11, ..., 19, 2, ..., 9.
    assert scrolled()[0] == "topic-0"
    assert scrolled()[-1] == "… and 12 more"
    assert scrolled("down", "j")[0] == "topic-10"
    assert scrolled("down", "down")[-1] == "… and 10 more, 2 above"
    assert scrolled("down", "up", "up", "k", "down")[0] == "topic-1"
    assert scrolled("end")[-1] == "topic-9"
    assert scrolled("end", "end", "up")[-1] == "… and 2 more, 10 above"
    assert scrolled("page down", "page down", "page down")[-1] == "topic-9"
    assert scrolled("end", "home") == scrolled()


def test_help_explains_the_keys_and_colours_and_any_key_goes_back() -> None:
    view = press(View(warn=30), "?", 5)
    assert view is not None
    lines = drawn(snapshot(), view=view)
    assert any(line.startswith("i o s l n") for line in lines)
    assert "yellow when the next record is 30 s old, red from 1 min on." in lines
    assert press(view, "x", 5) == View(warn=30)


def style_of_lag(late: float | None) -> str:
    found = replace(snapshot(0, 0), groups=(group("billing", 18, late),))
    lines = render(View(shown="groups"), found, PLACE, 100, 24)
    [style] = {span.style for line in lines[3:] for span in line if span.text == "18"}
    return style


@pytest.mark.parametrize(
    ("late", "style"),
    [(None, ""), (0.0, "fine"), (9.9, ""), (10.0, "late"), (59.0, "late"), (60.0, "alarm")],
)
def test_lag_has_a_colour_by_the_age_of_the_next_record(late: float | None, style: str) -> None:
    assert style_of_lag(late) == style


def test_without_colour_there_is_none() -> None:
    found = replace(snapshot(), offline=1, under_replicated=2, topics=(topic("t", offline=1),))
    lines = render(View(), found, PLACE, 100, 24)
    in_colour = "".join(painted(line, colour=True) for line in lines)
    without = "".join(painted(line, colour=False) for line in lines)
    assert "\x1b[1;31m1 offline\x1b[m" in in_colour
    assert "\x1b[36mt\x1b[m" in in_colour
    for number in range(30, 50):
        assert f"[{number}m" not in without
        assert f";{number}m" not in without
    assert len({plain for _, plain in STYLES.values()}) > 1


def test_trouble_is_said_and_the_last_figures_stay() -> None:
    status = replace(PLACE, problem="no broker answers (since 12:00:01; trying again)")
    lines = texts(render(View(), snapshot(), status, 100, 24))
    assert lines[1] == "no broker answers (since 12:00:01; trying again)"
    assert any(line.startswith("topic-1") for line in lines)
    assert texts(render(View(), snapshot(), status, 100, 4))[0].startswith("no broker answers")
    assert texts(render(View(), None, status, 100, 24))[1].startswith("no broker answers")


def test_a_group_cannot_command_the_terminal() -> None:
    found = replace(snapshot(0, 0), groups=(group("\x1b]0;title\x07\u202e"),))
    assert r"\x1b]0;title\x07\u202e" in " ".join(drawn(found))
