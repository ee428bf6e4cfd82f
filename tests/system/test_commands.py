"""Commands as one has them at a terminal: what they show meanwhile, and how they are stopped."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.records.builder import build_batch

Start = Callable[..., "OnTerminal"]


class OnTerminal:
    """A command whose stderr is a terminal of 100 columns; stdout is the same one, or a pipe."""

    def __init__(self, bootstrap: str, arguments: tuple[str, ...], *, piped: bool) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = {**os.environ, "OTTLA_BOOTSTRAP": bootstrap, "TERM": "xterm"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ottla", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the last one who had the terminal open is gone
                return
            if not data:
                return
            self._shown += data

    @property
    def shown(self) -> str:
        """Everything that went to the terminal."""
        return self._shown.decode(errors="replace")

    def left(self) -> str:
        """What stays on the screen, line by line: without what was erased or overwritten."""
        text = re.sub(r"\x1b\[\?25[hl]", "", self.shown.replace("\r\n", "\n"))
        lines: list[str] = []
        row = 0
        for part in re.split(r"(\n|\r?\x1b\[2K|\x1b\[1A)", text):
            if not lines:
                lines.append("")
            if part == "\n":
                row += 1
                if row == len(lines):
                    lines.append("")
            elif part.endswith("\x1b[2K"):
                lines[row] = ""
            elif part == "\x1b[1A":
                row = max(0, row - 1)
            else:
                lines[row] += re.sub(r"\x1b\[[0-9;]*m|\r", "", part)
        return "\n".join(lines)

    def end(self) -> int:
        """Wait until it is over and everything has been read; its exit code."""
        code = self.process.wait(250)
        self._reader.join(10)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        os.close(self._ours)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def on_terminal(bootstrap: str) -> Iterator[Start]:
    started: list[OnTerminal] = []

    def start(*arguments: str, piped: bool = False) -> OnTerminal:
        started.append(OnTerminal(bootstrap, arguments, piped=piped))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def topic(bootstrap: str, unique: Any) -> str:
    name: str = unique()
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=2, replication=1)
    return name


def run(bootstrap: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ottla", *arguments],
        env={**os.environ, "OTTLA_BOOTSTRAP": bootstrap},
        input=given,
        capture_output=True,
        timeout=250,
        check=False,
    )


def send(bootstrap: str, topic: str, *options: str, given: bytes) -> None:
    """Lines become records, or the test says at once why they have not."""
    sent = run(bootstrap, "produce", topic, *options, given=given)
    assert sent.returncode == 0, sent.stderr.decode()


# -- perf


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", ["produce", "consume", "latency"])
def test_perf_that_is_stopped_shows_what_it_has_measured(
    on_terminal: Start,
    bootstrap: str,
    topic: str,
    eventually: Any,
    verb: str,
    number: signal.Signals,
) -> None:
    rate = ["--rate", "2000"] if verb == "produce" else []
    if verb == "consume":
        send(bootstrap, topic, given=b"value\n" * 1500)
        rate = ["--timeout", "300"]
    command = on_terminal("perf", verb, topic, "--records", "10000000", "--json", *rate, piped=True)
    # the bar has been told of records
    eventually(lambda: re.search(r"[1-9][0-9,]* of 10,000,000 records", command.shown))
    command.process.send_signal(number)
    assert command.process.stdout is not None
    found = json.loads(command.process.stdout.read())
    assert command.end() == 0
    assert found["records"] > 0
    [stopped] = command.left().split("\n")[:-1]
    assert stopped == f"stopped after {found['records']:,} of 10,000,000 records"
    if verb == "consume":
        # the seconds in which nothing came any more are not counted
        assert found["records_per_second"] > found["records"] / found["seconds"]


# -- names


@pytest.mark.parametrize(
    "command",
    [
        "consume {} --from-beginning --exit-at-end",
        "consume {} --group g",
        "topic describe {}",
        "topic delete {}",
        "topic alter {} --partitions 5",
        "topic alter {} --config retention.ms=1000",
        "topic explain-retention {}",
        "config describe topic {}",
        "config alter topic {} --set retention.ms=1000",
        "offsets {}",
        "offsets {}:0",
        "group reset g --create --topic {} --to earliest",
        "group delete g --topic {}",
        "perf produce {}",
        "perf consume {}",
        "perf latency {}",
    ],
)
def test_a_topic_that_is_not_there_gets_the_name_that_was_meant(
    bootstrap: str, topic: str, command: str, ours_only: None
) -> None:
    wrong = topic[:-1]
    result = run(bootstrap, *command.format(wrong).split())
    said = f"Error: there is no topic {wrong!r}; did you mean {topic!r}?\n"
    assert (result.returncode, result.stderr.decode()) == (1, said)


# -- consume


def test_several_topics_are_read_at_once(bootstrap: str, topic: str, unique: Any) -> None:
    other = unique()
    send(bootstrap, topic, given=b"a\n")
    run(bootstrap, "topic", "create", other)
    send(bootstrap, other, given=b"b\n")
    plain = ["--exit-at-end", "--format", "{topic} {value}"]
    wanted = sorted([f"{topic} a", f"{other} b"])
    read = run(bootstrap, "consume", topic, other, "--from-beginning", *plain)
    assert sorted(read.stdout.decode().splitlines()) == wanted
    read = run(bootstrap, "consume", topic, other, "--group", unique("g"), "--max", "2", *plain[1:])
    assert sorted(read.stdout.decode().splitlines()) == wanted


def test_a_group_begins_at_the_beginning_once_and_then_goes_on(
    bootstrap: str, topic: str, unique: Any
) -> None:
    group = unique("g")
    send(bootstrap, topic, "--partition", "0", given=b"a\nb\n")
    options = ["--group", group, "--from-beginning", "--max"]
    first = run(bootstrap, "consume", topic, *options, "2")
    assert first.stdout == b"a\nb\n"
    assert first.stderr.decode() == (
        f"the group {group!r} has read nothing of {topic!r} yet: it begins at the first record\n"
    )
    send(bootstrap, topic, "--partition", "0", given=b"c\n")
    again = run(bootstrap, "consume", topic, *options, "1")
    assert again.stdout == b"c\n"
    reset = f"ottla group reset {group} --topic {topic} --to earliest --execute"
    assert again.stderr.decode() == (
        f"the group {group!r} begins at the first record in 1 partition, and goes on where it was "
        f"in the other 1; to begin anew: {reset}\n"
    )
    assert run(bootstrap, *reset.split()[1:]).returncode == 0
    assert run(bootstrap, "consume", topic, *options, "3").stdout == b"a\nb\nc\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_before_a_slow_reader_it_has_committed_exactly_what_is_printed(
    bootstrap: str, topic: str, unique: Any, number: signal.Signals
) -> None:
    lines = [b"%05d %s\n" % (at, b"x" * 90) for at in range(5000)]
    send(bootstrap, topic, "--partition", "0", given=b"".join(lines))
    group, printed = unique("g"), b""
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-m", "ottla", "consume", topic, "--group", group],
            env={**os.environ, "OTTLA_BOOTSTRAP": bootstrap},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            printed += process.stdout.read(9_000)  # the pipe is full again in a moment
            process.send_signal(number)
            printed += process.stdout.read()
        assert process.returncode == 0
    assert 3 * 9_000 <= len(printed) < 5000 * 97
    left = str(5000 - printed.count(b"\n"))
    printed += run(bootstrap, "consume", topic, "--group", group, "--max", left).stdout
    assert printed.splitlines(keepends=True) == lines


def test_the_classic_consumer_that_is_stopped_has_committed_what_it_printed(
    bootstrap: str, topic: str, unique: Any
) -> None:
    lines = [b"%05d %s\n" % (at, b"x" * 90) for at in range(5000)]
    send(bootstrap, topic, "--partition", "0", given=b"".join(lines))
    command = [sys.executable, "-m", "ottla.cli.kafka_compat", "kafka-console-consumer"]
    command += ["--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"]
    command += ["--group", unique("g")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        printed = process.stdout.read(9_000)  # the pipe is full again in a moment
        process.send_signal(signal.SIGTERM)
        printed += process.stdout.read()
        count = printed.count(b"\n")
        assert process.stderr.read() == b"Processed a total of %d messages\n" % count
    assert (process.returncode, count < 5000) == (143, True)
    command += ["--max-messages", str(5000 - count)]
    printed += subprocess.run(command, capture_output=True, timeout=250, check=True).stdout
    assert printed.splitlines(keepends=True) == lines


def test_the_end_of_a_member_moves_no_offset_of_another(
    on_terminal: Start, bootstrap: str, topic: str, unique: Any, eventually: Any
) -> None:
    group = unique("g")

    def send_some(count: int) -> None:
        for partition in "01":
            send(bootstrap, topic, "--partition", partition, given=b"v\n" * count)

    def committed() -> list[int | None]:
        [described] = json.loads(run(bootstrap, "group", "describe", group, "--json").stdout)
        return sorted(each["committed"] or 0 for each in described["partitions"])

    send_some(3)
    first = on_terminal("consume", topic, "--group", group)
    eventually(lambda: first.left().count("v\n") == 6)
    second = on_terminal("consume", topic, "--group", group)
    eventually(lambda: "(1 of 2 partitions)" in second.left())
    eventually(lambda: "(1 of 2 partitions)" in first.left())
    send_some(4)
    eventually(lambda: committed() == [7, 7])
    first.process.send_signal(signal.SIGTERM)
    assert first.end() == 0
    second.process.kill()
    assert committed() == [7, 7]


def test_an_idle_consume_says_that_it_waits_until_a_record_comes(
    on_terminal: Start, bootstrap: str, topic: str, eventually: Any
) -> None:
    command = on_terminal("consume", topic)
    line = f"waiting for new records of {topic} (2 partitions); --from-beginning shows the old"
    eventually(lambda: command.left().startswith(line))
    send(bootstrap, topic, given=b"hello\n")
    eventually(lambda: command.left().startswith("hello\n"))
    eventually(lambda: f"\n{line}" in command.left())
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 0
    assert command.left() == "hello\n"


def test_a_member_without_partitions_is_told_why_it_waits(
    on_terminal: Start, topic: str, unique: Any, eventually: Any
) -> None:
    group = unique("g")
    members = [on_terminal("consume", topic, "--group", group, piped=True) for _ in range(3)]

    def lines() -> list[str]:
        return sorted(member.left().split("\n")[-1][:70] for member in members)

    one = f"waiting for new records of {topic} (1 of 2 partitions); Ctrl-C ends"
    idle = f"waiting for a partition of {topic}: other members of {group} read"
    eventually(lambda: lines() == sorted([one[:70], one[:70], idle[:70]]))


def test_no_command_hands_a_terminal_what_a_record_or_a_name_would_tell_it(
    on_terminal: Start, bootstrap: str, topic: str, unique: Any, tmp_path: Path
) -> None:
    title = "\x1b]0;owned\x07"
    group = f"{unique('g')}{title}"
    with ottla.Producer(bootstrap) as producer:
        producer.send(
            topic,
            f"{title}\x9b31m".encode(),
            key=title.encode(),
            headers={f"{title}name": f"{title}\x9b".encode()},
            partition=0,
        )
    with ottla.Consumer(bootstrap, group=group, reset="earliest") as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(30) is not None
    batch = build_batch([(1, title.encode(), title.encode(), [(title, title.encode())])])
    segment = tmp_path / f"{0:020}.log"
    segment.write_bytes(batch)
    for command in (
        ["consume", topic, "--from-beginning", "--exit-at-end", "--headers", "--key"],
        ["group", "list"],
        ["group", "describe", group],
        ["log", "dump", "--records", str(segment)],
        ["log", "dump", "--records", "--json", str(segment)],
    ):
        shown = on_terminal(*command)
        assert shown.end() == 0
        assert "owned" in shown.shown
        assert not re.search("\x1b]|\x9b", shown.shown), command


def test_in_a_pipe_nothing_is_said_about_waiting(bootstrap: str, topic: str) -> None:
    read = run(bootstrap, "consume", topic, "--timeout", "2")
    assert (read.stdout, read.stderr) == (b"", b"")


# -- produce


def test_sending_a_file_shows_how_far_it_is_and_leaves_the_summary(
    on_terminal: Start, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%0100d\n" % number for number in range(200_000)))
    command = on_terminal("produce", topic, "--file", str(path))
    assert command.end() == 0
    bar = re.search(
        r"[0-9.]+ [kM]?B of 20\.2 MB, [1-9][0-9,]* records? [0-9,]+ records/s [0-9:-]+",
        re.sub(r"\x1b\[[0-9;]*m", "", command.shown),
    )
    assert bar is not None
    assert re.fullmatch(
        rf"sent 200,000 records \(20,000,000 bytes\) to {topic} in [0-9.]+ s\n", command.left()
    )
    quiet = on_terminal("produce", topic, "-q", "--file", str(path))
    assert (quiet.end(), quiet.shown) == (0, "")


def test_a_file_whose_sending_is_stopped_is_counted_to_the_record(
    on_terminal: Start, bootstrap: str, topic: str, tmp_path: Path, eventually: Any
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%0200d\n" % number for number in range(2_000_000)))
    command = on_terminal("produce", topic, "--json", "--file", str(path), piped=True)
    eventually(lambda: "records/s" in command.shown)
    command.process.send_signal(signal.SIGINT)
    assert command.process.stdout is not None
    found = json.loads(command.process.stdout.read())
    assert command.end() == 1
    assert 0 < found["sent"] < 2_000_000
    assert found["error"] == f"stopped after {found['sent']:,} lines: the rest was not sent"
    with ottla.Admin(bootstrap) as admin:
        ends = admin.list_offsets({(topic, 0): "latest", (topic, 1): "latest"})
    assert sum(end.offset for end in ends.values()) == found["sent"]


def test_a_misspelt_topic_is_created_as_in_kafka_and_the_user_is_told(
    bootstrap: str, topic: str, ours_only: None
) -> None:
    wrong = topic[:-1] + "_"
    result = run(bootstrap, "produce", wrong, given=b"a\n")
    assert result.returncode == 0
    assert result.stderr.decode().splitlines()[0] == (
        f"there was no topic {wrong!r}: the broker has created it, with 1 partition; did you mean "
        f"{topic!r}? `ottla topic delete {wrong}` removes it"
    )
    assert len(run(bootstrap, "produce", wrong, given=b"b\n").stderr.splitlines()) == 1


# -- log dump


def test_verifying_shows_how_far_it_is_and_leaves_its_verdicts(
    on_terminal: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    records = [(1_700_000_000_000, None, b"v" * 50, ())] * 1000
    batch = build_batch(records, base_offset=0)
    for first in (0, 300_000):
        with open(folder / f"{first:020}.log", "wb") as file:
            for number in range(300):
                # the checksum does not cover the offset
                file.write(struct.pack(">q", first + 1000 * number) + batch[8:])
    total = f"{600 * len(batch) / 1e6:.1f}"
    verdicts = (
        f"{folder}/00000000000000000000.log  ok  300 batches, offsets 0 to 299,999\n"
        f"{folder}/00000000000000300000.log  ok  300 batches, offsets 300,000 to 599,999\n"
        f"all is well: 2 files checked, none damaged\n"
    )
    command = on_terminal("log", "dump", "--verify", str(folder))
    assert command.end() == 0
    assert re.search(
        rf"[0-9.]+ [kM]?B of {total} MB, [1-9][0-9,]*000 records [0-9,]+ records/s",
        re.sub(r"\x1b\[[0-9;]*m", "", command.shown),
    )
    assert command.left() == verdicts
    piped = on_terminal("log", "dump", "--verify", str(folder), piped=True)
    assert piped.process.stdout is not None
    assert piped.process.stdout.read().decode() == verdicts
    assert (piped.end(), piped.left().strip()) == (0, "")
