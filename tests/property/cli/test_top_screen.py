"""Whatever the cluster, the window and the keys: the screen of `ottla top` fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ottla.cli.top_figures import SORTS, GroupRow, Snapshot, TopicRow
from ottla.cli.top_screen import Status, View, press, render, settled

KEYS = [*SORTS.values(), "r", "/", "x", "q", "?", "tab", "up", "down", "page up", "page down",
        "home", "end", "enter", "escape", "backspace", "resize"]  # fmt: skip

names = st.text(max_size=8) | st.text(max_size=8).map(lambda text: text * 20)
amounts = st.integers(0, 10**15)
rates = st.none() | st.floats(0, 1e12)
seconds = st.none() | st.floats(0, 1e9)
topics = st.builds(
    TopicRow, names, st.integers(0, 10**6), st.integers(0, 10**3), amounts,
    st.none() | amounts, rates, rates, rates, st.none() | amounts, seconds,
)  # fmt: skip
groups = st.builds(
    GroupRow, names, st.sampled_from(["Stable", "PreparingRebalance"]),
    st.integers(0, 10**4), st.integers(0, 10**6), amounts, seconds, rates,
)  # fmt: skip
snapshots = st.builds(
    Snapshot, names, st.integers(0, 10**3), amounts, amounts, amounts,
    st.lists(topics, max_size=6).map(tuple), st.lists(groups, max_size=6).map(tuple),
    st.booleans(),
)  # fmt: skip
statuses = st.builds(
    Status, st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60),
    st.just("ottla top"), st.just("12:00:00"),
    st.none() | st.just("no broker answers; trying again"), st.booleans(),
)  # fmt: skip


@given(
    st.none() | snapshots,
    statuses,
    st.integers(1, 200),
    st.integers(1, 40),
    st.lists(st.sampled_from(KEYS), max_size=4),
)
def test_no_line_is_wider_than_the_window_and_none_is_below_it(
    snapshot: Snapshot | None, status: Status, width: int, height: int, keys: list[str]
) -> None:
    view = View()
    for key in keys:
        pressed = press(view, key, height // 2)
        if pressed is not None:
            view = settled(pressed, snapshot, height)
    lines = render(view, snapshot, status, width, height)
    assert len(lines) <= height
    for line in lines:
        text = "".join(span.text for span in line)
        assert cell_len(text) <= width, text
        assert text.isprintable(), "nothing in it commands the terminal"


@given(snapshots, st.integers(4, 12), st.integers(0, 8))
def test_every_row_is_shown_or_counted(snapshot: Snapshot, height: int, offset: int) -> None:
    view = settled(View("name", shown="topics", offset=offset), snapshot, height)
    lines = render(view, snapshot, Status("here"), 200, height)
    texts = ["".join(span.text for span in line) for line in lines]
    rows = sum(any(span.style == "name" for span in line) for line in lines)
    assert view.offset <= max(0, len(snapshot.topics) - 1)
    counted = [text for text in texts if text.startswith("… and ")]
    below = int(counted[0].split()[2]) if counted else 0
    assert rows + below + view.offset == len(snapshot.topics)
