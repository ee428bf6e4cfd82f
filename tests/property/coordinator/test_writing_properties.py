"""Commands alone and in crowds, small and large, with a log that fails now and then.

Whatever the order: an answer is never ahead of the log, what was refused is not in it, and the
shard in memory is what the log says, or is known to be broken and made anew from it.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.coordinator.shard import Now, Result
from ottla.coordinator.writing import Turn, Writer
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.batch import batches
from ottla.records.compression import Compression
from ottla.records.reader import iter_records
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.testing.logs import LogBench

LIMIT = 2_000
NOW = Now(1_700_000_000_000, 1_000)

# A command: how large each of its records is, whether they belong together, and what it is about.
Command = tuple[list[int], bool, str | None]
commands = st.tuples(
    st.lists(st.sampled_from([0, 10, 700, 1_500, 3_000]), max_size=4),
    st.booleans(),
    st.sampled_from(["a", "b", None]),
)
turns = st.lists(st.lists(commands, max_size=40), max_size=6)
failures = st.frozensets(st.integers(0, 20), max_size=3)


class Settings:
    compression = Compression.NONE
    commit_timeout_ms = 5_000


class Notebook:
    """A shard that notes what it is told, and where the log has it."""

    def __init__(self) -> None:
        self.notes: dict[int, bytes] = {}

    def subject(self, command: str | None) -> str | None:
        return command

    def replay(self, key: bytes, value: bytes | None, *, offset: int = -1, **_: Any) -> None:
        assert offset not in self.notes
        self.notes[offset] = key


class World:
    """One partition, and the writer of its newest shard."""

    def __init__(self, fails: frozenset[int]) -> None:
        state = PartitionState(1, 0, 0, (1,), (1,))
        log = LogBench(TopicConfig(max_message_bytes=LIMIT)).open()
        place, topic, durability = TopicPartition("__things", 0), TopicId(b"t" * 16), None
        self.partition = Partition(place, topic, log, state, durability)
        self._fails = fails
        self.failed = False
        self._appends = itertools.count()
        self._names = itertools.count()
        self._append = Partition.append
        self.turn = Turn()
        self.open(Notebook())

    def open(self, shard: Any) -> None:
        self.shard = shard
        self.writer = Writer(self.partition, 0, shard, self.turn, Settings(), lambda error: None)

    def append(self, partition: Partition, *arguments: Any, **more: Any) -> Any:
        if next(self._appends) in self._fails:
            self.failed = True
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return self._append(partition, *arguments, **more)

    def run(self, sizes: list[int], atomic: bool, about: str | None) -> tuple[list[bytes], Any]:
        """The names of the records, and the outcome."""
        tag = (about or "all").encode()
        names = [b"%s %d" % (tag, next(self._names)) for _ in sizes]
        records = [(name, b"x" * size) for name, size in zip(names, sizes, strict=True)]
        result = Result("done", records, atomic=atomic)
        try:
            if records:
                self.writer.record(result, about, NOW)
            return names, self.writer.reply(result.reply, about)
        except KafkaError as error:
            return names, error

    def known(self, about: str | None) -> set[bytes]:
        """The records in memory that a reply about this may tell of."""
        tags = (b"all", b"a", b"b") if about is None else (b"all", about.encode())
        return {name for name in self.shard.notes.values() if name.split()[0] in tags}

    def log(self) -> Notebook:
        """What the log says at this moment."""
        found = Notebook()
        log = self.partition.log
        region = log.read(0, 1 << 30, upper=log.log_end_offset).region
        data = b"" if region is None else region.read()
        for at, header in batches(data):
            for record in iter_records(memoryview(data)[at : at + header.size], header):
                assert record.key is not None
                found.replay(record.key, record.value, offset=record.offset)
        return found


@given(turns, failures)
def test_memory_log_and_answers_agree(crowds: list[list[Command]], fails: frozenset[int]) -> None:
    asyncio.run(live(crowds, fails))


async def live(crowds: list[list[Command]], fails: frozenset[int]) -> None:
    world = World(fails)

    def append(partition: Partition, *arguments: Any, **more: Any) -> Any:
        return world.append(partition, *arguments, **more)

    with patch.object(Partition, "append", append):
        for crowd in crowds:
            await turn(world, crowd)


async def turn(world: World, crowd: list[Command]) -> None:
    outcomes = []
    for sizes, atomic, about in crowd:
        if world.writer.broken:
            break
        names, outcome = world.run(sizes, atomic, about)
        outcomes.append((names, atomic, outcome))
        if not isinstance(outcome, Deferred | KafkaError):
            written = set(world.log().notes.values())
            assert set(names) <= written, "an answer ahead of the log"
            assert world.known(about) <= written, "an answer tells of what is not in the log"
    await asyncio.sleep(0)
    truth = world.log()
    written = set(truth.notes.values())
    for names, atomic, outcome in outcomes:
        if settled(outcome) == "done":
            assert set(names) <= written, "acknowledged and lost"
        elif atomic:
            assert not set(names) & written, "refused and written"
    if world.writer.broken:
        assert world.failed, "broken though every write went well"
        world.open(truth)
    assert world.shard.notes == truth.notes


def settled(outcome: Any) -> Any:
    if not isinstance(outcome, Deferred):
        return outcome
    assert outcome.done, "left waiting after the turn"
    try:
        return outcome.result()
    except KafkaError as error:
        return error
