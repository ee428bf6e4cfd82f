"""What is wrong with transactions is found in the smallest history that has it, and called by the
name that it has there."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.verify.checks import OF_TRANSACTIONS, judge
from ottla.verify.history import Event, Phase
from ottla.verify.txn_values import KEYS, is_deleted

Line = tuple[str, str, Phase, dict[str, Any]]
Run = tuple[int, int, int, int]


def history(*lines: Line) -> list[Event]:
    """Events a millisecond apart; what only looks was begun just before."""
    return [
        Event(number, number * 1000, client, action, phase, {"begun": number * 1000 - 1, **data})
        for number, (client, action, phase, data) in enumerate(lines, start=1)
    ]


def init(client: str, name: str = "id", v: int = 2) -> tuple[Line, Line]:
    return (
        (client, "txn-init", "invoke", {"id": name, "v": v}),
        (client, "txn-init", "ok", {"pid": 1, "epoch": 0}),
    )


def send(
    client: str, first: int, offset: int | None, *, p: int = 0, txn: int | None = 0, **more: Any
) -> tuple[Line, Line]:
    """A value, acknowledged at an offset or not known."""
    data = {"topic": "t", "p": p, "values": [[0, first, 1]], "txn": txn, "pid": 1, "epoch": 0}
    ended: Line = (client, "txn-send", "unknown", {"error": "killed"})
    if offset is not None:
        ended = (client, "txn-send", "ok", {"offset": offset})
    return (client, "txn-send", "invoke", {**data, **more}), ended


def end(
    client: str, phase: Phase = "ok", *, commit: bool = True, txn: int = 0, **more: Any
) -> tuple[Line, Line]:
    data = {"id": "id", "commit": commit, "txn": txn, "pid": 1, "epoch": 0}
    return (client, "txn-end", "invoke", data), (client, "txn-end", phase, more)


def read(
    client: str, *runs: Run, begin: int = 0, upto: int, p: int = 0, level: str = "committed",
    **more: Any,
) -> Line:  # fmt: skip
    data = {"topic": "t", "p": p, "level": level, "from": begin, "next": upto, "epoch": 0}
    return client, "txn-read", "ok", {**data, "runs": [list(run) for run in runs], **more}


def final(*runs: Run, upto: int, p: int = 0, topic: str = "t", keyed: bool = False) -> list[Line]:
    """Everything that is there in the end, for who reads committed records."""
    data = {"topic": topic, "p": p, "level": "committed", "end": upto, "keyed": keyed}
    return [
        read("final", *runs, upto=upto, p=p, topic=topic),
        ("final", "txn-final", "ok", data),
    ]


def mark(offset: int, epoch: int) -> Line:
    data = {"topic": "t", "p": 0, "level": "committed", "epoch": epoch, "mark": offset}
    return "watcher", "txn-mark", "ok", data


def offsets(client: str, offset: int, txn: int = 0) -> tuple[Line, Line]:
    data = {"group": "g", "offsets": [[0, offset]], "txn": txn}
    return (client, "txn-offsets", "invoke", data), (client, "txn-offsets", "ok", {})


def found(offset: int, *, stable: bool = True) -> Line:
    data = {"group": "g", "stable": stable, "offsets": [[0, offset]]}
    return "watcher", "txn-committed", "ok", data


def moved() -> Line:
    return "final", "txn-moved", "ok", {"p": 0, "source": "t", "target": "u"}


def committed(client: str, first: int, offset: int, **more: Any) -> list[Line]:
    """A transaction of one value."""
    return [*send(client, first, offset, **more), *end(client, txn=more.get("txn", 0))]


CORRECT = history(
    *init("a.1"),
    *send("a.1", 0, 0),
    *send("a.1", 1, 0, p=1),
    mark(0, 0),
    *offsets("a.1", 7),
    found(-1, stable=False),
    *end("a.1"),
    found(-1, stable=False),
    mark(2, 0),
    read("r", (0, 0, 0, 1), upto=2),
    *send("a.1", 2, 2, txn=1),
    *end("a.1", commit=False, txn=1),
    found(7),
    *send("a.1", 3, 4, txn=2),
    *init("a.2"),
    *send("a.1", 4, None, txn=2),
    *end("a.1", "fail", txn=2, error="PRODUCER_FENCED"),
    read("r", begin=2, upto=6),
    *final((0, 0, 0, 1), upto=6),
    *final((0, 0, 1, 1), upto=2, p=1),
)


def test_a_correct_history_has_no_anomalies() -> None:
    verdict = judge(CORRECT)
    assert verdict.anomalies == ()
    assert verdict.flaws == {}
    assert (verdict.committed, verdict.aborted, verdict.undecided) == (1, 1, 0)
    assert verdict.acknowledged == 4


DELETED = next(number for number in range(100) if is_deleted(number))
KEPT = next(number for number in range(100) if not is_deleted(number))

VIOLATIONS: dict[str, tuple[str, list[Event], tuple[int, ...]]] = {
    "an aborted value is read": (
        "G1a",
        history(
            *send("a", 0, 0), *end("a", commit=False), read("r", (0, 0, 0, 1), upto=2)
        ),
        (1, 4, 5),
    ),
    "a value is read whose transaction was not committed because its producer was killed": (
        "G1a",
        history(
            *committed("b", 1, 0),
            *send("a", 0, 2),
            *end("a", "fail", error="PRODUCER_FENCED"),
            *final((0, 0, 1, 1), (2, 0, 0, 1), upto=4),
        ),
        (5, 8, 9),
    ),
    "a value is read before its transaction is committed": (
        "uncommitted-read",
        history(*send("a", 0, 0), read("r", (0, 0, 0, 1), upto=1), *end("a")),
        (1, 3),
    ),
    "a committed transaction is in one of two partitions": (
        "torn-transaction",
        history(
            *send("a", 0, 0), *send("a", 1, 0, p=1), *end("a"),
            *final((0, 0, 0, 1), upto=2), *final(upto=2, p=1),
        ),
        (1, 3, 6, 10),
    ),
    "a transaction of unknown outcome is in one of two partitions": (
        "torn-transaction",
        history(
            *send("a", 0, 0), *send("a", 1, 0, p=1), *end("a", "unknown"),
            *final(upto=2), *final((0, 0, 1, 1), upto=2, p=1),
        ),
        (1, 3, 6, 8),
    ),
    "a committed transaction is nowhere": (
        "lost-write",
        history(*send("a", 0, 0), *end("a"), *final(upto=2)),
        (1, 4, 6),
    ),
    "what was read is not there in the end": (
        "lost-write",
        history(
            *send("a", 0, None), *end("a", "unknown"), read("r", (0, 0, 0, 1), upto=1),
            *final(upto=0),
        ),
        (5, 7),
    ),
    "a batch is stored twice": (
        "duplicate",
        history(
            *send("a", 0, 0), read("r", (0, 0, 0, 1), (1, 0, 0, 1), upto=2, level="all")
        ),
        (2, 3),
    ),
    "an offset has two values": (
        "inconsistent-offset",
        history(
            *send("a", 0, 0), *send("b", 1, None), read("r", (0, 0, 1, 1), upto=1, level="all")
        ),
        (2, 5),
    ),
    "a value was never sent": (
        "phantom-value",
        history(read("r", (0, 0, 9, 1), upto=1, level="all")),
        (1,),
    ),
    "a batch is refused though the one before was acknowledged": (
        "sequence-refused",
        history(
            send("a", 0, 0)[0], ("a", "txn-send", "fail", {"error": "OUT_OF_ORDER_SEQUENCE_NUMBER"})
        ),
        (1, 2),
    ),
    "between two polls a value is skipped": (
        "poll-skip",
        history(
            *committed("a", 0, 0), *committed("b", 1, 2), *committed("c", 2, 4),
            read("r", (0, 0, 0, 1), upto=2), read("r", (4, 0, 2, 1), begin=2, upto=6),
            *final((0, 0, 0, 1), (2, 0, 1, 1), (4, 0, 2, 1), upto=6),
        ),
        (13, 14),
    ),
    "within a poll a value is skipped": (
        "int-poll-skip",
        history(
            *committed("a", 0, 0), *committed("b", 1, 2), *committed("c", 2, 4),
            read("r", (0, 0, 0, 1), (4, 0, 2, 1), upto=6),
            *final((0, 0, 0, 1), (2, 0, 1, 1), (4, 0, 2, 1), upto=6),
        ),
        (13,),
    ),
    "between two polls of a transaction a value is skipped": (
        "int-poll-skip",
        history(
            *committed("a", 0, 0), *committed("b", 1, 2), *committed("c", 2, 4),
            read("m", (0, 0, 0, 1), upto=2, txn=3),
            read("m", (4, 0, 2, 1), begin=2, upto=6, txn=3),
            *final((0, 0, 0, 1), (2, 0, 1, 1), (4, 0, 2, 1), upto=6),
        ),
        (13, 14),
    ),
    "a poll begins below its position": (
        "nonmonotonic-poll",
        history(*committed("a", 0, 0), read("r", (0, 0, 0, 1), begin=2, upto=3)),
        (5,),
    ),
    "a poll goes back": (
        "int-nonmonotonic-poll",
        history(
            *committed("a", 0, 0), *committed("b", 1, 2),
            read("r", (2, 0, 1, 1), (0, 0, 0, 1), upto=3),
        ),
        (9,),
    ),
    "a position is gone": (
        "lost-position",
        history(
            ("r", "txn-read", "fail", {"topic": "t", "p": 0, "level": "all", "from": 3, "next": 3})
        ),
        (1,),
    ),
    "the last stable offset goes back": (
        "stable-offset-went-back",
        history(mark(9, 4), mark(8, 5)),
        (1, 2),
    ),
    "what was read was not stable": (
        "stable-offset-went-back",
        history(read("r", upto=9), mark(8, 0)),
        (1, 2),
    ),
    "a transaction is never ended": (
        "hanging-transaction",
        history(("final", "txn-stable", "fail", {"text": "t-0 is stable up to 3 of 9"})),
        (1,),
    ),
    "an input is moved twice": (
        "moved-twice",
        history(
            *committed("a", 0, 0), *final((0, 0, 0, 1), upto=2),
            *committed("m", 0, 0, topic="u"), *committed("n", 0, 2, topic="u"),
            *final((0, 0, 0, 1), (2, 0, 0, 1), upto=4, topic="u"), moved(),
        ),
        (15,),
    ),
    "an input is not moved": (
        "not-moved",
        history(
            *committed("a", 0, 0), *final((0, 0, 0, 1), upto=2), *final(upto=0, topic="u"), moved()
        ),
        (5, 9),
    ),
    "an input is moved that was not committed": (
        "not-moved",
        history(
            *final(upto=0), *committed("m", 0, 0, topic="u"),
            *final((0, 0, 0, 1), upto=2, topic="u"), moved(),
        ),
        (7, 9),
    ),
    "nothing is moved any more": (
        "not-moved",
        history(("final", "txn-moved", "fail", {"text": "partition 0 was moved up to 3 of 9"})),
        (1,),
    ),
    "inputs are moved in another order": (
        "moved-out-of-order",
        history(
            *committed("a", 0, 0), *committed("b", 1, 2),
            *final((0, 0, 0, 1), (2, 0, 1, 1), upto=4),
            *committed("m", 1, 0, topic="u"), *committed("n", 0, 2, topic="u"),
            *final((0, 0, 1, 1), (2, 0, 0, 1), upto=4, topic="u"), moved(),
        ),
        (19,),
    ),
    "an offset is found before its transaction is committed": (
        "uncommitted-offset",
        history(*offsets("m", 5), found(5, stable=False)),
        (1, 3),
    ),
    "an offset of an aborted transaction is found": (
        "uncommitted-offset",
        history(*offsets("m", 5), *end("m", commit=False), found(5)),
        (1, 5),
    ),
    "a committed offset goes back": (
        "committed-offset-went-back",
        history(*offsets("m", 5), *end("m"), found(-1)),
        (4, 5),
    ),
    "a zombie writes": (
        "zombie-not-fenced",
        history(*init("a.1"), *init("a.2"), *send("a.1", 0, 0)),
        (2, 4, 5, 6),
    ),
    "a zombie commits": (
        "zombie-not-fenced",
        history(*init("a.1"), *send("a.1", 0, 0), *init("a.2"), *end("a.1")),
        (2, 6, 7, 8),
    ),
    "a zombie commits offsets": (
        "zombie-not-fenced",
        history(*init("a.1"), *init("a.2"), *offsets("a.1", 5)),
        (2, 4, 5, 6),
    ),
    "the last value of a key is gone": (
        "compacted-away",
        history(*committed("w", KEPT, 0), *final(upto=2, keyed=True)),
        (1, 2, 6),
    ),
    "an earlier value of a key is there in place of the last": (
        "compacted-away",
        history(
            *send("w", KEPT, 0, txn=None), *send("w", KEPT + 4 * KEYS, 1, txn=None),
            *final((0, 0, KEPT, 1), upto=2, keyed=True),
        ),
        (3, 4, 5),
    ),
    "a tombstone is gone": (
        "tombstone-dropped",
        history(*send("w", DELETED, 0, txn=None), *final(upto=2, keyed=True)),
        (1, 2, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", VIOLATIONS)
def test_an_anomaly_is_found_and_shown_by_its_events(what: str) -> None:
    name, events, shown = VIOLATIONS[what]
    [anomaly, *_] = judge(events).anomalies
    assert (anomaly.check, anomaly.events) == (name, shown)


@pytest.mark.parametrize("what", VIOLATIONS)
def test_an_anomaly_is_called_by_one_name(what: str) -> None:
    name, events, _ = VIOLATIONS[what]
    assert {each.check for each in judge(events).anomalies} == {name}


def test_every_anomaly_is_tried_here() -> None:
    tried = {name for name, _, _ in VIOLATIONS.values()}
    assert tried >= {name for check in OF_TRANSACTIONS for name in check().promises}


# -- what is no anomaly


def test_a_transaction_of_unknown_outcome_is_there_or_not() -> None:
    for runs in ([(0, 0, 0, 1)], []):
        events = history(*send("a", 0, 0), *end("a", "unknown"), *final(*runs, upto=2))
        verdict = judge(events)
        assert verdict.anomalies == ()
        assert verdict.undecided == 1


def test_who_reads_everything_sees_open_and_aborted_transactions() -> None:
    events = history(
        *send("a", 0, 0),
        read("r", (0, 0, 0, 1), upto=1, level="all"),
        *end("a", commit=False),
        read("r", begin=1, upto=2, level="all"),
        *final(upto=2),
    )
    assert judge(events).anomalies == ()


def test_a_value_that_is_moved_again_after_an_abort_is_in_the_log_twice() -> None:
    events = history(
        *send("m", 0, 0),
        *end("m", commit=False),
        *send("n", 0, 2),
        *end("n"),
        read("r", (0, 0, 0, 1), (2, 0, 0, 1), upto=4, level="all"),
        *final((2, 0, 0, 1), upto=4),
    )
    assert judge(events).anomalies == ()


def test_a_zombie_may_succeed_with_what_it_began_before_it_was_replaced() -> None:
    invoked, ended = send("a.1", 0, 0)
    events = history(*init("a.1"), invoked, *init("a.2"), ended)
    assert judge(events).anomalies == ()


def test_who_initialises_last_is_not_known_of_two_at_the_same_time() -> None:
    (first, first_ok), (second, second_ok) = init("a.1"), init("a.2")
    events = history(first, second, second_ok, first_ok, *send("a.1", 0, 0))
    assert judge(events).anomalies == ()


def test_a_later_value_of_unknown_fate_may_be_the_last_of_its_key() -> None:
    later = KEPT + 4 * KEYS
    for number in (KEPT, later):
        events = history(
            *send("w", KEPT, 0, txn=None),
            *send("w", later, None, txn=None),
            *final((0, 0, number, 1), upto=2, keyed=True),
        )
        anomalies = {each.check for each in judge(events).anomalies}
        assert anomalies <= {"inconsistent-offset"}


# -- flaws of version 1


def torn(v: int, *, lost: int, epoch: int = 0) -> list[Event]:
    """The end of transaction 0 was sent twice, and is late in the middle of transaction 1."""
    return history(
        *init("a", v=v),
        *send("a", 0, 0),
        *end("a", **({"lost": lost} if lost else {})),
        *send("a", 1, 2, txn=1, epoch=epoch),
        read("r", (0, 0, 0, 1), (2, 0, 1, 1), upto=3),
        *end("a", commit=False, txn=1),
        *final((0, 0, 0, 1), (2, 0, 1, 1), upto=4),
    )


def test_a_late_end_of_version_1_is_a_flaw_of_the_protocol() -> None:
    verdict = judge(torn(1, lost=1))
    assert verdict.anomalies == ()
    assert verdict.flaws == {"v1-uncommitted-read": 1}


def test_without_an_end_that_was_never_answered_it_is_an_anomaly() -> None:
    verdict = judge(torn(1, lost=0))
    assert [each.check for each in verdict.anomalies] == ["uncommitted-read"]
    assert verdict.flaws == {}


def test_under_another_epoch_it_is_an_anomaly() -> None:
    assert [each.check for each in judge(torn(1, lost=1, epoch=1)).anomalies] == [
        "uncommitted-read"
    ]


def test_in_version_2_it_is_an_anomaly() -> None:
    assert [each.check for each in judge(torn(2, lost=1)).anomalies] == ["uncommitted-read"]


def test_a_value_in_another_partition_than_it_was_sent_to_is_found() -> None:
    sent = (*init("a.1"), *send("a.1", 0, None), *end("a.1"))
    events = history(*sent, read("r", (0, 0, 0, 1), upto=1, p=1))
    [anomaly] = judge(events).anomalies
    assert (anomaly.check, anomaly.events) == ("wrong-partition", (3, 7))


def test_a_batch_that_was_refused_is_not_stored() -> None:
    refused: Line = ("a.1", "txn-send", "fail", {"error": "INVALID_PRODUCER_EPOCH"})
    begun, _ = send("a.1", 0, None)
    there = read("r", (0, 0, 0, 1), upto=1, level="all")
    [anomaly] = judge(history(*init("a.1"), begun, refused, there)).anomalies
    assert (anomaly.check, anomaly.events) == ("refused-write-stored", (4, 5))
    again = (*init("a.2"), *send("a.2", 0, None))  # as a mover does
    assert judge(history(*init("a.1"), begun, refused, *again, there)).anomalies == ()
