"""Members of a group: they join, share the partitions of the topic, and commit ever higher offsets.

The classic protocol, request by request, so that the generation of everything is known. A member
that has a partition goes on from what its group has committed. What is consumed does not matter
here, only what is committed: an offset is the number of a step.

A commit whose outcome is not known may be on its way still. So the member does not go on in this
generation: it joins as somebody new, which begins another one, and a late commit is refused.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from ottla.coordinator.group.consumer_protocol import read_assignment, write_assignment
from ottla.errors import ErrorCode
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from ottla.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from ottla.verify.clients.connections import Connections, NoAnswer, NotSent, Pause
from ottla.verify.history import Recorder

SESSION_MS = 6_000
REBALANCE_MS = 6_000
JOIN_SECONDS = 15.0
STEP_SECONDS = 0.05
HEARTBEAT_SECONDS = 0.5
_PROTOCOL = "verify"
_LONGEST_STEP = 10
_ONE_GROUP = 7
"""The last version of OffsetFetch that asks about one group."""

_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class Refused(Exception):
    """The coordinator has answered with an error."""

    def __init__(self, code: int) -> None:
        self.code = ErrorCode.of(code)
        super().__init__(self.code.name)


class Member:
    """One of a group; `await run(stopping)`."""

    def __init__(
        self, number: int, group: str, connections: Connections, recorder: Recorder, *, seed: int
    ) -> None:
        self.name = f"member-{number}"
        self.generation = -1
        self.owned: tuple[int, ...] = ()
        """Its partitions, while it belongs to a generation."""
        self._group = group
        self._connections = connections
        self._recorder = recorder
        self._random = random.Random(seed)
        self._pause = Pause()
        self._member_id = ""

    async def run(self, stopping: asyncio.Event) -> None:
        """Be a member until told to stop."""
        while not stopping.is_set():
            try:
                await self._join()
                positions = await self._positions()
                self._pause.reset()
                await self._stay(positions, stopping)
            except (NotSent, NoAnswer):
                self._connections.forget_coordinator(self._group)
                await self._pause.wait()
            except Refused as refused:
                if refused.code in _ELSEWHERE:
                    self._connections.forget_coordinator(self._group)
                elif refused.code is ErrorCode.UNKNOWN_MEMBER_ID:
                    self._member_id = ""
                await self._pause.wait()
            finally:
                self.owned = ()

    # ------------------------------------------------------------------ joining

    async def _join(self) -> None:
        protocols = [JoinGroupRequestProtocol(name=_PROTOCOL, metadata=b"")]
        while True:
            answer = await self._ask(
                JoinGroupRequest(
                    group_id=self._group, session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS, member_id=self._member_id,
                    protocol_type="consumer", protocols=protocols,
                ),
                seconds=JOIN_SECONDS,
            )  # fmt: skip
            if ErrorCode.of(answer.error_code) is not ErrorCode.MEMBER_ID_REQUIRED:
                break
            self._member_id = answer.member_id
        _check(answer.error_code)
        self._member_id, self.generation = answer.member_id, answer.generation_id
        members = [each.member_id for each in answer.members]
        leads = answer.leader == answer.member_id
        answer = await self._ask(
            SyncGroupRequest(
                group_id=self._group, generation_id=self.generation, member_id=self._member_id,
                protocol_type="consumer", protocol_name=_PROTOCOL,
                assignments=self._shares(members) if leads else [],
            ),
            seconds=JOIN_SECONDS,
        )  # fmt: skip
        _check(answer.error_code)
        assigned = read_assignment(bytes(answer.assignment)).get(self._connections.topic, [])
        self.owned = tuple(assigned)
        self._recorder.record(
            self.name, "assign", "ok",
            group=self._group, member=self._member_id, generation=self.generation,
            partitions=assigned,
        )  # fmt: skip

    def _shares(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        shares: dict[str, list[int]] = {member: [] for member in members}
        for partition in range(self._connections.partitions):
            shares[members[partition % len(members)]].append(partition)
        topic = self._connections.topic
        return [
            SyncGroupRequestAssignment(
                member_id=member, assignment=write_assignment({topic: partitions}, 0)
            )
            for member, partitions in shares.items()
        ]

    # ------------------------------------------------------------------ offsets

    async def _positions(self) -> dict[int, int]:
        """Where the group has come to, in the partitions of this member."""
        if not self.owned:
            return {}
        connections, record = self._connections, self._recorder.record
        partitions = list(self.owned)
        record(self.name, "committed", "invoke", group=self._group)
        try:
            answer = await self._ask(
                OffsetFetchRequest(
                    group_id=self._group,
                    topics=[
                        OffsetFetchRequestTopic(
                            name=connections.topic, partition_indexes=partitions
                        )
                    ],
                ),
                version=_ONE_GROUP,
            )
            _check(answer.error_code)
            found = answer.topics[0].partitions if answer.topics else []
            for each in found:
                _check(each.error_code)
        except (NotSent, NoAnswer, Refused) as error:
            record(self.name, "committed", "fail", group=self._group, error=str(error))
            raise
        offsets = dict.fromkeys(partitions, -1)  # what is not told is not there
        offsets.update({each.partition_index: each.committed_offset for each in found})
        record(self.name, "committed", "ok", group=self._group, offsets=list(offsets.items()))
        return {number: max(0, offset) for number, offset in offsets.items()}

    async def _stay(self, positions: dict[int, int], stopping: asyncio.Event) -> None:
        """Commit and send heartbeats until the generation is over."""
        beaten = time.monotonic()
        while not stopping.is_set():
            if time.monotonic() - beaten >= HEARTBEAT_SECONDS:
                beaten = time.monotonic()
                answer = await self._ask(
                    HeartbeatRequest(
                        group_id=self._group,
                        generation_id=self.generation,
                        member_id=self._member_id,
                    )
                )
                if ErrorCode.of(answer.error_code) is ErrorCode.REBALANCE_IN_PROGRESS:
                    return
                _check(answer.error_code)
            if positions:
                for number in positions:
                    positions[number] += self._random.randint(1, _LONGEST_STEP)
                await self._commit(positions)
            await asyncio.sleep(STEP_SECONDS * self._random.uniform(0.5, 1.5))

    async def _commit(self, positions: dict[int, int]) -> None:
        connections, record = self._connections, self._recorder.record
        offsets = list(positions.items())
        record(
            self.name, "commit", "invoke",
            group=self._group, generation=self.generation, offsets=offsets,
        )  # fmt: skip
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self.generation,
            member_id=self._member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=connections.topic,
                    topic_id=connections.topic_id,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=number, committed_offset=offset, committed_metadata=""
                        )
                        for number, offset in offsets
                    ],
                )
            ],
        )
        try:
            answer = await self._ask(request)
        except NotSent as error:
            record(self.name, "commit", "fail", error=str(error))
            raise
        except NoAnswer as error:
            record(self.name, "commit", "unknown", error=str(error))
            self._member_id = ""
            raise
        told = answer.topics[0].partitions if answer.topics else []
        codes = {each.partition_index: each.error_code for each in told}
        if codes == dict.fromkeys(positions, 0):
            record(self.name, "commit", "ok")
            return
        # An error may come after the records were written, so nothing is known.
        self._member_id = ""
        code = max(codes.values(), default=0) or ErrorCode.UNKNOWN_SERVER_ERROR
        record(self.name, "commit", "unknown", error=ErrorCode.of(code).name)
        raise Refused(code)

    async def _ask(
        self, request: Any, *, seconds: float | None = None, version: int | None = None
    ) -> Any:
        connections = self._connections
        coordinator = await connections.coordinator(self._group)
        return await connections.ask(coordinator, request, seconds=seconds, version=version)


def _check(code: int) -> None:
    if code:
        raise Refused(code)
