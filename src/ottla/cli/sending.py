"""Records on their way from a command to a topic, and the account of what became of them.

Sending ends at the first record that cannot be sent: what was read before it is delivered, and the
report names it, so that nobody has to guess what is missing. Counted is what the broker has
acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.cli.output import count, explain, grouped
from ottla.cli.patience import patience
from ottla.cli.progress import Bar, sigterm_interrupts
from ottla.cli.record_lines import BadLine, HeaderList, Line, LongLine, Shape, parse, strip_end
from ottla.client.interrupts import Interrupts
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from datetime import datetime

    from ottla.client.producer import DeliveryCallback
    from ottla.client.records import Delivery, Headers

# What a log needs for a batch of one record beside its key, value and headers, at least.
_OVERHEAD = 68
# Without a limit: what to keep an eye on. A batch may be as large as that by itself.
_LARGE = 100_000
# Between two looks at the clock, and between two steps of the progress bar.
_STEP_BYTES = 65_536
_STEP_SECONDS = 0.1
_AGAIN = "Ctrl-C again gives up"
# librdkafka does not hand on which record the broker refused, and why. This is the usual cause.
_NO_KEY = "; in a compacted topic every record must have a key (--key-separator or --key)"


class Target(NamedTuple):
    """Where records go."""

    topic: str
    partition: int | None
    """All of them; None where each may say it, or its key decides."""
    partitions: int
    limit: int | None
    """The topic's max.message.bytes, if it is known."""
    compressed: bool
    """Then how large a record is in the end, only the broker can tell."""


class WholeFile(NamedTuple):
    """A file that is one record."""

    name: str
    size: int
    read: Callable[[], bytes]
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Report(NamedTuple):
    """What became of the records."""

    sent: int
    failed: int
    bytes: int
    seconds: float
    error: str | None


