"""`ottla top` and `ottla group watch` on a terminal of their own, before a real broker."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from ottla import Admin, NewTopic, Producer
from ottla.client.groups import Groups
from ottla.model.ids import TopicPartition
from ottla.testing.process import BrokerProcess

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, END = "\x1b[H", "\x1b[?2026l"
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# The terminal becomes the one that its keys send signals from.
START = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
START += "os.execvp(sys.argv[1], sys.argv[1:])"
SLOW = "3600"  # seconds: no second look while the test runs
QUICK = "0.1"


class Window:
    """A terminal with a program in it: what it has written, and what its screen shows."""

    def __init__(
        self, *command: str, size: tuple[int, int] = (100, 24), **environment: str
    ) -> None:
        self._terminal, slave = os.openpty()
        self.resize(*size)
        self.settings = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", **environment},
        )
        self._slave = slave
        self.written = ""
        self.columns = size[0]

    def resize(self, columns: int, lines: int) -> None:
        self.columns = columns
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read(self) -> str:
        """Everything that was written up to now."""
        with suppress(OSError):
            while select.select([self._terminal], [], [], 0)[0]:
                received = os.read(self._terminal, 1 << 16)
                if not received:
                    break
                self.written += received.decode(errors="replace")
        return self.written

    def picture(self) -> str:
        """What was drawn last, as far as it was drawn to its end."""
        return self.read().rpartition(END)[0].rpartition(HOME)[2]

    def lines(self) -> list[str]:
        """The same without colours."""
        return [line.rstrip() for line in CODES.sub("", self.picture()).split("\n")]

    def restored(self) -> bool:
        """Whether the terminal is as it was before."""
        return self.read().rstrip().endswith(LEAVE) and self.settings == termios.tcgetattr(
            self._slave
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)
        os.close(self._slave)


class Pictures:
    """What a test waits for."""

    def __init__(self, window: Window, eventually: Callable[..., None]) -> None:
        self.window = window
        self._eventually = eventually

    def has(self, pattern: str) -> None:
        """Wait until a line of the picture matches."""

        def look() -> bool:
            lines = self.window.lines()
            assert any(re.search(pattern, line) for line in lines), (pattern, lines)
            return True

        self._eventually(look)

    def ends(self) -> int:
        """Wait for the end; the exit code."""

        def look() -> bool:
            self.window.read()  # or it could not write
            return self.window.process.poll() is not None

        self._eventually(look)
        assert self.window.restored(), self.window.written[-200:]
        assert "Traceback" not in self.window.written
        return self.window.process.returncode


@pytest.fixture
def top(eventually) -> Iterator[Callable[..., Pictures]]:
    """`top(bootstrap, "--sort", "name", size=(80, 24))` in a window."""
    opened: list[Window] = []

    def start(
        bootstrap: str,
        *arguments: str,
        command: tuple[str, ...] = ("top",),
        interval: str = QUICK,
        shell: str = "",
        **options,
    ) -> Pictures:
        line = [sys.executable, "-m", "ottla", *command, *arguments]
        line += ["--bootstrap", bootstrap, "--interval", interval]
        if shell:
            line = ["sh", "-mc", shell % shlex.join(line)]
        opened.append(Window(*line, **options))
        return Pictures(opened[-1], eventually)

    yield start
    for window in opened:
        window.close()


def fill(broker: BrokerProcess) -> None:
    """Topics t00 to t29; in t07 ten records of an hour ago, of which a group has read four."""
    Admin(broker.bootstrap).create_topics(NewTopic(f"t{number:02}", 1) for number in range(30))
    with Producer(broker.bootstrap) as producer:
        for _ in range(10):
            producer.send("t07", b"x", timestamp=int((time.time() - 3_600) * 1_000))
    with Groups(broker.bootstrap) as groups:
        groups.set_offsets("billing", {TopicPartition("t07", 0): 4})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that all tests here look at."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        broker.start()
        fill(broker)
        yield broker


@pytest.fixture
def own_cluster(start_broker) -> BrokerProcess:
    """One to be stopped."""
    broker = start_broker()
    fill(broker)
    return broker


def test_the_first_screen_needs_no_interval(cluster, top):
    screen = top(cluster.bootstrap, "--sort", "lag", interval=SLOW)
    screen.has(r"^ottla top  127\.0\.0\.1:\d+  1 broker  30 topics  30 partitions")
    screen.has(r"^t07 +1 +10 .* 6$")
    screen.has(r"^billing +Empty +0 +1 +1 h .* 6$")
    screen.has(r"^… and \d+ more$")
    assert screen.window.written.startswith(ENTER)
    screen.window.type("q")
    assert screen.ends() == 0


def test_rates_come_with_the_second_look(cluster, top):
    screen = top(cluster.bootstrap)
    screen.has(r"^in 0 records/s, 0 B/s  out 0 records/s  lag 6$")
    screen.window.type("q")
    assert screen.ends() == 0


def test_keys_sort_filter_and_scroll(cluster, top):
    screen = top(cluster.bootstrap, interval=SLOW)
    screen.has(r"^t00 ")
    screen.window.type("n")
    screen.has(r"^TOPIC ↑")
    screen.window.type("r")
    screen.has(r"^TOPIC ↓")
    assert screen.window.lines()[4].startswith("t29 ")
    screen.window.type("/07\r")
    screen.has(r"^only with '07'")
    assert not any(line.startswith("t29 ") for line in screen.window.lines())
    screen.window.type("\x1b")
    screen.has(r"^t29 ")
    screen.window.type("\x1b[F")
    screen.has(r"^t00 ")
    screen.window.type("?")
    screen.has(r"^Any key goes back\.$")
    screen.window.type("q")
    assert screen.ends() == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 0)]
)
def test_signals_leave_the_terminal_as_it_was(cluster, top, number, code):
    screen = top(cluster.bootstrap)
    screen.has(r"^t00 ")
    screen.window.process.send_signal(number)
    assert screen.ends() == code


def test_control_c_leaves(cluster, top):
    screen = top(cluster.bootstrap)
    screen.has(r"^t00 ")
    screen.window.type("\x03")
    assert screen.ends() == 0


def test_a_window_that_changes_is_filled_anew(cluster, top):
    screen = top(cluster.bootstrap, "--sort", "name", interval=SLOW, size=(100, 40))
    screen.has(r"PARTS +RECORDS +SIZE")
    screen.has(r"^t29 ")
    screen.window.resize(30, 8)
    screen.has(r"^TOPIC ↑ +IN/S +LAG$")
    screen.has(r"^… and 28 more$")
    lines = screen.window.lines()
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 30
    screen.window.type("q")
    assert screen.ends() == 0


def test_a_broker_that_goes_is_missed_and_found_again(own_cluster, top):
    screen = top(own_cluster.bootstrap)
    screen.has(r"^in 0 records/s")
    own_cluster.kill()
    screen.has(r"^no broker answers: nothing listens at \S+ \(since [\d:]+; trying again\)$")
    screen.has(r"^t00 ")
    own_cluster.start()
    screen.has(r"^in 0 records/s")
    screen.window.type("q")
    assert screen.ends() == 0


def test_q_is_heard_while_a_broker_does_not_answer(own_cluster, top):
    screen = top(own_cluster.bootstrap)
    screen.has(r"^t00 ")
    own_cluster.signal(signal.SIGSTOP)
    try:
        screen.window.type("n")
        screen.has(r"^TOPIC ↑")
        screen.window.type("q")
        assert screen.ends() == 0
    finally:
        own_cluster.signal(signal.SIGCONT)


def test_stopped_and_brought_back_it_draws_again(cluster, top, eventually):
    # A shell that starts it, is told that it has stopped, waits for Enter, and brings it back.
    screen = top(cluster.bootstrap, shell="%s; read line; fg")
    screen.has(r"^t00 ")
    screen.window.type("\x1a")  # Ctrl-Z
    eventually(screen.window.restored)
    screen.window.type("\n")
    eventually(lambda: not screen.window.restored())
    screen.has(r"^t00 ")
    screen.window.type("q")
    assert screen.ends() == 0


@pytest.mark.parametrize(("no_color", "red"), [("", True), ("1", False)])
def test_lag_is_red_where_colours_are_welcome(cluster, top, no_color, red):
    screen = top(cluster.bootstrap, interval=SLOW, NO_COLOR=no_color)
    screen.has(r"^billing ")
    picture = screen.window.picture()
    assert ("\x1b[1;31m6\x1b[m" in picture) is red
    assert ("\x1b[36m" in picture) is red
    screen.window.type("q")
    assert screen.ends() == 0


@pytest.mark.parametrize("leave", ["q", "\x03", signal.SIGTERM])
def test_groups_are_watched_on_the_same_screen(cluster, top, leave):
    screen = top(cluster.bootstrap, command=("group", "watch"))
    screen.has(r"^ottla group watch  127\.0\.0\.1:\d+  1 broker  1 group ")
    screen.has(r"^out 0 records/s  lag 6$")
    screen.has(r"^billing +Empty +0 +1 +1 h .* 6$")
    if isinstance(leave, str):
        screen.window.type(leave)
        assert screen.ends() == 0
    else:
        screen.window.process.send_signal(leave)
        assert screen.ends() == 143


def test_a_group_that_is_not_there_is_not_watched(cluster, top):
    screen = top(cluster.bootstrap, "nobody", command=("group", "watch"))
    assert screen.window.process.wait(timeout=120) == 1
    assert ENTER not in screen.window.read()
    assert "there is no group 'nobody'" in screen.window.written


def test_a_terminal_that_cannot_be_drawn_on_gets_plain_text(cluster, top):
    screen = top(cluster.bootstrap, TERM="dumb")
    assert screen.window.process.wait(timeout=120) == 0
    assert "\x1b[?1049h" not in screen.window.read()
    assert "30 topics" in screen.window.written
