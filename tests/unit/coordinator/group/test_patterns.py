"""Subscriptions by pattern: RE2's syntax, whole names, and no pattern that takes for ever."""

from __future__ import annotations

import asyncio

import pytest

from ottla.coordinator.group import patterns


def test_a_name_matches_as_a_whole() -> None:
    assert patterns.resolve(["orders"], ["orders", "orders-eu", "my-orders"]) == {
        "orders": frozenset({"orders"})
    }


def test_several_patterns_are_resolved_at_once() -> None:
    names = ["a1", "a2", "b1"]
    assert patterns.resolve(["a.*", ".*1", "c"], names) == {
        "a.*": frozenset({"a1", "a2"}),
        ".*1": frozenset({"a1", "b1"}),
        "c": frozenset(),
    }


@pytest.mark.parametrize(
    "pattern", ["", "a|b", "(?i)Orders", r"\w+\.\d{1,3}", "[[:alpha:]]+", "^a$"]
)
def test_re2_syntax_is_understood(pattern: str) -> None:
    patterns.check(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", r"missing \)"),
        ("a**", "bad repetition"),
        ("[z-a]", "invalid character class range"),
        ("(?=a)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{1001}", "invalid repetition size"),
        ("(((a{100}){100}){10})", "invalid repetition size|too large"),
        ("\ud800", "UTF-8"),
    ],
)
def test_what_is_not_re2_syntax_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(patterns.InvalidPattern, match=reason):
        patterns.check(pattern)


def test_a_pattern_that_is_none_matches_nothing_and_disturbs_no_other() -> None:
    assert patterns.resolve(["(a", "a"], ["a"]) == {"(a": frozenset(), "a": frozenset({"a"})}


def test_nothing_is_printed_about_a_bad_pattern(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(patterns.InvalidPattern):
        patterns.check("(a")
    assert capfd.readouterr() == ("", "")


async def test_the_event_loop_goes_on_while_ten_thousand_names_are_matched() -> None:
    names = [f"{number:05d}" + "a" * 200 + "!" for number in range(10_000)]
    hostile = "(a+)+$"
    work = asyncio.get_running_loop().run_in_executor(
        None, patterns.resolve, [hostile, "0.*!", "(.*a){30}"], names
    )
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert len((await work)["0.*!"]) == 10_000
    # A matcher that held the interpreter, or took exponential time, would leave a handful.
    assert turns > 100
