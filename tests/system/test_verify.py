"""The fault harness: finds nothing wrong with the cluster, and finds every mistake in another."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.producer import Producer
from ottla.runtime.loop import run as run_loop
from ottla.testing.process import BrokerProcess
from ottla.verify import workload
from ottla.verify.checks import Verdict
from ottla.verify.clients import writer
from ottla.verify.clients.librdkafka import GroupConsumer
from ottla.verify.clients.reader import Reader
from ottla.verify.clients.writer import Load, Progress
from ottla.verify.cluster import ClusterUnderTest, StoreKind
from ottla.verify.faults import brokers_for, choose
from ottla.verify.history import History, excerpt
from ottla.verify.run import Limits, Outcome, judge_history, run_on_cluster, run_on_own_cluster
from ottla.verify.workload import BUSY, Plan

PLANTED = Path(__file__).with_name("planted_broker.py")
HARNESS = "ottla.verify.failing_broker"
PATIENCE = 20.0
ATTEMPTS = 20
OUTAGE_SECONDS = float(os.environ.get("OTTLA_TEST_OUTAGE_SECONDS", "5"))
SETTINGS = {"leader.imbalance.check.interval.seconds": 1}
QUICK = {"replica.lag.time.max.ms": 1_000, "replica.fetch.wait.max.ms": 200}
"""A leader gives up followers before its session ends, so that it has done so by itself."""


def break_cluster(
    folder: Path,
    faults: str,
    count: int,
    *,
    seed: int,
    store: StoreKind = "lent",
    mistake: str | None = None,
    writers: int = 120,
    transactional: int = 0,
) -> tuple[Outcome, Verdict]:
    """Break a cluster of brokers, with or without a mistake in them."""
    program = ("-m", HARNESS) if mistake is None else (str(PLANTED), mistake)
    path = folder / "history.gz"

    async def run() -> Outcome:
        kinds = choose(faults.split(","), store)
        cluster = ClusterUnderTest(
            folder,
            brokers=brokers_for(kinds),
            store=store,
            settings=SETTINGS if mistake is None else SETTINGS | QUICK,
            program=program,
            outage_seconds=OUTAGE_SECONDS,
        )
        return await run_on_own_cluster(
            cluster,
            kinds,
            Plan(
                "verify",
                seed=seed,
                writers=writers,
                transactional=transactional,
                load=Load(pause=0.03),
            ),
            path,
            Limits(faults=count, patience=120.0 if mistake is None else PATIENCE),
            asyncio.Event(),
        )

    outcome = run_loop(run())
    verdict, complete = judge_history(path)
    assert complete
    return outcome, verdict


def shown(path: Path, verdict: Verdict) -> str:
    """Every anomaly with its events."""
    lines = []
    for anomaly in verdict.anomalies:
        lines.append(f"{anomaly.check}: {anomaly.text}")
        lines += [f"    {event}" for event in excerpt(History(path), anomaly.events)]
    return "\n".join(lines)


def test_a_cluster_that_is_broken_under_load_does_nothing_wrong(tmp_path: Path) -> None:
    kinds = (
        "kill,pause,cut-brokers,lost-replies,lost-broker-replies,kill-all,election,kill-store,"
        "disk-full,fsync-error"
    )
    outcome, verdict = break_cluster(tmp_path, kinds, 10, seed=1)
    assert not verdict.anomalies, shown(outcome.history, verdict)
    assert outcome.gave_up is None
    assert sum(outcome.faults.values()) == verdict.faults >= 10
    assert outcome.acknowledged == verdict.acknowledged > 0
    assert outcome.fewest_in_flight is not None
    assert outcome.fewest_in_flight == verdict.fewest_in_flight >= BUSY
    did = {
        (event.client, event.action) for event in History(outcome.history) if event.phase == "ok"
    }
    for client, action in (
        ("writer-0", "send"),
        ("librdkafka-120", "send"),
        ("member-0", "commit"),
        ("verify-librdkafka-0-1", "commit"),
        ("verify-librdkafka-0-1", "read"),
    ):
        assert (client, action) in did


def test_an_election_gives_partitions_to_others(tmp_path: Path) -> None:
    """Also where nothing has happened before."""
    outcome, verdict = break_cluster(tmp_path, "election", 1, seed=1, writers=20)
    assert not verdict.anomalies, shown(outcome.history, verdict)
    epochs: dict[int, set[int]] = {}
    for event in History(outcome.history):
        if event.action == "view":
            for number, _, epoch in event.data["leaders"]:
                epochs.setdefault(number, set()).add(epoch)
    assert len(epochs) == 3
    assert all(len(each) > 1 for each in epochs.values()), epochs


def test_transactions_on_a_cluster_that_is_broken_are_whole(tmp_path: Path) -> None:
    kinds = (
        "kill,pause,cut-brokers,cut-clients,lost-replies,lost-broker-replies,kill-all,election,"
        "torn-tail"
    )
    outcome, verdict = break_cluster(tmp_path, kinds, 9, seed=6, writers=20, transactional=6)
    assert not verdict.anomalies, shown(outcome.history, verdict)
    assert outcome.gave_up is None
    assert verdict.faults >= 9
    assert verdict.committed > 0 < verdict.aborted
    values: Counter[str] = Counter()
    ended = set()
    for event in History(outcome.history):
        if event.client == "final" and event.action == "txn-read":
            if event.data["level"] == "committed":
                values[event.data["topic"]] += sum(run[3] for run in event.data["runs"])
        elif event.action == "txn-end":
            ended.add((event.client.split("-")[0], event.phase))
    assert values["verify-moved"] == values["verify-txn"] > 0
    assert {("txn", "ok"), ("mover", "ok"), ("table", "ok")} <= ended


def test_a_cluster_on_zookeeper_that_is_cut_up_does_nothing_wrong(tmp_path: Path) -> None:
    kinds = "isolate,session-expiry,cut-zookeeper,delay,wipe"
    outcome, verdict = break_cluster(tmp_path, kinds, 5, seed=2, store="zookeeper")
    assert not verdict.anomalies, shown(outcome.history, verdict)
    assert outcome.gave_up is None


def test_a_zookeeper_that_was_away_or_has_lost_everything_harms_nobody(tmp_path: Path) -> None:
    kinds = "zookeeper-outage,wipe-zookeeper"
    outcome, verdict = break_cluster(tmp_path, kinds, 3, seed=3, store="zookeeper")
    assert not verdict.anomalies, shown(outcome.history, verdict)
    assert outcome.gave_up is None
    assert outcome.faults["wipe-zookeeper"] == 2


def test_an_ensemble_that_loses_its_leader_harms_nobody(tmp_path: Path) -> None:
    kinds = "kill-zookeeper-leader,kill"
    outcome, verdict = break_cluster(tmp_path, kinds, 4, seed=4, store="ensemble")
    assert not verdict.anomalies, shown(outcome.history, verdict)
    assert outcome.gave_up is None
    assert outcome.faults["kill-zookeeper-leader"] >= 2


def test_partitions_that_are_moved_while_brokers_die_lose_nothing(tmp_path: Path) -> None:
    """How far a move is when it is to be changed depends on the machine: so there are as many runs
    as it takes until every way was seen."""
    begun, changed = {"at full speed", "bytes/s", "to be completed"}, {"cancelled", "replaced"}
    for seed in range(30, 35):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome, verdict = break_cluster(folder, "reassign,kill", 8, seed=seed)
        assert not verdict.anomalies, shown(outcome.history, verdict)
        assert outcome.gave_up is None
        assert outcome.faults["reassign"] >= 4
        for event in History(outcome.history):
            if event.action == "broken" and event.data["kind"] == "reassign":
                begun = {way for way in begun if way not in event.data["what"]}
            elif event.action in changed and event.data["partitions"]:
                changed.remove(event.action)
        if not begun | changed:
            return
    pytest.fail(f"never seen: {', '.join(sorted(begun | changed))}")


def test_a_loss_of_more_than_may_be_destroyed_is_reported(tmp_path: Path) -> None:
    outcome, verdict = break_cluster(tmp_path, "wipe-two", 1, seed=5)
    assert outcome.gave_up is None
    assert verdict.reported > 0
    assert not verdict.anomalies, shown(outcome.history, verdict)


LOSS = {"lost-write", "inconsistent-offset", "out-of-order-append", "duplicate"}
DIVERGENCE = {"replicas-differ", "did-not-recover", "inconsistent-offset"}
FORGOTTEN = {"committed-offset-went-back", "two-owners", "stale-commit"}

MISTAKES: dict[str, tuple[str, int, StoreKind, set[str]]] = {
    "acknowledge_before_replication": ("kill,pause", 4, "lent", LOSS),
    "count_proposed_only": ("half-isolate", 6, "zookeeper", LOSS | FORGOTTEN),
    "skip_epoch_truncation": ("isolate,session-expiry", 4, "zookeeper", DIVERGENCE),
    "lead_from_outside": ("kill,election", 4, "lent", LOSS),
    "keep_wiped_replica": ("wipe", 3, "lent", LOSS),
    "give_producer_ids_twice": ("election", 1, "lent", LOSS | {"sequence-refused"}),
    "answer_before_commit": ("isolate", 4, "zookeeper", FORGOTTEN),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str, tmp_path: Path) -> None:
    """Real processes meet a fault at a moment that no seed decides: it is tried until it shows."""
    faults, count, store, expected = MISTAKES[mistake]
    for seed in range(ATTEMPTS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        _, verdict = break_cluster(folder, faults, count, seed=seed, store=store, mistake=mistake)
        assert all(anomaly.events for anomaly in verdict.anomalies)
        if expected & {anomaly.check for anomaly in verdict.anomalies}:
            return
    pytest.fail(f"nothing was found in {ATTEMPTS} runs of {count} faults")


# -- the commands


def ottla(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla", "verify", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_any_cluster_can_be_verified_and_is_left_as_it_was(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start_broker()
    path = tmp_path / "run.history.gz"
    arguments = ("--bootstrap", broker.bootstrap, "--history", str(path), "--seed", "7")
    for seconds in (2, 10, 60):  # longer, if the machine has no time for a transaction at first
        path.unlink(missing_ok=True)
        done = ottla("run", *arguments, "--duration", f"{seconds}s", "--json")
        told = json.loads(done.stdout)
        assert told["anomalies"] == []
        assert done.returncode == (0 if told["acknowledged"] else 1), done.stderr
        assert (told["seed"], told["complete"]) == (7, True)
        if told["acknowledged"] > 0 < told["transactions"]["committed"]:
            break
    else:
        pytest.fail(f"nothing was done: {told}")
    left = [each.name for each in broker.data_dir.iterdir() if "ottla-verify" in each.name]
    assert not [name for name in left if not name.endswith("-delete")]
    again = ottla("check", str(path))
    assert again.returncode == 0
    assert again.stdout.endswith("no anomalies\n")


def test_a_run_whose_topics_are_gone_comes_to_its_end_and_says_so(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "READ_SECONDS", 2.0)
    monkeypatch.setattr(writer, "GIVE_UP_SECONDS", 1.0)
    broker = start_broker()
    path, stop = tmp_path / "run.history.gz", asyncio.Event()
    plan = Plan(
        "gone", writers=2, senders=0, consumers=0, members=0, creates=False, transactional=0
    )

    def delete(_seconds: float, progress: Progress, _faults: int) -> None:
        if progress.acknowledged:
            with Admin(broker.bootstrap) as admin:
                admin.delete_topics("gone")
            stop.set()

    address = broker.host, broker.port
    run_loop(run_on_cluster([address], plan, path, Limits(), stop, step=delete))
    verdict, complete = judge_history(path)
    assert complete
    [anomaly] = [each for each in verdict.anomalies if each.check == "not-read-in-the-end"]
    assert anomaly.text == "no broker tells of topic gone within 2 s"


@pytest.mark.parametrize(
    ("client", "consumers", "name"),
    [(Reader, 0, "reader-0-0"), (GroupConsumer, 1, "stuck-librdkafka-0")],
    ids=["reader", "consumer"],
)
def test_who_reads_along_and_gets_nothing_any_more_is_noticed(
    start_broker: Callable[..., BrokerProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: type[Any],
    consumers: int,
    name: str,
) -> None:
    async def run(_client: Any, stopping: asyncio.Event) -> None:
        await stopping.wait()

    monkeypatch.setattr(client, "run", run)
    monkeypatch.setattr(workload, "CAUGHT_UP_SECONDS", 1.0)
    broker = start_broker()
    path, stop = tmp_path / "run.history.gz", asyncio.Event()
    plan = Plan(
        "stuck", partitions=1, writers=2, senders=0, consumers=consumers, members=0,
        creates=False, transactional=0,
    )  # fmt: skip

    def step(_seconds: float, progress: Progress, _faults: int) -> None:
        if progress.acknowledged:
            stop.set()

    address = broker.host, broker.port
    run_loop(run_on_cluster([address], plan, path, Limits(), stop, step=step))
    [anomaly] = judge_history(path)[0].anomalies
    assert anomaly.check == "did-not-recover"
    assert anomaly.text.startswith(f"{name} has come to 0 of ")


def test_a_record_that_nobody_of_the_run_has_written_is_an_anomaly(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """The run goes on: who reads it is told of it, and librdkafka's consumers are, too."""
    broker = start_broker()
    path, stop = tmp_path / "run.history.gz", asyncio.Event()
    plan = Plan(
        "mixed", partitions=1, writers=2, senders=0, consumers=1, members=0, creates=False,
        transactional=0,
    )  # fmt: skip
    told: set[str] = set()

    def step(_seconds: float, progress: Progress, _faults: int) -> None:
        if progress.acknowledged and not told:
            with Producer(broker.bootstrap) as producer:
                producer.send("mixed", b"hello", partition=0)
        told.update(
            event.client.partition("-")[0] for event in History(path) if event.action == "damaged"
        )
        if told >= {"reader", "mixed"}:
            stop.set()

    address = broker.host, broker.port
    run_loop(run_on_cluster([address], plan, path, Limits(), stop, step=step))
    verdict, complete = judge_history(path)
    assert complete
    assert "damaged-record" in {each.check for each in verdict.anomalies}


