"""Disks: logs that outlive a broker's process, and lose what was not synced when the power fails,
or the disk: that one is whole again for the next process, but for what it had not written.

A `SimLog` is what `Partition` needs of `storage.log.Log`, with the product's own `LeaderEpochs`. A
record is a leader epoch and a number that no other record has; on the wire they are 12 bytes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any

from ottla.model.ids import TopicId, TopicPartition
from ottla.runtime.files import OsFileSystem
from ottla.storage.epochs import LeaderEpochs
from ottla.storage.log import AppendInfo, ReadResult
from ottla.storage.truncation import Cut

RECORD = Struct(">iq")
NUMBER = Struct(">q")


class Epochs(LeaderEpochs):
    """Leader epochs whose file is this object."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(OsFileSystem(), "", is_new=True)

    def _write(self) -> None:
        self._unwritten = False

    def lose_unwritten(self) -> None:
        """The process has died: an epoch without a batch was only in memory."""
        if self._unwritten and self._entries:
            self._entries.pop()
        self._unwritten = False


class SimLog:
    """One partition's log on one disk."""

    __slots__ = (
        "_touch", "checked", "config", "cuts", "epochs", "failure", "id", "log_start_offset",
        "mark", "records", "recovery_point", "topic_id",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, topic_id: TopicId, touch: Callable[[], None]) -> None:
        self.id = tp
        self.topic_id = topic_id
        self.records: list[tuple[int, Any]] = []
        self.epochs = Epochs()
        self.recovery_point = 0  # everything below is synced
        self.log_start_offset = 0
        self.mark = 0
        self.failure: str | None = None
        self.config: Any = None
        self.cuts = 0
        self.checked = 0  # by the invariants: committed records that were compared
        self._touch = touch

    @property
    def high_watermark(self) -> int:
        return self.mark

    @high_watermark.setter
    def high_watermark(self, mark: int) -> None:
        self.mark = mark
        self._touch()

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    @property
    def unflushed_messages(self) -> int:
        return len(self.records) - self.recovery_point

    @property
    def flush_due(self) -> bool:
        return self.unflushed_messages >= self.config.flush_messages

    @property
    def latest_epoch(self) -> int | None:
        return self.epochs.latest

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.begin(epoch, len(self.records))
        self._touch()

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, len(self.records))

    def epoch_for(self, offset: int) -> int | None:
        return self.epochs.epoch_for(offset)

    def append(self, records: memoryview, *, leader_epoch: int, **_: object) -> AppendInfo:
        base = len(self.records)
        self.epochs.assign(leader_epoch, base)
        self.records += ((leader_epoch, number) for (number,) in NUMBER.iter_unpack(records))
        self._touch()
        return AppendInfo(base, len(self.records) - 1, -1, 0, False, len(records))

    def append_replicated(self, records: memoryview, *, leader_epoch: int) -> None:
        for epoch, number in RECORD.iter_unpack(records):
            self.epochs.assign(epoch, len(self.records))
            self.records.append((epoch, number))
        self._touch()

    def read(self, offset: int, max_bytes: int, *, upper: int, **_: object) -> ReadResult:
        found = self.records[offset : min(upper, offset + 64)]
        if not found:
            return ReadResult(None)
        region: Any = memoryview(b"".join(RECORD.pack(*each) for each in found))
        return ReadResult(region)

    def is_behind(self, offset: int, upper: int) -> bool:
        return False

    def bytes_from(self, start: int, end: int) -> int:
        return RECORD.size * (end - start)

    def last_stable_offset(self, high_watermark: int) -> int:
        return high_watermark

    def advance_start(self, offset: int) -> None:
        pass

    def process_ended(self) -> None:
        """What was only in memory is gone."""
        self.epochs.lose_unwritten()

    def cut(self, offset: int) -> None:
        """Drop what is at or behind the offset; a cut is synced before anything follows it."""
        if offset < len(self.records):
            self.cuts += 1
            del self.records[offset:]
            self.recovery_point = min(self.recovery_point, offset)
            self.mark = min(self.mark, offset)
            self.checked = min(self.checked, offset)
        self.epochs.truncate_from_end(offset)
        self._touch()


