"""A terminal taken over for a while: its other screen, single keys, and everything as it was after.

    with Terminal() as terminal:
        terminal.draw(lines)
        for event in terminal.wait(1.0):
            ...

While it is open the cursor is hidden, nothing that is typed is echoed, and signals are events.
However the block is left, by a key, Ctrl-C, SIGTERM or an exception, the terminal is put back
first. Ctrl-Z gives it back for as long as the program is stopped.

A picture is written with one call, over the one before, and only when it differs: nothing flickers.

Events are the characters that were typed, and these:

    up, down, home, end, page up, page down, enter, tab, backspace, escape
    resize      the window may have another size now
    interrupt   Ctrl-C
    terminate   SIGTERM, SIGQUIT or SIGHUP, or the terminal is gone
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

_SEQUENCES = {
    b"A": "up",
    b"B": "down",
    b"H": "home",
    b"F": "end",
    b"1~": "home",
    b"4~": "end",
    b"5~": "page up",
    b"6~": "page down",
    b"7~": "home",
    b"8~": "end",
}
_SINGLE = {
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x08": "backspace",
    b"\x7f": "backspace",
}

# The other screen, no cursor, no line that goes on in the next; and all of it undone.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[m\x1b[?7h\x1b[?25h\x1b[?1049l"
# Terminals that know it show what is between these two at once; others ignore it.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"

_SEQUENCE = re.compile(rb"\x1b(?:\[|O)([0-9;]*[A-Za-z~])")
_UNFINISHED = re.compile(rb"\x1b(?:(?:\[|O)[0-9;]*)?")
_ESCAPE_PAUSE = 0.05  # within which the rest of a key's sequence has come
_STOPPING = {
    signal.SIGINT: "interrupt",
    signal.SIGTERM: "terminate",
    signal.SIGQUIT: "terminate",
    signal.SIGHUP: "terminate",
}


def usable() -> bool:
    """Whether standard output is a terminal that pictures can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def coloured() -> bool:
    """Whether colours are welcome: unless NO_COLOR says otherwise (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")


def decoded(received: bytes) -> tuple[list[str], bytes]:
    """The keys in what was received, and the beginning of one whose rest has not come yet."""
    keys: list[str] = []
    position = 0
    while position < len(received):
        found = _SEQUENCE.match(received, position)
        if found:
            name = _SEQUENCES.get(found[1])
            keys += [name] if name else []
            position = found.end()
            continue
        if _UNFINISHED.fullmatch(received, position):
            break
        byte = received[position : position + 1]
        size = 1
        if byte == b"\x1b":  # nothing that we know follows
            keys.append("escape")
        elif byte in _SINGLE:
            keys.append(_SINGLE[byte])
        elif byte >= b" ":
            size = _length(byte[0])
            text = received[position : position + size].decode(errors="replace")
            if position + size > len(received) and text == "\ufffd":
                break
            if text.isprintable() and len(text) == 1 and text != "\ufffd":
                keys.append(text)
            else:
                size = 1  # no UTF-8: one byte is passed over, and what follows is looked at
        position += size
    return keys, received[position:]


def _length(lead: int) -> int:
    """How long a character is in UTF-8, by its first byte."""
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


class Terminal:
    """Standard output as a screen, standard input as its keyboard if it is a terminal too."""

    def __init__(self) -> None:
        self.has_keys = sys.stdin.isatty()
        self._screen = sys.stdout.fileno()
        self._keyboard = sys.stdin.fileno() if self.has_keys else -1
        self._encoding = sys.stdout.encoding or "utf-8"
        # while it is taken over
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._caught: list[int] = []
        self._unread = b""
        self._drawn = ""
        self._gone = False
        self._awake, self._waker = -1, -1
        self._closing = threading.RLock()  # a signal may come while it is held

    def size(self) -> tuple[int, int]:
        """Columns and lines of the window."""
        with suppress(OSError):
            found = os.get_terminal_size(self._screen)
            if found.columns > 0 and found.lines > 0:
                return found.columns, found.lines
        fallback = shutil.get_terminal_size()
        return fallback.columns, fallback.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines from the top; the rest of the screen is empty."""
        picture = "\x1b[H" + "\r\n".join(f"{line}\x1b[m\x1b[K" for line in lines) + "\x1b[J"
        if picture != self._drawn:
            self._write(_BEGIN + picture + _END)
            self._drawn = picture

    def wake(self) -> None:
        """End a `wait`, from any thread."""
        with self._closing, suppress(BlockingIOError):  # full: it will wake up anyway
            if self._waker >= 0:
                os.write(self._waker, b"!")

    def wait(self, timeout: float | None) -> list[str]:
        """What has happened, after `timeout` seconds at the latest."""
        watched = [self._awake, self._keyboard] if self.has_keys else [self._awake]
        if self._gone:
            return ["terminate"]
        ready, _, _ = select.select(watched, [], [], timeout)
        if self._awake in ready:
            with suppress(BlockingIOError):
                os.read(self._awake, 1024)
        events = self._signalled()
        if self._keyboard in ready:
            events += self._typed()
        return events

    # -- what happens

    def _signalled(self) -> list[str]:
        caught, self._caught = self._caught, []
        events = [
            _STOPPING[number] for number in map(signal.Signals, caught) if number in _STOPPING
        ]
        if signal.SIGTSTP in caught and not events:
            self._leave()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            # Here the program stops, until somebody brings it back.
            signal.signal(signal.SIGTSTP, self._on_signal)
            self._enter()
        if {signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH} & set(caught):
            self._drawn = ""
            events.append("resize")
        return events

    def _typed(self) -> list[str]:
        events: list[str] = []
        while True:
            try:
                received = os.read(self._keyboard, 1024)
            except OSError:
                received = b""
            if not received:
                self._gone = True
                return [*events, "terminate"]
            keys, self._unread = decoded(self._unread + received)
            events += keys
            if not self._unread:
                return events
            if not select.select([self._keyboard], [], [], _ESCAPE_PAUSE)[0]:
                events += ["escape"] if self._unread == b"\x1b" else []
                self._unread = b""
                return events

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._caught.append(number)
        self.wake()

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode(self._encoding, "replace"))
        try:
            while rest:
                rest = rest[os.write(self._screen, rest) :]
        except OSError:
            self._gone = True

    # -- taking it over, and giving it back

    def _enter(self) -> None:
        if self.has_keys:
            self._before = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._drawn = ""
        self._write(_ENTER)

    def _leave(self) -> None:
        self._write(_LEAVE)
        if self.has_keys and self._before:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._keyboard, termios.TCSAFLUSH, self._before)

    def __enter__(self) -> Self:
        self._awake, self._waker = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._waker, False)
        sys.stdout.flush()
        for number in (*_STOPPING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            self._handlers[number] = signal.signal(number, self._on_signal)
        try:
            self._enter()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        with self._closing:
            os.close(self._waker)
            self._waker = -1
        os.close(self._awake)