def test_a_run_that_is_broken_off_does_not_see_how_its_topics_are_deleted(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_topics = workload.Workload.delete_topics
    path, events = tmp_path / "run.history.gz", list[int]()

    async def delete(self: workload.Workload) -> list[str]:
        self._recorder.record("test", "deleting", "ok")
        return await delete_topics(self)

    monkeypatch.setattr(workload.Workload, "delete_topics", delete)
    broker = start_broker()
    plan = Plan("off", partitions=1, writers=5, senders=2, consumers=0, creates=False)

    async def run() -> None:
        going = asyncio.ensure_future(
            run_on_cluster(
                [(broker.host, broker.port)], plan, path, Limits(), asyncio.Event(),
                step=lambda _seconds, progress, _faults: events.append(progress.acknowledged),
            )
        )  # fmt: skip
        while not events or events[-1] < 100:
            await asyncio.sleep(0.05)
        going.cancel()
        await asyncio.wait([going])

    run_loop(run())
    verdict, complete = judge_history(path)
    assert not complete
    assert not verdict.anomalies, shown(path, verdict)
    assert [event.client for event in History(path)][-1] == "test"


def test_topics_of_an_earlier_run_are_neither_judged_nor_deleted(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start_broker()
    arguments = ("--bootstrap", broker.bootstrap, "--seed", "7", "--workload", "records")
    arguments += ("--history", str(tmp_path / "run.history.gz"), "--duration", "2s")
    ottla("run", *arguments, "--keep")
    again = ottla("run", *arguments)
    assert again.returncode == 1
    assert "topic ottla-verify-7 is there already" in again.stderr
    assert [each for each in broker.data_dir.glob("ottla-verify-7-0") if each.is_dir()]


def test_a_cluster_that_is_not_there_is_complained_about_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.history.gz"
    done = ottla("run", "--bootstrap", "127.0.0.1:1", "--history", str(path))
    assert done.returncode == 1
    assert "no broker answers" in done.stderr
    assert not path.exists()


def test_a_zookeeper_that_does_not_start_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    folder = tmp_path / "data"
    history = str(tmp_path / "run.history.gz")
    done = ottla("cluster", "--count", "1", "--data-dir", str(folder), "--history", history)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"data and logs are in {folder}" in done.stderr
    assert "Error: the cluster does not start: ZooKeeper ended with exit code" in done.stderr
    assert "where no Java runs" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cluster", "--faults", "kill,quake"), "there is no fault 'quake'"),
        (
            ("cluster", "--faults", "session-expiry", "--store", "lent"),
            "needs --store zookeeper or ens",
        ),
        (("cluster", "--faults", "kill-zookeeper-leader"), "needs --store ensemble"),
        (("cluster", "--outage", "0s"), "longer than nothing"),
        (("cluster", "--duration", "soon"), "expected a duration"),
        (("run", "--duration", "0s"), "longer than nothing"),
        (("cluster", "--history", "/"), "--history"),
        (("cluster", "--workload", "poetry"), "'poetry' is not one of"),
        (("cluster", "--record", "made"), "--record needs --count"),
        (("cluster", "--record", "made", "--count", "1", "--seed", "1"), "a seed, a history and"),
    ],
)
def test_a_misused_command_line_is_refused(arguments: tuple[str, ...], text: str) -> None:
    done = ottla(*arguments)
    assert done.returncode == 2
    assert text in done.stderr


