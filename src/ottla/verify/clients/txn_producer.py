"""One instance of a transactional producer, request by request, in either version of the protocol.

Version 2 (KIP-890): leaders add their partitions by themselves (Produce 12), and every end raises
the epoch (EndTxn 5). Version 1: the producer adds partitions and groups beforehand, and keeps its
epoch. Without a transactional id it is a plain idempotent producer.

A request is sent again until it is answered, as clients do. What a request did that was never
answered is not known, and the history says how often that was (`lost`): such a request may arrive
later. A transaction with a batch of unknown fate is never committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.verify.clients.connections import Connections, NoAnswer, NotSent
from ottla.verify.clients.writer import Progress
from ottla.verify.history import Phase, Recorder
from ottla.verify.txn_values import Producer, Values, write_values

GIVE_UP_SECONDS = 20.0
TIMEOUT_MS = 10_000
"""Of a transaction: so long it may be open."""
_FEATURE = "transaction.version"

_FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
# The request was certainly not carried out. Every other error may come after that.
_REFUSED = _FENCED | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
}
_STORED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


@dataclass(frozen=True, slots=True)
class Dialect:
    """The versions of requests that a transaction version has; None for the newest."""

    number: int
    produce: int | None = None
    end: int | None = None
    add_partitions: int = 3
    add_offsets: int = 3
    commit_offsets: int | None = None


TWO = Dialect(2)
ONE = Dialect(1, produce=11, end=4, commit_offsets=4)


class Ended(Exception):
    """This instance cannot go on: another one is there, or what it did is not known."""


class MustAbort(Exception):
    """This transaction cannot be committed, and the producer can go on after its abort."""


@dataclass(slots=True)
class _Attempts:
    """How a request goes that is sent again and again."""

    deadline: float
    perhaps: bool = False  # one may have been carried out
    lost: int = 0  # were never answered

    def note(self, code: ErrorCode) -> None:
        self.perhaps = self.perhaps or code not in _REFUSED

    def note_lost(self) -> None:
        self.perhaps = True
        self.lost += 1


class TxnProducer:
    """`await init()`, then transactions: `begin`, `send`, `commit_offsets`, `end`."""

    def __init__(
        self,
        name: str,
        transactional_id: str | None,
        dialect: Dialect,
        connections: Connections,
        recorder: Recorder,
        progress: Progress,
        *,
        keyed: bool = False,
    ) -> None:
        self.name = name
        self.dialect = dialect
        self.transaction = -1
        """The number of the last one that was begun."""
        self._id = transactional_id
        self._connections = connections
        self._recorder = recorder
        self._progress = progress
        self._keyed = keyed
        # for one epoch
        self._producer_id = self._epoch = -1
        self._sequences: dict[int, int] = {}
        # for one transaction
        self._added: set[int] = set()
        self._uncertain = False  # a batch is of unknown fate

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._producer_id, self._epoch

    # ------------------------------------------------------------------ beginning

    async def init(self) -> None:
        """Become the producer of the transactional id; raises Ended."""
        await self._recorded("txn-init", self._init(-1, -1), id=self._id, v=self.dialect.number)
        if self._producer_id < 0:
            raise Ended

    async def _init(self, producer_id: int, epoch: int) -> tuple[Phase, dict[str, object]]:
        attempts = self._attempts()
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        self._producer_id = self._epoch = -1
        while True:
            answer, code = await self._ask_coordinator(request, attempts)
            if code is ErrorCode.NONE:
                self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                self._sequences.clear()
                return "ok", {"pid": self._producer_id, "epoch": self._epoch}
            if not await self._again(code, attempts):
                return self._failed(code, attempts)

    def begin(self) -> None:
        """Begin a transaction; nobody is told before it has records."""
        self.transaction += 1
        self._added.clear()
        self._uncertain = False

    # ------------------------------------------------------------------ records

    async def send(self, partition: int, values: Sequence[Values]) -> None:
        """One batch; raises MustAbort or Ended."""
        if self._id is not None and self.dialect.number == 1 and partition not in self._added:
            await self._add_partition(partition)
        count = sum(each.length for each in values)
        self._progress.in_flight += 1
        try:
            phase, told = await self._recorded(
                "txn-send",
                self._deliver(partition, values),
                topic=self._connections.topic, p=partition, values=values, **self._who(),
            )  # fmt: skip
        finally:
            self._progress.in_flight -= 1
        if phase == "ok":
            self._sequences[partition] = self._sequences.get(partition, 0) + count
            self._progress.note_acknowledged(count, self._connections.topic, partition)
            return
        if phase == "unknown":
            self._progress.unknown += count
            self._uncertain = True
        else:
            self._progress.refused += count
        raise self._verdict(told)

    async def _deliver(
        self, partition: int, values: Sequence[Values]
    ) -> tuple[Phase, dict[str, object]]:
        connections, attempts = self._connections, self._attempts()
        producer = Producer(
            self._producer_id, self._epoch, self._sequences.get(partition, 0), self._id is not None
        )
        batch = write_values(values, producer, now_ms=int(time.time() * 1000), keyed=self._keyed)
        while True:
            code = ErrorCode.NETWORK_EXCEPTION
            try:
                leader, _ = await connections.leader(partition)
                request = ProduceRequest(
                    transactional_id=self._id,
                    acks=-1,
                    timeout_ms=2_000,
                    topic_data=[
                        TopicProduceData(
                            name=connections.topic,
                            topic_id=connections.topic_id,
                            partition_data=[
                                PartitionProduceData(index=partition, records=memoryview(batch))
                            ],
                        )
                    ],
                )
                answer = await connections.ask(leader, request, version=self.dialect.produce)
                told = answer.responses[0].partition_responses[0]
                code = ErrorCode.of(told.error_code)
                if code in _STORED:
                    offset = told.base_offset if code is ErrorCode.NONE else -1
                    return "ok", {"offset": offset, **_lost(attempts)}
                attempts.note(code)
            except NotSent:
                pass
            except NoAnswer:
                attempts.note_lost()
            connections.forget_leader(partition)
            if not await self._again(code, attempts):
                return self._failed(code, attempts)

    async def _add_partition(self, partition: int) -> None:
        assert self._id is not None
        topic = AddPartitionsToTxnTopic(name=self._connections.topic, partitions=[partition])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic],
        )

        def code_of(answer: Any) -> int:
            results = answer.results_by_topic_v3_and_below
            return int(results[0].results_by_partition[0].partition_error_code)

        await self._insist(request, self.dialect.add_partitions, code_of)
        self._added.add(partition)

    # ------------------------------------------------------------------ offsets

    async def commit_offsets(
        self, group: str, topic: str, offsets: Sequence[tuple[int, int]]
    ) -> None:
        """Offsets of a group, with the transaction; raises MustAbort or Ended."""
        if self.dialect.number == 1:
            assert self._id is not None
            request = AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=group,
            )
            await self._insist(request, self.dialect.add_offsets, lambda answer: answer.error_code)
        phase, told = await self._recorded(
            "txn-offsets",
            self._deliver_offsets(group, topic, offsets),
            group=group, offsets=list(offsets), **self._who(),
        )  # fmt: skip
        if phase == "ok":
            return
        self._uncertain = self._uncertain or phase == "unknown"
        raise self._verdict(told)

    async def _deliver_offsets(
        self, group: str, topic: str, offsets: Sequence[tuple[int, int]]
    ) -> tuple[Phase, dict[str, object]]:
        assert self._id is not None
        connections, attempts = self._connections, self._attempts()
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=number, committed_offset=offset, committed_metadata=""
                        )
                        for number, offset in offsets
                    ],
                )
            ],
        )
        while True:
            code = ErrorCode.NETWORK_EXCEPTION
            try:
                coordinator = await connections.coordinator(group)
                answer = await connections.ask(
                    coordinator, request, version=self.dialect.commit_offsets
                )
                codes = {each.error_code for each in answer.topics[0].partitions}
                code = ErrorCode.of(max(codes))
                if codes == {0}:
                    return "ok", _lost(attempts)
                attempts.note(code)
            except NotSent:
                pass
            except NoAnswer:
                attempts.note_lost()
            connections.forget_coordinator(group)
            if not await self._again(code, attempts):
                return self._failed(code, attempts)

    # ------------------------------------------------------------------ ending

    async def end(self, *, commit: bool) -> None:
        """Commit or abort; raises Ended when that cannot be, or is not known to be, done."""
        assert not (commit and self._uncertain)
        phase, _ = await self._recorded(
            "txn-end", self._end(commit), id=self._id, commit=commit, **self._who()
        )
        if phase != "ok":
            raise Ended
        if self.dialect.number == 1 and self._uncertain:
            # A batch may still be on its way: under another epoch it is refused.
            await self._recorded(
                "txn-init",
                self._init(self._producer_id, self._epoch),
                id=self._id, v=self.dialect.number,
            )  # fmt: skip
            if self._producer_id < 0:
                raise Ended

    async def _end(self, commit: bool) -> tuple[Phase, dict[str, object]]:
        assert self._id is not None
        attempts = self._attempts()
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=commit,
        )
        while True:
            answer, code = await self._ask_coordinator(request, attempts, self.dialect.end)
            if code is ErrorCode.NONE:
                if self.dialect.number > 1:
                    self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                    self._sequences.clear()
                return "ok", _lost(attempts)
            if not await self._again(code, attempts):
                return self._failed(code, attempts)

    # ------------------------------------------------------------------ inside

    def _who(self) -> dict[str, object]:
        number = None if self._id is None else self.transaction
        return {"txn": number, "pid": self._producer_id, "epoch": self._epoch}

    async def _recorded(
        self,
        action: str,
        work: Coroutine[Any, Any, tuple[Phase, dict[str, object]]],
        **data: object,
    ) -> tuple[Phase, dict[str, object]]:
        """Do something that changes something, and say in the history how it ended."""
        self._recorder.record(self.name, action, "invoke", **data)
        try:
            phase, told = await work
        except asyncio.CancelledError:
            self._recorder.record(self.name, action, "unknown", error="killed", lost=1)
            raise
        self._recorder.record(self.name, action, phase, **told)
        return phase, told

    def _attempts(self) -> _Attempts:
        return _Attempts(time.monotonic() + GIVE_UP_SECONDS)

    async def _ask_coordinator(
        self, request: Any, attempts: _Attempts, version: int | None = None
    ) -> tuple[Any, ErrorCode]:
        """The answer to one attempt, and its error."""
        connections = self._connections
        try:
            if self._id is None:
                answer = await connections.ask_any(request, version=version)
            else:
                coordinator = await connections.transaction_coordinator(self._id)
                answer = await connections.ask(coordinator, request, version=version)
        except NotSent:
            code = ErrorCode.NETWORK_EXCEPTION
        except NoAnswer:
            attempts.note_lost()
            code = ErrorCode.NETWORK_EXCEPTION
        else:
            code = ErrorCode.of(getattr(answer, "error_code", 0))
            if code is ErrorCode.NONE:
                return answer, code
            attempts.note(code)
        if self._id is not None and code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            connections.forget_coordinator(self._id)
        return None, code

    async def _insist(self, request: Any, version: int, code_of: Any) -> None:
        """Have the coordinator include something; raises MustAbort or Ended."""
        attempts = self._attempts()
        while True:
            answer, code = await self._ask_coordinator(request, attempts, version)
            if answer is not None:
                code = ErrorCode.of(code_of(answer))
            if code is ErrorCode.NONE:
                return
            if not await self._again(code, attempts):
                raise self._verdict({"error": code.name})

    async def _again(self, code: ErrorCode, attempts: _Attempts) -> bool:
        """Whether to try once more, after a pause."""
        if not code.retriable or time.monotonic() > attempts.deadline:
            return False
        await asyncio.sleep(0.02 if code is ErrorCode.CONCURRENT_TRANSACTIONS else 0.1)
        return True

    def _failed(self, code: ErrorCode, attempts: _Attempts) -> tuple[Phase, dict[str, object]]:
        phase: Phase = "unknown" if attempts.perhaps else "fail"
        return phase, {"error": code.name, **_lost(attempts)}

    def _verdict(self, told: dict[str, object]) -> Exception:
        fenced = {code.name for code in _FENCED}
        return Ended(told) if self._id is None or told["error"] in fenced else MustAbort(told)


async def knows_version_two(connections: Connections) -> bool:
    """Whether a cluster has agreed on transaction version 2. Raises NotSent."""
    request = ApiVersionsRequest(client_software_name="ottla-verify", client_software_version="1")
    answer: ApiVersionsResponse = await connections.ask_any(request)
    return any(
        each.name == _FEATURE and each.max_version_level >= TWO.number
        for each in answer.finalized_features
    )


def _lost(attempts: _Attempts) -> dict[str, object]:
    return {"lost": attempts.lost} if attempts.lost else {}
