from __future__ import annotations

import pytest

from ottla.cli.terminal import coloured, decoded, usable


@pytest.mark.parametrize(
    ("received", "keys", "rest"),
    [
        (b"q", ["q"], b""),
        (b"ABHF", ["A", "B", "H", "F"], b""),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"], b""),
        (b"\x1b[5~\x1b[6~", ["page up", "page down"], b""),
        (b"\x1b[H\x1b[F\x1b[1~\x1b[4~", ["home", "end", "home", "end"], b""),
        (b"\r\n\t\x7f\x08", ["enter", "enter", "tab", "backspace", "backspace"], b""),
        (b"a\x1b", ["a"], b"\x1b"),
        (b"\x1b[", [], b"\x1b["),
        (b"\x1b[1;", [], b"\x1b[1;"),
        (b"\x1b[1;5Cx", ["x"], b""),
        (b"\x1bq", ["escape", "q"], b""),
        ("é€😀".encode(), ["é", "€", "😀"], b""),
        ("€".encode()[:2], [], "€".encode()[:2]),
        (b"\x00\x01\x02", [], b""),
        (b"\x80\xffz", ["z"], b""),
    ],
)  # fmt: skip
def test_keys(received: bytes, keys: list[str], rest: bytes) -> None:
    found, left = decoded(received)
    # A byte that begins no character swallows nothing that is a key.
    assert (found, left) == (keys, rest)


def test_keys_that_come_byte_by_byte_are_the_same() -> None:
    received = b"\x1b[Aq\x1b[6~" + "é".encode()
    keys: list[str] = []
    rest = b""
    for byte in received:
        found, rest = decoded(rest + bytes([byte]))
        keys += found
    assert (keys, rest) == (["up", "q", "page down", "é"], b"")


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured()
    monkeypatch.setenv("NO_COLOR", "")
    assert coloured(), "an empty one does not count"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured()


@pytest.mark.parametrize(
    ("terminal", "name", "works"),
    [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False), (True, None, False)],
)
def test_only_a_terminal_is_drawn_on(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, name: str | None, works: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    if name is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", name)
    assert usable() is works
