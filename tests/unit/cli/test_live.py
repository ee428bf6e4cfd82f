from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ottla.cli.live import Frame, Table, age, keep_showing, show
from ottla.cli.output import Column


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, None),
        (0.0, "0 s"),
        (0.25, "250 ms"),
        (12.4, "12 s"),
        (59.6, "1 min"),
        (190, "3 min 10 s"),
        (7200, "2 h"),
        (7500, "2 h 5 min"),
        (4 * 86400 + 3 * 3600, "4 d 3 h"),
    ],
)
def test_ages(seconds: float | None, text: str | None) -> None:
    assert age(seconds) == text


def frame(number: int) -> Frame:
    return Frame(
        [Table([Column("A")], [(number,)], "title"), Table([Column("B", True)], [(None,)])],
        {"number": number},
    )


def test_a_frame_is_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show(frame(1), as_json=False)
    assert capsys.readouterr().out == "title\nA\n1\n\nB\n-\n"


def frames_until(count: int, own_time: Callable[..., None]) -> None:
    """The wait after the last frame is where Ctrl-C comes."""
    left = count

    def sleep(_seconds: float) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    own_time("ottla.cli.live", sleep=sleep)


def test_json_frames_are_lines(
    own_time: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    frames_until(2, own_time)
    numbers = iter([1, 2])
    keep_showing(lambda: frame(next(numbers)), 1, as_json=True)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"number": 1}, {"number": 2}]


def test_in_a_pipe_one_frame_is_below_the_other(
    own_time: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    frames_until(2, own_time)
    numbers = iter([1, 2])
    keep_showing(lambda: frame(next(numbers)), 1, as_json=False)
    assert capsys.readouterr().out == "title\nA\n1\n\nB\n-\n\ntitle\nA\n2\n\nB\n-\n"
