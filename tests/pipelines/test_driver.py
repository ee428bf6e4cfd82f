"""One pipeline in a driver, in the tests' session: stops, refusals, moved offsets, outages."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import Groups
from ottla.client.producer import Producer
from ottla.client.router import Router
from ottla.model.ids import TopicPartition
from ottla.pipelines.connectors.contract import HIDDEN, Batch, Guarantee, Place
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.process import Outcome, Way
from ottla.pipelines.connectors.sources.http import SOURCE as HTTP
from ottla.pipelines.connectors.spec.values import Connector, ErrorPolicy, PipelineSpec
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles
from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.membership import Membership
from ottla.pipelines.driver.progress import State
from ottla.pipelines.driver.run import Driver, Failed
from ottla.pipelines.driver.start import Choices, Follow

PATIENCE = 300.0
SOON = 150.0
"""Seconds for a driver to end on a busy machine; on an idle one it takes about half a minute."""


class Text:
    """A topic's values as text."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def topics_read(self) -> list[str]:
        return [self._topic]

    def stream(self, spark: Any, place: Place) -> Any:
        given = {
            "kafka.bootstrap.servers": place.bootstrap,
            "subscribe": self._topic,
            "startingOffsets": "earliest",
            "commitOffsets": "false",
        }
        return spark.readStream.format("ottla").options(**given).load()

    def sample(self, spark: Any, place: Place, count: int) -> Any:
        raise AssertionError("a run samples nothing")

    def rows(self, batch: Any) -> Any:
        hidden = "named_struct('position', cast(offset as string), 'error', cast(null as string))"
        return batch.selectExpr("cast(value as string) as value", f"{hidden} as {HIDDEN}")


class Kept:
    """A sink that keeps values in memory, and waits inside of a batch when it is told to."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self) -> None:
        self.values: list[str] = []
        self.batches: list[Batch] = []
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.raises: Exception | None = None

    def prepare(self, spark: Any, schema: Any, place: Place) -> None:
        assert schema.fieldNames() == ["value", HIDDEN]

    def write(self, rows: Any, batch: Batch) -> None:
        self.inside.set()
        assert self.go_on.wait(PATIENCE)
        if self.raises is not None:
            raise self.raises
        self.batches.append(batch)
        self.values += [row.value for row in rows.select("value").collect()]

    def probe(self, rows: Any, batch: Batch) -> None:
        if self.raises is not None:
            raise self.raises


class Run:
    """A driver in a thread of its own."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self.driver.run()
        except BaseException as error:  # whatever it is, the test looks at it
            self.error = error

    def end(self) -> None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


class Pipeline:
    """One pipeline of a test: its topic, its sink, its runs."""

    def __init__(self, spark: Any, bootstrap: str, topic: str, folder: Path) -> None:
        self.spec = PipelineSpec(
            topic,
            bootstrap,
            _connector("text"),
            _connector("kept"),
            on_error=ErrorPolicy(attempts=1),
            trigger=0.1,
        )
        self.topic, self.bootstrap, self.sink = topic, bootstrap, Kept()
        self.home = Home(folder, topic)
        self._spark = spark
        self.runs: list[Run] = []

    def driver(self, choices: Choices, spec: PipelineSpec | None = None) -> Driver:
        policy = self.spec.on_error
        way = Way(Text(self.topic), lambda frame: frame, self.sink, policy=policy)
        return Driver(spec or self.spec, way, self.home, choices, session=self._spark)

    def start(self) -> Run:
        self.runs.append(Run(self.driver(Choices())))
        return self.runs[-1]

    def once(self, **choices: Any) -> Outcome:
        return self.driver(Choices(once=True, **choices)).run()

    def send(self, *values: str) -> None:
        with Producer(self.bootstrap) as producer:
            for value in values:
                producer.post(self.topic, value.encode(), partition=0)

    def committed(self) -> int | None:
        with Groups(self.bootstrap) as groups:
            found = groups.offsets(self.spec.group)
        place = found.get(TopicPartition(self.topic, 0))
        return None if place is None else place.offset


def _connector(name: str) -> Connector:
    return Connector(name, {}, Declaration(name, "", (), dict))


@pytest.fixture
def pipeline(
    spark: Any, bootstrap: str, unique: Callable[..., str], tmp_path: Path
) -> Iterator[Pipeline]:
    topic = unique()
    with DirectAdmin(bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 1, 1))
    made = Pipeline(spark, bootstrap, topic, tmp_path)
    yield made
    made.sink.go_on.set()
    for each in made.runs:
        each.driver.stop()
        each.driver.stop()
        each.end()


