"""Runs add up: faults by kind, records, time; what did not come to its end does not count."""

from __future__ import annotations

from pathlib import Path

from ottla.verify.checks import judge
from ottla.verify.history import History, Phase, Recorder
from ottla.verify.record import add_up, faults_so_far, histories, next_history, note


class Clock:
    """Goes on by a second with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def write(
    folder: Path, *kinds: str, in_flight: int = 100, close: bool = True, lost: bool = False
) -> Path:
    """A run in which each fault begins before the one before it has ended."""
    path = next_history(folder, seed=7)
    recorder = Recorder(path, {"seed": 7, "code": "abc"}, clock=Clock())
    for number, kind in enumerate(kinds):
        client = f"fault-{number}"
        recorder.record(client, "fault", "invoke", kind=kind, in_flight=in_flight + number)
    for number in range(len(kinds)):
        recorder.record(f"fault-{number}", "fault", "ok")
    recorder.record("w", "send", "invoke", p=0, writer=0, first=0, count=5)
    recorder.record("w", "send", "ok", offset=0)
    if lost:
        recorder.record("final", "end", "ok", p=0, end=0)
    recorder.flush()
    flushed = path.read_bytes()
    recorder.close()
    if not close:
        path.write_bytes(flushed)  # all that there is when its writer is killed
    return path


def judged(path: Path, store: str = "zookeeper") -> None:
    history = History(path)
    verdict = judge(history)
    note(path, store, verdict, complete=history.complete)


def test_kinds_records_and_requests_in_flight_are_added_up(tmp_path: Path) -> None:
    write(tmp_path, "kill", "wipe", in_flight=120)
    write(tmp_path, "kill", in_flight=101)
    total = add_up(histories(tmp_path))
    assert (total.runs, total.kinds, total.overlapping) == (2, {"kill": 2, "wipe": 1}, 1)
    assert (total.acknowledged, total.fewest_in_flight, total.codes) == (10, 101, {"abc"})
    assert (total.seconds, total.available, total.anomalies) == (2, 2, 0)


def test_seconds_between_faults_are_told_from_those_in_which_something_is_broken(
    tmp_path: Path,
) -> None:
    path = next_history(tmp_path, seed=7)
    clock = Clock()
    with Recorder(path, {"seed": 7, "code": "abc"}, clock=clock) as recorder:

        def send(at: int, first: int) -> None:
            clock.now = at - 0.7
            recorder.record("w", "send", "invoke", p=0, writer=0, first=first, count=1)
            clock.now = at - 0.5
            recorder.record("w", "send", "ok", offset=first)

        def fault(at: int, phase: Phase) -> None:
            clock.now = at - 0.9
            recorder.record("fault-1", "fault", phase, kind="kill")

        send(1, 0)
        fault(3, "invoke")
        send(4, 1)
        fault(5, "ok")
        send(8, 2)
    total = add_up([path])
    assert (total.seconds, total.available) == (8, 3)
    assert (total.calm, total.calm_available) == (5, 2)  # the third to the fifth are not


def test_a_run_that_was_killed_is_named_and_not_counted(tmp_path: Path) -> None:
    write(tmp_path, "kill")
    killed = write(tmp_path, "wipe", close=False)
    total = add_up(histories(tmp_path))
    assert (total.runs, total.kinds, total.incomplete) == (1, {"kill": 1}, [killed])


def test_what_is_wrong_with_any_run_is_wrong_with_all(tmp_path: Path) -> None:
    write(tmp_path, "kill")
    bad = write(tmp_path, "kill", lost=True)
    total = add_up(histories(tmp_path))
    assert [path for path, _ in total.bad] == [bad]
    assert total.anomalies == 1


def test_a_later_run_knows_how_much_there_is(tmp_path: Path) -> None:
    assert faults_so_far(tmp_path, "zookeeper") == 0
    judged(write(tmp_path, "kill", "wipe"))
    judged(write(tmp_path, "kill"), "ensemble")
    judged(write(tmp_path, "kill", close=False))
    write(tmp_path, "kill")  # the process was killed before it was judged
    assert faults_so_far(tmp_path, "zookeeper") == 2
    assert faults_so_far(tmp_path, "ensemble") == 1
    assert next_history(tmp_path, 9).name == "0005-9.history.gz"


def test_a_file_without_a_beginning_is_named_and_hides_nothing(tmp_path: Path) -> None:
    """Its writer was killed, and the machine lost its power."""
    write(tmp_path, "kill")
    empty = next_history(tmp_path, 8)
    empty.write_bytes(b"")
    bad = write(tmp_path, "wipe", lost=True)
    total = add_up(histories(tmp_path))
    assert (total.runs, total.kinds) == (2, {"kill": 1, "wipe": 1})
    assert total.unreadable == [f"{empty} is not a history of `ottla verify`"]
    assert [path for path, _ in total.bad] == [bad]


def test_a_note_that_is_torn_counts_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "kill")
    judged(path)
    assert faults_so_far(tmp_path, "zookeeper") == 1
    path.with_name(path.name.replace(".history.gz", ".json")).write_text('{"store": "zoo')
    assert faults_so_far(tmp_path, "zookeeper") == 0