class Disk:
    """All logs of one broker, as `Replicas` uses `LogDirectories`; survives the broker."""

    def __init__(
        self,
        touch: Callable[[], None],
        rng: random.Random,
        make_log: Callable[[TopicPartition], type[SimLog]],
    ) -> None:
        self._touch = touch
        self._make_log = make_log
        self._rng = rng
        self.logs: dict[TopicPartition, SimLog] = {}
        self.offline_partitions: dict[TopicPartition, str] = {}
        self.damaged: dict[TopicPartition, TopicId] = {}  # none ever is
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.directory_ids = (f"disk-{rng.getrandbits(32):08x}",)
        self.boot = 1
        self.were_clean = True
        self.lost_partitions: frozenset[TopicPartition] = frozenset()
        self._dirty = False  # since the broker's start

    def create(self, tp: TopicPartition, topic_id: TopicId, config: Any, *, is_new: bool) -> SimLog:
        log = self.logs.get(tp)
        if log is None:
            log = self.logs[tp] = self._make_log(tp)(tp, topic_id, self._touch)
        log.config = config
        return log

    def delete(self, tp: TopicPartition) -> None:
        """The partition was moved to other brokers."""
        self.logs.pop(tp, None)
        self.high_watermarks.pop(tp, None)
        self.offline_partitions.pop(tp, None)

    forget = delete

    def set_aside(self, tp: TopicPartition) -> str:
        self.delete(tp)
        return "a folder that nobody looks into"

    def may_be_cut(self, tp: TopicPartition) -> bool:
        return not self.were_clean

    def start(self) -> None:
        self.were_clean, self._dirty = not self._dirty, True
        for tp in self.offline_partitions:
            self.logs[tp].failure = None
        self.offline_partitions.clear()

    def fail(self, partitions: Iterable[TopicPartition]) -> None:
        """The folder of these is gone, until the next process."""
        for tp in partitions:
            self.logs[tp].failure = self.offline_partitions[tp] = "the disk has failed"

    def lose_unwritten(self) -> None:
        """What a disk that has failed did not write: found missing by the next process."""
        for tp in self.offline_partitions:
            log = self.logs[tp]
            log.cut(self._rng.randint(min(log.recovery_point, len(log.records)), len(log.records)))
            self.high_watermarks[tp] = min(self.high_watermarks[tp], len(log.records))

    def stop_cleanly(self) -> None:
        for log in self.logs.values():
            log.recovery_point = len(log.records)
            log.process_ended()
        self.high_watermarks = {tp: log.mark for tp, log in self.logs.items()}
        self._dirty = False

    def process_died(self) -> None:
        """kill -9: what was written is there; marks are as of the last checkpoint."""
        for tp, log in self.logs.items():
            log.process_ended()
            known = min(self.high_watermarks.get(tp, 0), log.mark)
            self.high_watermarks[tp] = self._rng.randint(known, log.mark)

    def power_failed(self) -> int:
        """What was not synced is gone, in part or all of it; returns how many records."""
        self.process_died()
        lost = 0
        for tp, log in self.logs.items():
            end = self._rng.randint(min(log.recovery_point, len(log.records)), len(log.records))
            before = len(log.records)
            log.cut(end)
            lost += before - len(log.records)
            self.high_watermarks[tp] = min(self.high_watermarks[tp], len(log.records))
        self.boot += 1
        return lost

    # --- while a broker runs ------------------------------------------------------------------

    def wait_flushed(
        self, log: SimLog, offset: int, *, urgent: bool = True
    ) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        end, cuts = len(log.records), log.cuts

        def synced() -> None:
            if log.cuts == cuts:
                log.recovery_point = max(log.recovery_point, end)
            if not done.done():
                done.set_result(None)

        loop.call_later(self._rng.uniform(0.001, 0.02), synced)
        return done

    async def truncate(self, cuts: Sequence[Cut]) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 0.01))  # the checkpoints
        for cut in cuts:
            self.logs[cut.partition].cut(cut.offset)
        await asyncio.sleep(self._rng.uniform(0.0, 0.01))  # fsync