def test_a_stop_finishes_the_batch_and_the_group_shows_it(
    pipeline: Pipeline, eventually: Any
) -> None:
    pipeline.send("one")
    pipeline.sink.go_on.clear()
    run = pipeline.start()
    assert pipeline.sink.inside.wait(PATIENCE)
    run.driver.stop()
    pipeline.send("two")
    assert run.driver.figures().state is State.STOPPING
    assert run.thread.is_alive()
    pipeline.sink.go_on.set()
    run.end()
    assert run.error is None
    assert pipeline.sink.values == ["one"]
    assert pipeline.committed() == 1
    assert pipeline.home.status()["state"] == "stopped"
    # Whether Spark has planned the next batch when the stop comes is chance. It has not begun.
    checkpoint = Checkpoint("test", LocalFiles(Path(pipeline.home.checkpoint(None))))
    assert checkpoint.finished == 0
    planned = checkpoint.unfinished == 1
    pipeline.once()
    assert pipeline.sink.values == ["one", "two"], "not again, and not left out"
    assert [each.replayed for each in pipeline.sink.batches] == [False, planned]
    assert len({each.run for each in pipeline.sink.batches}) == 1


def test_a_second_driver_is_refused_and_the_first_goes_on(
    pipeline: Pipeline, eventually: Any, tmp_path: Path
) -> None:
    pipeline.send("one")
    run = pipeline.start()
    eventually(lambda: pipeline.sink.values == ["one"], timeout=PATIENCE)
    elsewhere = Pipeline(None, pipeline.bootstrap, pipeline.topic, tmp_path / "another machine")
    with pytest.raises(Refused, match=r"is run by process \d+ on .*UNRELEASED_INSTANCE_ID"):
        elsewhere.once(follow=Follow.CHECKPOINT)
    pipeline.send("two")
    eventually(lambda: pipeline.sink.values == ["one", "two"], timeout=PATIENCE)
    assert run.error is None


def test_losing_the_membership_stops_the_query(pipeline: Pipeline, eventually: Any) -> None:
    pipeline.send("one")
    run = pipeline.start()
    eventually(lambda: pipeline.committed() == 1, timeout=PATIENCE)
    member = pipeline.home.remembered()["member"]
    with Router(pipeline.bootstrap) as router:
        group = pipeline.spec.group
        router.coordinator(group).ask(Membership(group, member).leave())
    pipeline.send("two")  # its commit is what the group refuses, if no heartbeat is before it
    run.end()
    assert isinstance(run.error, Failed)
    assert "does not have this driver as its member any more" in str(run.error)
    assert pipeline.home.status()["state"] == "failed"


def test_offsets_that_somebody_has_moved_are_named_and_one_of_two_is_followed(
    pipeline: Pipeline,
) -> None:
    pipeline.send("one", "two", "three")
    pipeline.once()
    group, first = pipeline.spec.group, TopicPartition(pipeline.topic, 0)
    with Groups(pipeline.bootstrap) as groups:
        groups.set_offsets(group, {first: 1})
    with pytest.raises(Refused, match=rf"{first} at 1 \(checkpoint: 3\).*--from-group"):
        pipeline.once()
    pipeline.sink.values.clear()
    pipeline.once(follow=Follow.CHECKPOINT)
    assert pipeline.sink.values == []
    assert pipeline.committed() == 3
    with Groups(pipeline.bootstrap) as groups:
        groups.set_offsets(group, {first: 1})
    pipeline.once(follow=Follow.GROUP)
    assert pipeline.sink.values == ["two", "three"]
    assert pipeline.committed() == 3
    pipeline.once()  # nothing is asked any more


def test_a_batch_that_fails_is_named_and_repeated_under_its_number(pipeline: Pipeline) -> None:
    pipeline.send("one")
    pipeline.sink.raises = ValueError("no such column")
    with pytest.raises(Failed, match=rf"pipeline {pipeline.topic} has failed: .*no such column"):
        pipeline.once()
    pipeline.sink.raises = None
    pipeline.once()
    assert pipeline.sink.values == ["one"]
    assert [(each.number, each.replayed) for each in pipeline.sink.batches] == [(0, True)]


def test_a_topic_that_is_not_there_is_refused_before_anything_else(
    bootstrap_no_auto_create: str, unique: Any, tmp_path: Path
) -> None:
    pipeline = Pipeline(None, bootstrap_no_auto_create, unique(), tmp_path)
    with pytest.raises(Refused, match=rf"reads topic {pipeline.topic}, which 127.0.0.1:\d+ does"):
        pipeline.once()


