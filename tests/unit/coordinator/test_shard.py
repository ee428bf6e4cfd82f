"""Deadlines: many of them, most put off before they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.shard import Deadlines


def test_a_deadline_comes_once_in_the_order_of_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("late", 20)
    deadlines.set("early", 10)
    assert deadlines.next_ms == 10
    assert deadlines.pop_due(9) == []
    assert deadlines.pop_due(25) == ["early", "late"]
    assert deadlines.pop_due(99) == []
    assert deadlines.next_ms is None


def test_equal_deadlines_come_in_the_order_they_were_set() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key in "cab":
        deadlines.set(key, 10)
    assert deadlines.pop_due(10) == ["c", "a", "b"]


def test_what_was_put_off_does_not_come_at_its_old_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 30)
    assert deadlines.pop_due(20) == []
    assert deadlines.next_ms == 30
    assert deadlines.pop_due(30) == ["a"]


def test_what_was_brought_forward_comes_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 30)
    deadlines.set("a", 10)
    assert deadlines.pop_due(10) == ["a"]
    assert deadlines.pop_due(99) == []


def test_what_was_cancelled_does_not_come_unless_set_again() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.cancel("a")
    assert "a" not in deadlines
    deadlines.set("a", 40)
    assert deadlines.pop_due(10) == []
    assert deadlines.pop_due(40) == ["a"]


def test_cancelled_ones_do_not_pile_up() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for key in range(10_000):
        deadlines.set(key, 1_000_000 + key)
        deadlines.cancel(key)
    assert len(deadlines._heap) < 200


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "cancel", "pop"]),
            st.integers(0, 5),
            st.integers(0, 50),
        ),
        max_size=80,
    )
)
def test_it_is_a_dictionary_of_times(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    now = 0
    for what, key, number in steps:
        if what == "set":
            deadlines.set(key, now + number)
            model[key] = now + number
        elif what == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            now += number
            due = {each for each, at in model.items() if at <= now}
            assert set(deadlines.pop_due(now)) == due
            model = {each: at for each, at in model.items() if each not in due}
        assert len(deadlines) == len(model)
        assert all(deadlines.get(each) == at for each, at in model.items())
        if model:
            assert deadlines.next_ms is not None
            assert deadlines.next_ms <= min(model.values())