class Posts(Protocol):
    """What takes records: a producer, or what stands before one."""

    def post(
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None: ...

    def close(self, timeout: float | None = None) -> None: ...

    def __len__(self) -> int: ...


class Sender:
    """Sends one input; to be used once."""

    all_or_nothing = False  # what was sent before a mistake is of no use then

    def __init__(self, producer: Posts, target: Target, bootstrap: str) -> None:
        self.progress = Bar()
        self._producer = producer
        self._target = target
        self._bootstrap = bootstrap
        self._interrupts = Interrupts()
        limit = target.limit
        self._most = None if limit is None or target.compressed else limit - _OVERHEAD
        self._small = _LARGE if limit is None else limit // 2
        self._done = 0  # lines or files
        self._name: str | None = None  # of the file in hand
        self._offered = 0  # records, and their bytes
        self._size = 0
        self._refused: list[tuple[str, int, KafkaError]] = []
        self._read = 0
        self._shown_at = 0.0

    def send_lines(self, lines: Iterable[bytes], shape: Shape, *, is_file: bool = False) -> Report:
        """Every line a record; `is_file` says that there is an end, which Ctrl-C comes before."""
        source = lines if is_file else self._interruptible(lines)
        return self._account(partial(self._lines, source, shape), "line", is_file)

    def send_files(self, files: Iterable[WholeFile]) -> Report:
        """Every file a record."""
        return self._account(partial(self._files, files), "file", True)

    def _lines(self, lines: Iterable[bytes], shape: Shape) -> None:
        post, topic, partition = self._producer.post, self._target.topic, self._target.partition
        interrupts = self._interrupts
        small = self._small if shape == Shape() else -1
        done = posted = size = read = 0
        try:
            for raw in lines:
                if interrupts.count:
                    return
                text = strip_end(raw)
                if len(text) <= small:
                    try:
                        post(topic, text, partition=partition)
                    except KafkaError as error:
                        self._wait_for_room(error)
                        self._post(text)
                    posted += 1
                    size += len(text)
                elif text.strip() or not shape.is_json:
                    self._done, done = self._done + done, 0  # it may be asked for its place
                    self._send(parse(text, shape))
                done += 1
                read += len(raw)
                if read >= _STEP_BYTES:
                    self._offered, posted = self._offered + posted, 0
                    self._read, read = self._read + read, 0
                    self._show()
        finally:
            self._done += done
            self._offered += posted
            self._size += size

    def _interruptible(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Lines that somebody may still have to write: waiting for one is interrupted at once. What
        goes on between two of them is not."""
        iterator = iter(lines)
        while True:
            try:
                self._interrupts.raising = True
                line = next(iterator, None)
            finally:
                self._interrupts.raising = False
            if line is None:
                return
            yield line

    def _files(self, files: Iterable[WholeFile]) -> None:
        for file in files:
            if self._interrupts.count:
                return
            self._name = file.name
            self._check_size(file.size)
            self._send(Line(file.read(), file.key, list(file.headers)))
            self._read += file.size
            self._done += 1
            self._show()

    def _send(self, line: Line) -> None:
        target, size = self._target, line.size
        self._check_size(size)
        partition = target.partition if target.partition is not None else line.partition
        if partition is not None and partition >= target.partitions:
            last = target.partitions - 1
            raise BadLine(
                f"names partition {partition}; {target.topic!r} has "
                + ("only partition 0" if last == 0 else f"0 to {last}")
            )
        watch = None
        if size > self._small:
            watch = partial(self._settled, self._place, size)
        self._post(line.value, line.key, line.headers, partition, line.timestamp, watch)
        self._size += size
        self._offered += 1

    def _post(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeaderList | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        while True:
            try:
                self._producer.post(
                    self._target.topic,
                    value,
                    key=key,
                    headers=headers,
                    partition=self._target.partition if partition is None else partition,
                    timestamp=timestamp,
                    on_delivery=on_delivery,
                )
                return
            except KafkaError as error:
                self._wait_for_room(error)

    def _wait_for_room(self, error: KafkaError) -> None:
        """`post` has waited already, for a moment; raise what is more than a full buffer."""
        if getattr(error, "local", None) != "_QUEUE_FULL":
            raise error
        self._interrupts.check()
        self._show()

    def _check_size(self, size: int) -> None:
        if self._most is not None and size > self._most:
            raise BadLine(self._too_large(size))

    def _too_large(self, size: int) -> str:
        topic, limit = self._target.topic, self._target.limit
        takes = "its max.message.bytes" if limit is None else f"max.message.bytes={limit}"
        return (
            f"has {grouped(size)} bytes, more than {topic!r} takes with {takes}; raise it with "
            f"`ottla topic alter {topic} --config max.message.bytes=N`"
        )

    @property
    def _place(self) -> str:
        return f"line {grouped(self._done + 1)}" if self._name is None else self._name

    def _settled(
        self, place: str, size: int, _delivery: Delivery | None, error: KafkaError | None
    ) -> None:
        if error is not None:
            self._refused.append((place, size, error))

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _STEP_SECONDS:
            self._shown_at = now
            self.progress(self._read, self._offered - len(self._producer))

    # -- the account

    def _account(self, work: Callable[[], None], noun: str, has_end: bool) -> Report:
        started = time.monotonic()
        problems: list[str] = []
        with sigterm_interrupts(), self._interrupts:
            try:
                work()
                stopped = self._interrupts.count > 0
            except KeyboardInterrupt:
                self._interrupts.raising = False
                stopped = True
            except BadLine as bad:
                stopped = False
                what = self._too_large(bad.size) if isinstance(bad, LongLine) else str(bad)
                behind = f"the {noun}s before it were sent, it and those behind it were not"
                kept = f"; {behind if self._done else 'nothing was sent'}"
                problems.append(f"{self._place} {what}{'' if self.all_or_nothing else kept}")
            except OSError as error:
                stopped = False
                what = f"{error.filename or self._place} cannot be read: {error.strerror or error}"
                kept = f"; the {noun}s before it were sent"
                problems.append(f"{what}{'' if self.all_or_nothing else kept}")
            except KafkaError as error:
                stopped = False
                problems.append(f"{self._place}: {explain(error, self._bootstrap)}")
            if stopped and (has_end or self.all_or_nothing):
                after = f" after {count(self._done, noun)}" if self._done else ""
                problems.append(f"stopped{after}: the rest was not sent")
            line = f"waiting until {count(len(self._producer), 'record')} can be stored; {_AGAIN}"
            with patience(line) if stopped else nullcontext():
                failed, lost = self._settle(problems)
        seconds = round(time.monotonic() - started, 3)
        problem = "; ".join(problems) or None
        return Report(self._offered - failed, failed, self._size - lost, seconds, problem)

    def _settle(self, problems: list[str]) -> tuple[int, int]:
        """Wait until everything is stored or has failed, or for another Ctrl-C; how many records,
        and how many bytes, are not known to be stored."""
        before, pause = self._interrupts.count, 0.001
        while len(self._producer) and self._interrupts.count == before:
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
            self._show()
        under_way = len(self._producer)
        failures: Sequence[KafkaError] = ()
        try:
            self._producer.close(timeout=0.0 if under_way else None)
        except KafkaError as error:
            failures = getattr(error, "failures", (error,))
        failed = len(failures) + len(self._refused)
        if under_way:
            problems.append(
                f"stopped while {count(under_way, 'record')} had no answer: they may be stored or "
                f"not"
            )
        elif failed:
            problems.append(
                f"{count(failed, 'record')} of {grouped(self._offered)} not delivered: "
                f"{self._reason(failures)}"
            )
        lost = sum(getattr(each, "record_size", None) or 0 for each in failures)
        return failed, lost + sum(size for _, size, _ in self._refused)

    def _reason(self, failures: Sequence[KafkaError]) -> str:
        if self._refused:
            place, size, error = self._refused[0]
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                return f"{place} {self._too_large(size)}"
            return f"{place}: {explain(error, self._bootstrap)}"
        reason = explain(failures[0], self._bootstrap)
        return reason + _NO_KEY if failures[0].code is ErrorCode.INVALID_RECORD else reason
