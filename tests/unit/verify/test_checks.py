"""Every kind of anomaly is found in the smallest history that has it, and shown by its events."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.verify.anomaly import Anomaly
from ottla.verify.checks import MOST_OF_A_KIND, OF_TRANSACTIONS, judge, promises
from ottla.verify.history import Event, Phase

Line = tuple[str, str, Phase, dict[str, Any]]


def history(*lines: Line) -> list[Event]:
    """Events a millisecond apart; what only looks was begun just before."""
    return [
        Event(number, number * 1000, client, action, phase, {"begun": number * 1000 - 1, **data})
        for number, (client, action, phase, data) in enumerate(lines, start=1)
    ]


def invoke(client: str, first: int, count: int = 1, p: int = 0, writer: int = 0) -> Line:
    return client, "send", "invoke", {"p": p, "writer": writer, "first": first, "count": count}


def ok(client: str, offset: int) -> Line:
    return client, "send", "ok", {"offset": offset}


def read(client: str, *runs: tuple[int, int, int, int], p: int = 0, **more: Any) -> Line:
    return client, "read", "ok", {"p": p, "runs": [list(run) for run in runs], **more}


def end(offset: int, p: int = 0) -> Line:
    return "final", "end", "ok", {"p": p, "end": offset}


def view(broker: int, leader: int, epoch: int, p: int = 0) -> Line:
    return f"watcher-{broker}", "view", "ok", {"broker": broker, "leaders": [[p, leader, epoch]]}


def mark(offset: int, epoch: int, **more: Any) -> Line:
    return "watcher", "mark", "ok", {"p": 0, "epoch": epoch, "mark": offset, **more}


def assign(member: str, generation: int, *partitions: int) -> Line:
    data = {"group": "g", "member": member, "generation": generation, "partitions": [*partitions]}
    return member, "assign", "ok", data


def commit(member: str, generation: int, offset: int) -> Line:
    data = {"group": "g", "generation": generation, "offsets": [[0, offset]]}
    return member, "commit", "invoke", data


def committed(member: str, offset: int) -> tuple[Line, Line]:
    return (
        (member, "committed", "invoke", {"group": "g"}),
        (member, "committed", "ok", {"group": "g", "offsets": [[0, offset]]}),
    )


LOSS: tuple[Line, Line, Line] = (
    ("fault-1", "fault", "invoke", {"kind": "wipe-two"}),
    ("fault-1", "loss", "ok", {"broker": 1}),
    ("fault-1", "fault", "ok", {"kind": "wipe-two"}),
)
"""Its beginning, its report, and its end."""

CORRECT = history(
    invoke("a", 0, 2),
    invoke("b", 0, 1, writer=1),
    ok("b", 0),
    ok("a", 1),
    invoke("a", 2, 1),
    ("a", "send", "unknown", {"error": "closed"}),
    invoke("b", 1, 1, writer=1),
    ("b", "send", "fail", {"error": "NOT_ENOUGH_REPLICAS"}),
    view(1, 1, 4),
    view(2, 1, 4),
    view(2, 2, 5),
    read("r", (0, 1, 0, 1), (1, 0, 0, 2), epoch=4, mark=3, epochs=[[0, 4]]),
    mark(3, 4),
    assign("m1", 1, 0),
    *committed("m1", -1),
    commit("m1", 1, 5),
    ("m1", "commit", "ok", {}),
    assign("m2", 2, 0),
    *committed("m2", 5),
    ("c", "create", "invoke", {"topic": "t-1"}),
    ("c", "create", "ok", {}),
    ("fault-1", "fault", "invoke", {"kind": "kill"}),
    ("fault-1", "fault", "ok", {"kind": "kill"}),
    ("nemesis", "healed", "ok", {"seconds": 1.0}),
    read("final", (0, 1, 0, 1), (1, 0, 0, 3), epoch=5, epochs=[[0, 4], [3, 5]]),
    end(4),
    ("final", "topics", "ok", {"broker": 1, "topics": ["t-1"]}),
    ("final", "replica", "ok", {"broker": 1, "p": 0, "end": 4, "digest": "d"}),
    ("final", "replica", "ok", {"broker": 2, "p": 0, "end": 4, "digest": "d"}),
)


def test_a_correct_history_has_no_anomalies() -> None:
    verdict = judge(CORRECT)
    assert verdict.anomalies == ()
    assert (verdict.events, verdict.acknowledged, verdict.faults) == (len(CORRECT), 3, 1)


VIOLATIONS: dict[str, tuple[list[Event], tuple[int, ...]]] = {
    "inconsistent-offset": (
        history(invoke("a", 0), ok("a", 0), invoke("b", 0, writer=1), read("r", (0, 1, 0, 1))),
        (2, 4),
    ),
    "out-of-order-append": (
        history(invoke("a", 0), ok("a", 1), invoke("a", 1), ok("a", 0)),
        (2, 3, 4),
    ),
    "lost-write": (
        history(invoke("a", 0), ok("a", 0), end(0)),
        (2, 3),
    ),
    "duplicate": (
        history(invoke("a", 0), ok("a", 0), read("r", (0, 0, 0, 1), (1, 0, 0, 1))),
        (2, 3),
    ),
    "refused-write-stored": (
        history(invoke("a", 0), ("a", "send", "fail", {}), read("r", (0, 0, 0, 1))),
        (2, 3),
    ),
    "phantom-value": (history(read("r", (0, 9, 0, 1))), (1,)),
    "wrong-partition": (
        history(invoke("a", 0), ("a", "send", "unknown", {}), read("r", (0, 0, 0, 1), p=1)),
        (3,),
    ),
    "sequence-refused": (
        history(
            invoke("a", 0), ("a", "send", "unknown", {"error": "OUT_OF_ORDER_SEQUENCE_NUMBER"})
        ),
        (1, 2),
    ),
    "poll-skip": (
        history(invoke("a", 0, 3), read("r", (0, 0, 0, 1)), read("r", (2, 0, 2, 1))),
        (2, 3),
    ),
    "nonmonotonic-poll": (
        history(invoke("a", 0, 3), read("r", (0, 0, 0, 2)), read("r", (1, 0, 1, 1))),
        (2, 3),
    ),
    "lost-position": (
        history(
            invoke("a", 0, 3),
            read("r", (0, 0, 0, 2)),
            ("r", "read", "fail", {"p": 0, "error": "OFFSET_OUT_OF_RANGE"}),
        ),
        (2, 3),
    ),
    "two-leaders": (history(view(1, 1, 4), view(2, 2, 4)), (1, 2)),
    "epoch-went-back": (history(view(1, 1, 4), view(1, 1, 3)), (1, 2)),
    "watermark-went-back": (history(mark(9, 4), mark(8, 5)), (1, 2)),
    "watermark-beyond-the-end": (history(mark(9, 4), end(0)), (1, 2)),
    "epochs-out-of-order": (
        history(
            invoke("a", 0, 2),
            read("r", (0, 0, 0, 1), epochs=[[0, 5]]),
            read("r", (1, 0, 1, 1), epochs=[[1, 4]]),
        ),
        (2, 3),
    ),
    "replicas-differ": (
        history(
            ("final", "replica", "ok", {"broker": 1, "p": 0, "end": 4, "digest": "d"}),
            ("final", "replica", "ok", {"broker": 2, "p": 0, "end": 4, "digest": "e"}),
        ),
        (1, 2),
    ),
    "two-owners": (history(assign("m1", 1, 0), assign("m2", 1, 0)), (1, 2)),
    "stale-commit": (
        history(
            assign("m1", 1, 0), assign("m2", 2, 0), commit("m1", 1, 5), ("m1", "commit", "ok", {})
        ),
        (2, 3, 4),
    ),
    "committed-offset-went-back": (
        history(commit("m1", 1, 5), ("m1", "commit", "ok", {}), *committed("m1", -1)),
        (2, 4),
    ),
    "offset-never-committed": (history(*committed("m1", 5)), (2,)),
    "lost-topic": (
        history(
            ("c", "create", "invoke", {"topic": "t-1"}),
            ("c", "create", "ok", {}),
            ("final", "topics", "ok", {"broker": 1, "topics": []}),
        ),
        (2, 3),
    ),
    "refused-topic-exists": (
        history(
            ("c", "create", "invoke", {"topic": "t-1"}),
            ("c", "create", "fail", {}),
            ("final", "topics", "ok", {"broker": 1, "topics": ["t-1"]}),
        ),
        (2, 3),
    ),
    "did-not-recover": (
        history(
            ("fault-1", "fault", "invoke", {"kind": "kill"}),
            ("nemesis", "healed", "fail", {"text": "no leader"}),
        ),
        (1, 2),
    ),
    "broker-ended": (
        history(("nemesis", "died", "ok", {"broker": 1, "text": "broker 1 has ended"})),
        (1,),
    ),
    "not-read-in-the-end": (
        history(("final", "end", "fail", {"p": 0, "text": "no answer"})),
        (1,),
    ),
    "damaged-record": (
        history(("reader", "damaged", "ok", {"text": "the batch has a wrong checksum"})),
        (1,),
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_an_anomaly_is_found_and_shown_by_its_events(name: str) -> None:
    events, shown = VIOLATIONS[name]
    [anomaly] = judge(events).anomalies
    assert (anomaly.check, anomaly.events) == (name, shown)


def test_every_anomaly_is_tried_here_or_with_the_transactions() -> None:
    transactional = {name for check in OF_TRANSACTIONS for name in check().promises}
    assert set(VIOLATIONS) == set(promises()) - transactional


def test_a_log_of_which_the_end_was_not_read_is_not_whole() -> None:
    events = history(invoke("a", 0, 2), read("final", (0, 0, 0, 1)), end(2))
    [anomaly] = judge(events).anomalies
    assert (anomaly.check, anomaly.events) == ("poll-skip", (2, 3))


def test_an_acknowledgement_without_an_offset_is_checked_by_its_value() -> None:
    lost = history(invoke("a", 0), ok("a", -1), end(0))
    [anomaly] = judge(lost).anomalies
    assert (anomaly.check, anomaly.events) == ("lost-write", (2,))
    found = history(invoke("a", 0), ok("a", -1), read("final", (0, 0, 0, 1)), end(1))
    assert judge(found).anomalies == ()


def test_nothing_is_called_lost_while_not_everything_was_read() -> None:
    assert judge(history(invoke("a", 0), ok("a", 0))).anomalies == ()


def test_what_comes_after_the_end_was_asked_for_is_not_lost() -> None:
    """A request of which nobody knows what became of it may come later still."""
    sent = (invoke("a", 0), ok("a", 0), invoke("a", 1), ("a", "send", "unknown", {}))
    look: Line = ("final", "end", "invoke", {"p": 0})
    found = (read("final", (0, 0, 0, 1)), end(1))
    late = (read("r", (0, 0, 0, 2), epoch=4, mark=2), mark(2, 4))
    assert judge(history(*sent, look, *found, *late)).anomalies == ()
    assert judge(history(*sent, look, *late, *found)).anomalies == ()
    names = {each.check for each in judge(history(*sent, *late, look, *found)).anomalies}
    assert names == {"lost-write", "watermark-beyond-the-end"}


def test_epochs_out_of_order_are_shown_by_the_events_that_tell_of_them() -> None:
    """Not by whoever reads something else of an epoch later."""
    events = history(
        invoke("a", 0, 9),
        read("r", (0, 0, 0, 1), epochs=[[0, 0]]),
        read("r", (1, 0, 1, 8), epochs=[[1, 0], [8, 0]]),
        read("s", (0, 0, 0, 1), epochs=[[5, 4]]),
        read("t", (0, 0, 0, 1), epochs=[[0, 0]]),
    )
    assert [each.events for each in judge(events).anomalies] == [(3, 4), (3, 4)]


def test_appends_at_the_same_time_may_come_in_any_order() -> None:
    events = history(invoke("a", 0), invoke("b", 0, writer=1), ok("a", 1), ok("b", 0))
    assert judge(events).anomalies == ()


def test_a_deposed_leader_may_show_an_old_mark() -> None:
    assert judge(history(mark(9, 5), mark(8, 4))).anomalies == ()


def test_marks_that_were_asked_for_at_the_same_time_may_come_in_any_order() -> None:
    assert judge(history(mark(9, 4), mark(8, 4, begun=999))).anomalies == ()


def test_a_commit_whose_outcome_is_not_known_may_be_found_or_not() -> None:
    for offset in (5, 6):
        events = history(
            commit("m1", 1, 5),
            ("m1", "commit", "ok", {}),
            commit("m1", 1, 6),
            ("m1", "commit", "unknown", {}),
            *committed("m2", offset),
        )
        assert judge(events).anomalies == ()


def test_a_consumer_begins_where_it_says_and_skips_nothing_from_there() -> None:
    def reads(*offsets: int) -> list[Event]:
        lines = [read("c", (each, 0, each, 1), **{"from": 5}) for each in offsets]
        return history(invoke("a", 0, 10), *lines)

    assert judge(reads(5, 6)).anomalies == ()
    assert [each.check for each in judge(reads(6)).anomalies] == ["poll-skip"]
    assert [each.check for each in judge(reads(5, 5)).anomalies] == ["nonmonotonic-poll"]


def test_what_was_read_from_nobody_knows_whom_says_nothing_about_later_marks() -> None:
    """But the log must contain it in the end."""
    sent, seen = invoke("a", 0, 10), read("c", (0, 0, 0, 9))
    assert judge(history(sent, seen, mark(8, 4))).anomalies == ()
    beyond = judge(history(sent, seen, end(8), read("final", (0, 0, 0, 8)))).anomalies
    assert "watermark-beyond-the-end" in {each.check for each in beyond}


def test_a_loss_that_was_reported_is_counted_and_no_anomaly() -> None:
    begun, reported, over = LOSS
    lost = (begun, invoke("a", 0), ok("a", 0))
    assert judge(history(*lost, over, end(0))).anomalies != ()
    verdict = judge(history(*lost, reported, over, end(0)))
    assert (verdict.anomalies, verdict.reported, verdict.left_out) == ((), 1, 0)


def test_a_reported_loss_excuses_nothing_else() -> None:
    begun, reported, over = LOSS
    verdict = judge(history(begun, view(1, 1, 4), view(2, 2, 4), reported, over))
    assert [each.check for each in verdict.anomalies] == ["two-leaders"]


def test_a_reported_loss_excuses_what_was_told_while_it_happened_and_not_before_or_after() -> None:
    first, second, third = ((invoke("a", number), ok("a", number)) for number in (0, 1, 2))
    begun, reported, over = LOSS
    verdict = judge(history(*first, begun, *second, reported, over, *third, end(0)))
    assert [(each.check, each.events) for each in verdict.anomalies] == [
        ("lost-write", (2, 10)),
        ("lost-write", (9, 10)),
    ]
    assert (verdict.reported, verdict.left_out) == (1, 0)


def test_a_consumer_whose_position_is_gone_after_a_reported_loss_begins_anew() -> None:
    """As librdkafka's does, with the offset that it has committed while it happened."""
    begun, reported, over = LOSS
    again = read("c", (0, 0, 0, 1), **{"from": 5})
    verdict = judge(history(invoke("a", 0), ok("a", 0), begun, reported, over, again))
    assert (verdict.anomalies, verdict.reported) == ((), 1)
    assert judge(history(invoke("a", 0), ok("a", 0), again)).anomalies != ()


