"""Readers of transactional topics: of committed records, or of everything."""

from __future__ import annotations

from typing import Literal

from ottla.errors import ErrorCode
from ottla.records.errors import InvalidBatch
from ottla.verify.clients.connections import Connections
from ottla.verify.clients.reader import WAIT_MS, PartitionReader, ask_latest
from ottla.verify.history import Recorder
from ottla.verify.txn_values import Aborted, read_log
from ottla.verify.values import ForeignRecord, Run

Level = Literal["all", "committed"]
_ISOLATION: dict[Level, int] = {"all": 0, "committed": 1}


class TxnReader(PartitionReader):
    """One consumer of one partition: `run(stopping)`, `read_to(end)`, or one `read()`."""

    MOST_BYTES = 1 << 18

    def __init__(
        self,
        name: str,
        partition: int,
        level: Level,
        connections: Connections,
        recorder: Recorder,
        *,
        keyed: bool = False,
        wait_ms: int = WAIT_MS,
    ) -> None:
        super().__init__(
            name, partition, connections, recorder, isolation=_ISOLATION[level], wait_ms=wait_ms
        )
        self._level: Level = level
        self._keyed = keyed

    async def answered(self) -> bool:
        return await self.read() is not None

    async def read(self, transaction: int | None = None) -> list[Run] | None:
        """One fetch, in a transaction of its client; what it has brought, None without answer."""
        begun = self._recorder.now()
        told, epoch = await self._fetch()
        if told is None:
            return None
        known: dict[str, object] = {
            "topic": self._connections.topic, "p": self.partition, "level": self._level,
            "begun": begun, "from": self.position, "epoch": epoch, "txn": transaction,
        }  # fmt: skip
        if told.error_code:
            error = ErrorCode.of(told.error_code).name
            self._recorder.record(self.name, "txn-read", "fail", error=error, **known)
            return None
        if not told.records:
            return []
        aborted = None
        if self._level == "committed":
            aborted = [
                Aborted(each.producer_id, each.first_offset)
                for each in told.aborted_transactions or ()
            ]
        try:
            content = read_log(memoryview(told.records), self.position, aborted, keyed=self._keyed)
        except (ForeignRecord, InvalidBatch) as error:
            self._note_damage(error)
            return None
        if content.next_offset > self.position:
            if self._level == "all":
                known["markers"] = content.markers
            self.position = content.next_offset
            self._recorder.record(
                self.name, "txn-read", "ok",
                next=self.position, stable=told.last_stable_offset, runs=content.runs, **known,
            )  # fmt: skip
        return content.runs


async def ask_mark(
    name: str, partition: int, level: Level, connections: Connections, recorder: Recorder
) -> int | None:
    """How far a partition can be read at a level; None when that is not to be had."""
    begun = recorder.now()
    found = await ask_latest(partition, connections, _ISOLATION[level])
    if found is None:
        return None
    mark, epoch = found
    recorder.record(
        name, "txn-mark", "ok",
        topic=connections.topic, p=partition, level=level, begun=begun, epoch=epoch, mark=mark,
    )  # fmt: skip
    return mark
