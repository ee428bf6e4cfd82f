"""What the classic protocol refuses, and with which code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ottla.coordinator.group.commands import Heartbeat, Leave, Leaver, Sync
from ottla.errors import ErrorCode, KafkaError

Client = Callable[..., Any]
Stable = Callable[..., list[Any]]


def refused(call: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_an_id_that_nobody_gave_out_makes_no_group(runner: Any, client: Client) -> None:
    one = client()
    one.id = "invented"
    assert one.join().error is ErrorCode.UNKNOWN_MEMBER_ID
    assert not runner.shard.groups


@pytest.mark.parametrize("fields", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_group_begins_with_protocols(runner: Any, client: Client, fields: dict[str, Any]) -> None:
    assert client().join(**fields).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not runner.shard.groups


@pytest.mark.parametrize(
    "fields", [{"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}]
)
def test_whoever_shares_no_protocol_with_the_others_is_refused(
    stable: Stable, client: Client, fields: dict[str, Any]
) -> None:
    stable(1)
    assert client("other").join(**fields).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_pending_id_is_of_no_static_member(runner: Any, stable: Stable, client: Client) -> None:
    stable(1)
    one = client("other")
    reply = one._join({})
    assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
    one.id = reply.member_id
    assert one.join(instance_id="fixed").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_of_another_generation_or_protocol_is_refused(stable: Stable) -> None:
    (one,) = stable(1)
    assert refused(lambda: one.sync(generation=one.generation + 1)) is ErrorCode.ILLEGAL_GENERATION
    for fields in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        code = refused(lambda fields=fields: one.sync(**fields))
        assert code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_heartbeat_of_another_generation_is_refused(stable: Stable) -> None:
    (one,) = stable(1)
    one.generation += 1
    assert refused(one.heartbeat) is ErrorCode.ILLEGAL_GENERATION


def test_a_group_that_is_not_there_knows_no_member(runner: Any) -> None:
    for command in (Sync("g", "m", None, 1, ()), Heartbeat("g", "m", None, 1)):
        code = refused(lambda command=command: runner.run(command))
        assert code is ErrorCode.UNKNOWN_MEMBER_ID
    assert runner.run(Leave("g", (Leaver("m"), Leaver("n")))) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_those_who_leave_are_judged_one_by_one(runner: Any, stable: Stable) -> None:
    (one,) = stable(1)
    leavers = (Leaver("stranger"), Leaver("", "nobody's instance"), Leaver(one.id))
    assert runner.run(Leave("g", leavers)) == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]


def test_a_record_that_cannot_be_read_costs_no_other_group(
    runner: Any, stable: Stable, caplog: pytest.LogCaptureFixture
) -> None:
    stable(1)
    with caplog.at_level(logging.ERROR):
        runner.shard.replay(b"\x00\x02\x00", b"\x00\x03", offset=7)
    assert "at offset 7 is unreadable" in caplog.text
    assert list(runner.shard.groups) == ["g"]
