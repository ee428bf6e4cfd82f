from __future__ import annotations

import pytest

from ottla.cli.progress import WaitingLine, bytes_progress, records_progress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.progress.on_terminal", lambda: True)


def test_where_nobody_watches_there_is_neither_bar_nor_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with records_progress("sending", 10) as bar, bar.aside():
        bar(10)
    with bytes_progress("sending", 10) as bar:
        bar(10, 1)
    line = WaitingLine(lambda: "waiting", after=0.0)
    line.waiting()
    line.over()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_a_line_comes_after_a_while_and_only_when_it_is_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    WaitingLine(lambda: "early", after=1000.0).waiting()
    texts = iter(["one", "one", "two"])
    line = WaitingLine(lambda: next(texts), after=0.0)
    line.over()  # nothing to take back yet
    for _ in range(3):
        line.waiting()
    line.over()
    line.over()
    assert capsys.readouterr().err == "\r\x1b[2Kone\r\x1b[2Ktwo\r\x1b[2K"


@pytest.mark.usefixtures("terminal")
def test_a_line_is_cut_where_the_window_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cli.progress._columns", lambda: 10)
    WaitingLine(lambda: "0123456789abc", after=0.0).waiting()
    assert capsys.readouterr().err == "\r\x1b[2K012345678"