def test_what_is_excused_hides_nothing_behind_it() -> None:
    begun, reported, over = LOSS
    lines: list[Line] = [begun]
    for number in range(MOST_OF_A_KIND + 3):
        lines += [invoke("a", number), ok("a", number)]
    lines += [reported, over]
    last = MOST_OF_A_KIND + 3
    verdict = judge(history(*lines, invoke("a", last), ok("a", last), end(0)))
    assert [each.check for each in verdict.anomalies] == ["lost-write"]
    assert (verdict.reported, verdict.left_out) == (MOST_OF_A_KIND + 3, 0)


def test_a_topic_that_is_newer_than_a_backup_is_excused_when_that_is_brought_back() -> None:
    def created(topic: str) -> tuple[Line, Line]:
        return ("c", "create", "invoke", {"topic": topic}), ("c", "create", "ok", {})

    def run(backup: int) -> tuple[Anomaly, ...]:
        events = history(
            *created("t-1"),
            ("fault-1", "backup", "invoke", {"backup": 1}),
            *created("t-2"),
            ("fault-2", "backup", "invoke", {"backup": 2}),
            *created("t-3"),
            ("fault-2", "restore", "ok", {"backup": backup}),
            *created("t-4"),
            ("final", "topics", "ok", {"broker": 1, "topics": []}),
        )
        return judge(events).anomalies

    assert [anomaly.events for anomaly in run(1)] == [(2, 12), (11, 12)]
    assert [anomaly.events for anomaly in run(2)] == [(2, 12), (5, 12), (11, 12)]


def test_many_anomalies_of_a_kind_are_counted_and_a_few_shown() -> None:
    lines: list[Line] = []
    for number in range(MOST_OF_A_KIND + 3):
        lines += [invoke("a", number), ok("a", number)]
    verdict = judge(history(*lines, end(0)))
    assert len(verdict.anomalies) == MOST_OF_A_KIND
    assert verdict.left_out == 3


def test_a_fault_that_has_met_nothing_does_not_count() -> None:
    def fault(client: str, kind: str, in_flight: int) -> Line:
        return client, "fault", "invoke", {"kind": kind, "in_flight": in_flight}

    verdict = judge(
        history(
            fault("fault-1", "disk-full", 3),
            fault("fault-2", "kill", 100),
            ("fault-1", "fault", "fail", {}),
            ("fault-2", "fault", "ok", {}),
            fault("fault-3", "pause", 120),
            fault("fault-4", "kill", 110),
            ("fault-4", "fault", "ok", {}),
            ("fault-3", "fault", "ok", {}),
        )
    )
    assert verdict.kinds == {"kill": 2, "pause": 1}
    assert (verdict.faults, verdict.overlapping, verdict.fewest_in_flight) == (3, 1, 100)
