"""Clients that everybody uses: librdkafka's idempotent producer, and its consumer in a group.

They try again by themselves, and batch, and tell only how it ended, which is what programs see. So
here the retries, epochs and sequence numbers are librdkafka's own.

A producer is shared by several senders, each of which waits for its last value before it sends the
next one. The proxies are served by the loop that these clients run beside: nothing here may block
it, so a consumer, whose calls wait for brokers, has a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Sequence

import confluent_kafka as rd

from ottla.verify.clients.connections import Address, Pause
from ottla.verify.clients.writer import Progress
from ottla.verify.history import Recorder
from ottla.verify.values import ForeignRecord, runs_of, write_value

POLL_SECONDS = 0.005
GIVE_UP_SECONDS = 35.0
COMMIT_SECONDS = 0.5
ASK_SECONDS = 10.0
SESSION_MS = 6_000
_MOST_MESSAGES = 500
_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.setLevel(logging.CRITICAL)  # it tells of every connection that ends, and here many do


def _settings(bootstrap: Sequence[Address]) -> dict[str, object]:
    return {
        "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in bootstrap),
        "reconnect.backoff.max.ms": 500,
        "logger": _SILENT,
    }


class Senders:
    """One producer, and several who send through it; `await run(stopping)`."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        topic: str,
        partitions: int,
        numbers: Sequence[int],
        recorder: Recorder,
        progress: Progress,
        *,
        pause: float,
        seed: int,
    ) -> None:
        self._settings = {
            **_settings(bootstrap),
            "enable.idempotence": True,
            "linger.ms": 5,
            # A producer that gives a message up takes a new epoch, and sends again under it what
            # may be stored already: its promise is kept only where it never gives up.
            "message.timeout.ms": 0,
            # So does one whose next request finds a leader that refused the one before it, as it
            # was none yet: a gap. It sends everything again then, also to other partitions whose
            # old leaders have what they did not answer. With one request at a time there is no gap.
            "max.in.flight.requests.per.connection": 1,
        }
        self._topic = topic
        self._partitions = partitions
        self._numbers = numbers
        self._recorder = recorder
        self._progress = progress
        self._pause = pause
        self._random = random.Random(seed)
        self._producers: list[rd.Producer] = []

    async def run(self, stopping: asyncio.Event) -> None:
        """Send until told to stop; what was sent has ended then."""
        self._begin()
        polling = asyncio.ensure_future(self._poll())
        try:
            await asyncio.gather(*(self._send_all(number, stopping) for number in self._numbers))
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    def _begin(self) -> None:
        """A new producer, with an identity of its own; the old one is served to its end."""
        self._producers.append(rd.Producer(self._settings))

    async def _poll(self) -> None:
        while True:
            for producer in tuple(self._producers):
                producer.poll(0)
            await asyncio.sleep(POLL_SECONDS)

    async def _send_all(self, number: int, stopping: asyncio.Event) -> None:
        sent = 0
        pause = Pause()
        while not stopping.is_set():
            if await self._send(number, sent):
                pause.reset()
                if not self._progress.pressing:
                    await asyncio.sleep(self._pause * self._random.uniform(0.5, 1.5))
            else:
                await pause.wait()
            sent += 1

    async def _send(self, number: int, value: int) -> bool:
        """Send one value; whether it was acknowledged."""
        record, client = self._recorder.record, f"librdkafka-{number}"
        progress = self._progress
        partition = self._random.randrange(self._partitions)
        done: asyncio.Future[tuple[rd.KafkaError | None, int]] = (
            asyncio.get_running_loop().create_future()
        )

        def delivered(error: rd.KafkaError | None, message: rd.Message) -> None:
            if not done.done():
                done.set_result((error, told_offset(message)))

        record(client, "send", "invoke", p=partition, writer=number, first=value, count=1)
        producer = self._producers[-1]
        try:
            producer.produce(
                self._topic,
                write_value(number, value),
                partition=partition,
                on_delivery=delivered,
            )
        except (BufferError, rd.KafkaException) as error:
            progress.refused += 1
            record(client, "send", "fail", error=str(error))
            if isinstance(error, rd.KafkaException):
                self._replace(producer)
            return False
        progress.in_flight += 1
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                failure, offset = await done
        except TimeoutError:
            # An outage, or a broker has forgotten its sequence numbers: it may wait for ever.
            self._replace(producer)
            progress.unknown += 1
            record(client, "send", "unknown", error="the producer tells nothing")
            return False
        finally:
            progress.in_flight -= 1
        if failure is None:
            progress.note_acknowledged(1, self._topic, partition)
            record(client, "send", "ok", offset=offset)
            return True
        progress.unknown += 1
        record(client, "send", "unknown", error=failure.name())
        return False

    def _replace(self, producer: rd.Producer) -> None:
        """Begin anew after an error that a producer cannot go on after."""
        if producer is self._producers[-1]:
            self._begin()


def told_offset(message: rd.Message) -> int:
    """Where a message was stored; -1 if nobody knows: its answer was lost, and that a later one of
    the same producer was accepted shows that it is there."""
    offset = message.offset()
    return -1 if offset is None else offset