def test_a_record_is_made_in_parts_and_added_up(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    line = ("cluster", "--store", "lent", "--faults", "election", "--writers", "10")
    line += ("--workload", "records")

    def made(count: int) -> int:
        """Go on until so many are there; how many there are then: a round may have two."""
        done = ottla(*line, "--count", str(count), "--record", str(folder))
        assert done.returncode == 0, done.stderr
        holds = re.search(r"holds (\d+) faults?;", done.stderr)
        assert holds is not None, done.stderr
        return int(holds[1])

    first = made(1)
    both = made(first + 1)
    assert 0 < first < both
    assert made(both) == both  # that is enough
    assert len(list(folder.glob("*.history.gz"))) == 2
    total = json.loads(ottla("check", str(folder), "--json").stdout)
    assert (total["runs"], total["kinds"], total["anomalies"]) == (2, {"election": both}, 0)
    assert total["acknowledged"] > 0
    assert len(total["code"]) == 1
    shown = ottla("check", str(folder)).stdout
    assert f"2 runs, {both} faults" in shown
    assert shown.endswith("no anomalies\n")


@pytest.mark.parametrize(
    ("sent", "ended", "text"),
    [
        (False, True, "nothing was acknowledged, so nothing could be lost"),
        (True, False, "the run did not come to its end: nobody has looked"),
    ],
    ids=["idle", "killed"],
)
def test_a_run_that_shows_nothing_is_not_called_right(
    tmp_path: Path, sent: bool, ended: bool, text: str
) -> None:
    from ottla.verify.history import Recorder

    path = tmp_path / "run.history.gz"
    recorder = Recorder(path, {"seed": 7})
    recorder.record("writer-0", "send", "invoke", p=0, writer=0, first=0, count=1)
    recorder.record("writer-0", "send", "ok" if sent else "fail", offset=0)
    recorder.record("final", "end", "ok", p=0, end=0)
    if ended:
        recorder.close()
    else:
        recorder.break_off()
    done = ottla("check", str(path))
    assert (done.returncode, text in done.stderr) == (1, True), done.stderr
    of_folder = ottla("check", str(tmp_path))
    assert (of_folder.returncode, "this shows nothing" in of_folder.stderr) == (1, True)


def test_a_folder_without_a_history_is_complained_about(tmp_path: Path) -> None:
    done = ottla("check", str(tmp_path))
    assert done.returncode == 1
    assert f"there is no history in {tmp_path}" in done.stderr


def test_a_history_with_an_anomaly_is_shown_with_its_events(tmp_path: Path) -> None:
    from ottla.verify.history import Recorder

    path = tmp_path / "run.history.gz"
    with Recorder(path, {"seed": 7}) as recorder:
        recorder.record("writer-0", "send", "invoke", p=0, writer=0, first=0, count=1)
        recorder.record("writer-0", "send", "ok", offset=0)
        recorder.record("final", "end", "ok", p=0, end=0)
    done = ottla("check", str(path))
    assert done.returncode == 1
    assert f"seed 7, history {path}" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "1 anomaly:"
    assert lines[2].startswith("lost-write: value 0.0 was at offset 0 of partition 0")
    assert [line.split()[0] for line in lines[3:]] == ["#2", "#3"]