def test_a_broker_that_is_away_is_waited_for(
    spark: Any, start_broker: Any, unique: Any, tmp_path: Path, eventually: Any
) -> None:
    broker, topic = start_broker(), unique()
    with DirectAdmin(broker.bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 1, 1))
    pipeline = Pipeline(spark, broker.bootstrap, topic, tmp_path)
    pipeline.send("one")
    run = pipeline.start()
    try:
        eventually(lambda: pipeline.committed() == 1, timeout=PATIENCE)
        broker.kill()
        eventually(
            lambda: "Connection refused" in (run.driver.figures().waiting or ""), timeout=PATIENCE
        )
        assert run.driver.figures().state is State.WAITING
        broker.start()
        pipeline.send("two")
        eventually(lambda: pipeline.committed() == 2, timeout=PATIENCE)
        eventually(lambda: run.driver.figures().state is State.RUNNING, timeout=PATIENCE)
    finally:
        run.driver.stop()
        run.end()
    assert run.error is None
    assert pipeline.sink.values == ["one", "two"]


@pytest.mark.parametrize("silence", ["silent", "dead"])
def test_a_stop_gives_a_batch_up_that_waits_for_brokers(
    spark: Any, start_broker: Any, unique: Any, tmp_path: Path, silence: str
) -> None:
    """A machine that swaps, or whose disk hangs, takes connections and answers nothing."""
    broker, topic = start_broker(), unique()
    with DirectAdmin(broker.bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 1, 1))
    pipeline = Pipeline(spark, broker.bootstrap, topic, tmp_path)
    pipeline.send("one", "two")
    pipeline.sink.go_on.clear()
    run = pipeline.start()
    try:
        assert pipeline.sink.inside.wait(PATIENCE)
        broker.signal(signal.SIGSTOP) if silence == "silent" else broker.kill()
        pipeline.sink.go_on.set()  # and its rows are read
        run.driver.stop()
        run.thread.join(SOON)
        ended = not run.thread.is_alive()
    finally:
        broker.signal(signal.SIGCONT) if silence == "silent" else broker.start()
        run.driver.stop()
        run.end()
    assert ended, "it waited until the broker was back"
    assert run.error is None
    assert run.driver.figures().state is State.STOPPED
    assert "batch 0 is given up" in str(run.driver.figures().error)
    pipeline.once()
    assert pipeline.sink.values == ["one", "two"]
    assert [(each.number, each.replayed) for each in pipeline.sink.batches] == [
        *((0, False), (0, True)),
    ]


def test_a_stop_ends_a_look_at_the_source_that_takes_too_long(
    pipeline: Pipeline, eventually: Callable[..., Any]
) -> None:
    class Slow(Text):
        def stream(self, spark: Any, place: Place) -> Any:
            nap = "reflect('java.lang.Thread', 'sleep', 600000L)"
            spark.range(1, numPartitions=1).selectExpr(nap).collect()
            raise AssertionError("nobody has stopped it")

    way = Way(Slow(pipeline.topic), lambda frame: frame, pipeline.sink)
    driver = Driver(pipeline.spec, way, pipeline.home, Choices(), session=pipeline._spark)
    run = Run(driver)
    jobs = pipeline._spark.sparkContext.statusTracker()
    eventually(jobs.getActiveJobsIds, timeout=PATIENCE)
    driver.stop()
    run.thread.join(SOON)
    assert not run.thread.is_alive()
    assert run.error is None
    assert driver.figures().state is State.STOPPED


def test_a_stop_does_not_wait_for_silent_brokers_where_nothing_is_to_do(
    spark: Any, start_broker: Any, unique: Any, tmp_path: Path, eventually: Any
) -> None:
    broker, topic = start_broker(), unique()
    with DirectAdmin(broker.bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 1, 1))
    pipeline = Pipeline(spark, broker.bootstrap, topic, tmp_path)
    pipeline.send("one")
    run = pipeline.start()
    try:
        eventually(lambda: pipeline.committed() == 1, timeout=PATIENCE)
        broker.signal(signal.SIGSTOP)
        run.driver.stop()
        run.thread.join(SOON)
        ended = not run.thread.is_alive()
    finally:
        broker.signal(signal.SIGCONT)
        run.end()
    assert ended, "it waited until the broker was back"
    assert run.error is None
    assert pipeline.sink.values == ["one"]


@pytest.mark.parametrize("once", [False, True])
def test_a_source_that_is_away_is_shown_and_a_stop_does_not_wait_for_it(
    pipeline: Pipeline, eventually: Callable[..., Any], once: bool
) -> None:
    values = {option.name: option.default for option in HTTP.options}
    source = HTTP.make(values | {"url": "http://127.0.0.1:1/orders", "every": 0.1})
    way = Way(source, lambda frame: frame, pipeline.sink, policy=pipeline.spec.on_error)
    driver = Driver(pipeline.spec, way, pipeline.home, Choices(once=once), session=pipeline._spark)
    run = Run(driver)
    away = "http://127.0.0.1:1/orders: [Errno 111]"
    eventually(lambda: away in str(driver.figures().waiting), timeout=PATIENCE)
    assert driver.figures().state is State.WAITING
    driver.stop()
    run.end()
    assert run.error is None
    assert driver.figures().state is State.STOPPED