class GroupConsumer:
    """The only member of a group: it reads, commits, and goes on from there. `await run(…)`.

    When it does not know what became of a commit it ends and another one begins, so that a late
    commit is refused.
    """

    def __init__(
        self, bootstrap: Sequence[Address], topic: str, group: str, recorder: Recorder
    ) -> None:
        self._settings = {
            **_settings(bootstrap),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
        }
        self.name = group
        self._topic = topic
        self._group = group
        self._recorder = recorder
        self._lives = 0
        # of one assignment
        self._name = ""
        self._positions: dict[int, int] = {}
        self._unsure = False

    def come_to(self, partition: int) -> int:
        """The offset that it wants next."""
        return self._positions.get(partition, 0)

    async def run(self, stopping: asyncio.Event) -> None:
        """Consume until told to stop."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(error: Exception | None) -> None:
            if not ended.done():
                ended.set_exception(error) if error is not None else ended.set_result(None)

        def work() -> None:
            error = None
            try:
                self._work(stopping)
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(end, error)

        # Not one of the loop's own threads, for which its end would wait: a commit waits for a
        # coordinator for as long as there is none.
        threading.Thread(target=work, name=self._group, daemon=True).start()
        await ended

    def _work(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            self._unsure = False
            consumer = rd.Consumer(self._settings)
            try:
                consumer.subscribe([self._topic], on_assign=self._assigned)
                self._consume(consumer, stopping)
            except rd.KafkaException:
                time.sleep(POLL_SECONDS)
            finally:
                consumer.close()

    def _assigned(self, consumer: rd.Consumer, partitions: list[rd.TopicPartition]) -> None:
        """Partitions were assigned: go on from what is committed."""
        self._lives += 1
        self._name = f"{self._group}-{self._lives}"
        self._positions = {}
        record = self._recorder.record
        record(self._name, "committed", "invoke", group=self._group)
        try:
            found = consumer.committed(partitions, timeout=ASK_SECONDS)
        except rd.KafkaException as error:
            record(self._name, "committed", "fail", group=self._group, error=str(error))
            self._unsure = True
            return
        if any(each.error is not None for each in found):
            record(self._name, "committed", "fail", group=self._group)
            self._unsure = True
            return
        offsets = [(each.partition, max(-1, each.offset)) for each in found]
        record(self._name, "committed", "ok", group=self._group, offsets=offsets)
        self._positions = {number: max(0, offset) for number, offset in offsets}
        consumer.assign(
            [
                rd.TopicPartition(self._topic, number, offset)
                for number, offset in self._positions.items()
            ]
        )

    def _consume(self, consumer: rd.Consumer, stopping: asyncio.Event) -> None:
        due = time.monotonic() + COMMIT_SECONDS
        while not stopping.is_set() and not self._unsure:
            begun = self._recorder.now()
            messages = consumer.consume(_MOST_MESSAGES, 0.1)
            self._note(messages, begun)
            if time.monotonic() >= due and self._positions:
                self._commit(consumer)
                due = time.monotonic() + COMMIT_SECONDS

    def _note(self, messages: Sequence[rd.Message], begun: int) -> None:
        """Say in the history what has come."""
        by_partition: dict[int, list[tuple[int, bytes]]] = {}
        epochs: dict[int, list[tuple[int, int]]] = {}
        for message in messages:
            number, offset, value = message.partition(), message.offset(), message.value()
            if message.error() is not None or number is None or offset is None:
                continue
            by_partition.setdefault(number, []).append((offset, bytes(value or b"")))
            epoch = message.leader_epoch()
            told = epochs.setdefault(number, [])
            if epoch is not None and (not told or told[-1][1] != epoch):
                told.append((offset, epoch))
        for number, records in by_partition.items():
            try:
                runs = runs_of(records)
            except ForeignRecord as error:
                text = f"{self._name} reads {self._topic}-{number}, and {error}"
                self._recorder.record(self._name, "damaged", "ok", text=text)
                self._unsure = True
                continue
            self._recorder.record(
                self._name, "read", "ok",
                p=number, begun=begun, runs=runs, epochs=epochs[number],
                **{"from": self._positions.get(number, 0)},
            )  # fmt: skip
            self._positions[number] = records[-1][0] + 1

    def _commit(self, consumer: rd.Consumer) -> None:
        record = self._recorder.record
        offsets = list(self._positions.items())
        record(self._name, "commit", "invoke", group=self._group, generation=0, offsets=offsets)
        wanted = [rd.TopicPartition(self._topic, number, offset) for number, offset in offsets]
        try:
            told = consumer.commit(offsets=wanted, asynchronous=False)
        except rd.KafkaException as error:
            record(self._name, "commit", "unknown", error=str(error))
            self._unsure = True
            return
        failed = [each.error for each in told or () if each.error is not None]
        if failed:
            record(self._name, "commit", "unknown", error=str(failed[0]))
            self._unsure = True
        else:
            record(self._name, "commit", "ok")
