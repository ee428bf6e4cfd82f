"""Lines for the comparison with Kafka Connect: all there once, or it is said."""

from __future__ import annotations

import pytest
from bench.processes import BenchError
from bench.spark.lines import SIZE, check_all_once, lines


def test_lines_have_their_number_and_one_size() -> None:
    text = lines(98, 4)
    each = text.splitlines()
    assert [line[:10] for line in each] == [b"%010d" % number for number in range(98, 102)]
    assert {len(line) for line in each} == {SIZE}
    assert len(text) == 4 * (SIZE + 1)
    assert lines(0, 102)[98 * (SIZE + 1) :][:10] == text[:10]
    assert all(line.strip(b' ",') == line for line in lines(0, 2_000).splitlines())


def test_the_order_does_not_matter_and_the_last_may_be_missing() -> None:
    part = lines(0, 50)
    check_all_once(lines(50, 45) + part, least=90, most=100, where="the topic")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (lines(1, 99), "1 are missing"),
        (lines(0, 100) + lines(7, 1), "1 are there more than once"),
        (lines(0, 101), "101 lines"),
        (lines(0, 100)[:-1], "no whole lines"),
    ],
)
def test_what_is_not_there_once_is_said(text: bytes, what: str) -> None:
    with pytest.raises(BenchError, match=what):
        check_all_once(text, least=90, most=100, where="the topic")
