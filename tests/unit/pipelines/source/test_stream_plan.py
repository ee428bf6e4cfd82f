from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ottla.client.descriptions import OffsetInfo
from ottla.client.topology import Leader
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Topic, Unreachable
from ottla.pipelines.errors import DataLossError, OptionError
from ottla.pipelines.source.lookup import find_topics, wanted
from ottla.pipelines.source.loss import Observation
from ottla.pipelines.source.offsets import Progress
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.ranges import Range
from ottla.pipelines.source.stream_plan import GONE_AFTER, SHORT_AFTER, StreamPlan
from ottla.pipelines.source.watch import QUIET_AFTER, QUIET_LOOKS, TOPICS_AGE, Watch

FIRST_ID = bytes([1] * 16)
SECOND_ID = bytes([2] * 16)
ORDERS = [TopicPartition("orders", number) for number in range(3)]


@dataclass
class FakeCluster(Cluster):
    """Topics with their logs from start to end; counts what it is asked."""

    bootstrap: str = "h:1"
    ids: dict[str, bytes] = field(default_factory=lambda: {"orders": FIRST_ID})
    logs: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    epoch: int = 0
    epoch_end: int | None = None
    down: bool = False
    asked: list[str] = field(default_factory=list)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.down:
            raise Unreachable(ErrorCode.NETWORK_EXCEPTION, "h:1: refused")

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        self._ask("topics")
        return {
            name: Topic(
                name,
                self.ids[name],
                {tp.partition: Leader(1, self.epoch) for tp in self.logs if tp.topic == name},
            )
            for name in names
            if name in self.ids
        }

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
        self._ask("offsets")
        edges = {-2: 0, -1: 1}
        return {
            tp: OffsetInfo(self.logs[tp][edges[which]], leader_epoch=self.epoch)
            for tp, which in wanted.items()
        }

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {}

    def observe(
        self, part: Range, position: int | None = None, *, newest: int | None = None
    ) -> Observation:
        start, end = self.logs[part.topic_partition]
        return Observation(
            part.topic,
            part.partition,
            part.start,
            part.end,
            part.topic_id,
            part.epoch,
            found_topic_id=self.ids[part.topic],
            log_start=start,
            log_end=end,
            epoch_end=self.epoch_end,
        )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """A plan on a fake cluster, and where its stream stands."""

    def __init__(self, **options: str) -> None:
        given = {"kafka.bootstrap.servers": "h:1", "startingOffsets": "earliest"}
        if "assign" not in options:
            given["subscribe"] = "orders"
        self.options = ReadOptions.of(given | options, streaming=True)
        self.clock = Clock()
        self.cluster = FakeCluster(logs={ORDERS[0]: (0, 10), ORDERS[1]: (5, 20)})
        self.watch = Watch(
            self.cluster,
            lambda cluster: find_topics(cluster, self.options.strategy),
            wanted(self.options.strategy),
            clock=self.clock,
        )
        self.plan = StreamPlan(self.options, self.watch, clock=self.clock)
        self.base: Progress | None = None

    def next(self, **how: Any) -> list[tuple[int, int, int]] | None:
        """The ranges of the next batch; None while unreachable."""
        planned = self.plan.next(self.base, **how)
        if planned is None:
            return None
        ranges = Progress.ranges(self.base or Progress({}), planned)
        self.base = planned
        return [(part.partition, part.start, part.end) for part in ranges]

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


@pytest.fixture
def begun() -> Stage:
    stage = Stage()
    assert stage.next() == [(0, 0, 10), (1, 5, 20)]
    return stage


def test_a_look_that_finds_nothing_new_is_one_request(begun: Stage) -> None:
    begun.pass_time(TOPICS_AGE)
    begun.next()
    del begun.cluster.asked[:]
    before = begun.base
    assert begun.next() == []
    assert begun.base is before
    assert begun.cluster.asked == ["offsets"]


def test_a_stream_that_is_quiet_is_looked_at_less_often(begun: Stage) -> None:
    begun.next()
    begun.pass_time(QUIET_AFTER)
    begun.next()
    del begun.cluster.asked[:]
    begun.pass_time(QUIET_LOOKS / 2)
    assert begun.next() == []
    assert begun.cluster.asked == []
    begun.cluster.logs[ORDERS[0]] = (0, 12)
    begun.pass_time(QUIET_LOOKS)
    assert begun.next() == [(0, 10, 12)]
    begun.cluster.logs[ORDERS[0]] = (0, 13)
    assert begun.next() == [(0, 12, 13)]


def test_new_records_and_new_partitions_are_read_from_their_beginning(begun: Stage) -> None:
    begun.cluster.logs[ORDERS[0]] = (0, 12)
    begun.cluster.logs[ORDERS[2]] = (3, 4)
    assert begun.next() == [(0, 10, 12), (2, 3, 4)]
    assert begun.next() == []


def test_an_unreachable_cluster_changes_nothing_and_is_not_asked_at_every_look(
    begun: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    begun.cluster.logs[ORDERS[0]] = (0, 12)
    begun.cluster.down = True
    del begun.cluster.asked[:]
    assert [begun.next() for _ in range(5)] == [None] * 5
    assert len(begun.cluster.asked) == 1
    assert begun.watch.trouble == "h:1: refused"
    begun.cluster.down = False
    begun.pass_time(2.0)
    assert begun.next() == [(0, 10, 12)]
    assert begun.watch.trouble is None
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        "h:1 cannot be reached",
        "h:1 can be reached again after 2.0 s.",
    ]


def test_limits_are_shared_out_and_do_not_apply_to_everything() -> None:
    stage = Stage(maxOffsetsPerTrigger="5")
    assert stage.next() == [(0, 0, 2), (1, 5, 8)]
    assert stage.next(everything=True) == [(0, 2, 10), (1, 8, 20)]


def test_a_small_batch_waits_for_more_or_for_its_time() -> None:
    stage = Stage(minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    assert stage.next() == [(0, 0, 10), (1, 5, 20)]
    stage.cluster.logs[ORDERS[0]] = (0, 14)
    assert stage.next() == []
    stage.pass_time(10.0)
    assert stage.next() == [(0, 10, 14)]


def test_available_now_ends_where_the_logs_ended_when_it_began() -> None:
    stage = Stage(maxOffsetsPerTrigger="20", minOffsetsPerTrigger="20")
    stage.plan.cap()
    assert stage.plan.capped
    assert stage.next() == [(0, 0, 8), (1, 5, 17)]
    stage.cluster.logs = {ORDERS[0]: (0, 99), ORDERS[1]: (5, 99), ORDERS[2]: (0, 99)}
    assert stage.next() == [(0, 8, 10), (1, 17, 20)]
    assert stage.next() == []


def test_available_now_reads_a_topic_that_was_not_known_for_a_moment_at_its_start(
    begun: Stage,
) -> None:
    begun.cluster.logs = {ORDERS[0]: (0, 30), ORDERS[1]: (5, 40)}
    begun.cluster.ids = {}
    begun.plan.cap()
    assert begun.next() == []
    assert begun.plan.undecided
    begun.cluster.ids = {"orders": FIRST_ID}
    begun.pass_time(TOPICS_AGE)
    assert begun.next() == [(0, 10, 30), (1, 20, 40)]
    begun.cluster.logs[ORDERS[0]] = (0, 99)
    assert begun.next() == []


def test_available_now_reads_a_log_that_was_too_short_for_a_moment_at_its_start(
    begun: Stage,
) -> None:
    begun.cluster.logs = {ORDERS[0]: (0, 8), ORDERS[1]: (5, 40)}
    begun.plan.cap()
    begun.cluster.logs = {ORDERS[0]: (0, 30), ORDERS[1]: (5, 50)}
    assert begun.next() == [(0, 10, 30), (1, 20, 40)]
    begun.cluster.logs[ORDERS[0]] = (0, 99)
    assert begun.next() == []


def test_available_now_ends_in_a_topic_made_anew_that_goes_on_growing() -> None:
    stage = Stage(failOnDataLoss="recreated=rewind")
    stage.next()
    stage.cluster.ids["orders"] = SECOND_ID
    stage.cluster.logs = {ORDERS[0]: (0, 3), ORDERS[1]: (0, 4)}
    stage.plan.cap()
    stage.cluster.logs = {ORDERS[0]: (0, 5), ORDERS[1]: (0, 6)}
    assert stage.next() == [(0, 0, 3), (1, 0, 4)]
    stage.cluster.logs = {ORDERS[0]: (0, 7), ORDERS[1]: (0, 8)}
    assert stage.next() == []


def test_records_that_aged_out_end_the_query_or_are_left_out() -> None:
    for policy in ("true", "false"):
        stage = Stage(failOnDataLoss=policy)
        stage.next()
        stage.cluster.logs[ORDERS[0]] = (15, 17)
        if policy == "true":
            with pytest.raises(DataLossError, match=r"Offsets 10 to 14 .*aged out"):
                stage.next()
        else:
            assert stage.next() == [(0, 15, 17)]
            assert stage.next() == []


@pytest.mark.parametrize(("action", "ranges"), [("skip", []), ("rewind", [(0, 0, 30), (1, 5, 20)])])
def test_a_topic_made_anew_is_told_by_its_id(action: str, ranges: list[Any]) -> None:
    stage = Stage(failOnDataLoss=f"recreated={action}")
    stage.next()
    stage.cluster.ids["orders"] = SECOND_ID
    stage.cluster.logs[ORDERS[0]] = (0, 30)
    assert stage.next() == ranges
    stage.cluster.logs[ORDERS[0]] = (0, 31)
    assert stage.next() == [(0, 30, 31)]


def test_a_topic_made_anew_says_how_much_of_the_old_one_was_not_read() -> None:
    stage = Stage(maxOffsetsPerTrigger="15")
    stage.next()
    stage.cluster.ids["orders"] = SECOND_ID
    with pytest.raises(DataLossError, match=r"Offsets 6 to 9 .* \(4 records\) .* made anew"):
        stage.next()


@pytest.mark.parametrize("policy", ["true", "deleted=skip"])
def test_a_topic_counts_as_deleted_when_it_stays_away(policy: str) -> None:
    stage = Stage(failOnDataLoss=policy)
    stage.next()
    del stage.cluster.ids["orders"]
    stage.pass_time(TOPICS_AGE)
    assert stage.next() == []
    assert stage.plan.undecided
    stage.pass_time(GONE_AFTER)
    if policy == "true":
        with pytest.raises(DataLossError, match="the topic was deleted"):
            stage.next()
        return
    assert [stage.next(), stage.next()] == [[], []]
    assert not stage.plan.undecided
    # The same topic, back again (a broker that had not heard of it yet): goes on where it was.
    stage.cluster.ids["orders"] = FIRST_ID
    stage.cluster.logs[ORDERS[0]] = (0, 11)
    stage.pass_time(TOPICS_AGE)
    assert stage.next() == [(0, 10, 11)]


def test_a_log_that_is_too_short_counts_as_truncated_when_it_stays_so(begun: Stage) -> None:
    begun.cluster.logs[ORDERS[0]] = (0, 8)
    assert begun.next() == []
    begun.cluster.logs[ORDERS[0]] = (0, 10)
    begun.pass_time(SHORT_AFTER)
    assert begun.next() == []
    begun.cluster.logs[ORDERS[0]] = (0, 8)
    assert begun.next() == []
    begun.pass_time(SHORT_AFTER)
    with pytest.raises(DataLossError, match="cut off the end of the log"):
        begun.next()


def test_an_epoch_that_ended_before_the_place_proves_a_truncation_at_once(begun: Stage) -> None:
    begun.cluster.epoch, begun.cluster.epoch_end = 1, 7
    begun.cluster.logs[ORDERS[0]] = (0, 40)
    with pytest.raises(DataLossError, match="leader epoch 0"):
        begun.next()


def test_a_new_leader_alone_is_no_loss(begun: Stage) -> None:
    begun.cluster.epoch, begun.cluster.epoch_end = 1, 20
    begun.cluster.logs[ORDERS[0]] = (0, 40)
    assert begun.next() == [(0, 10, 40)]


def test_a_checkpoint_of_another_topic_is_refused(begun: Stage) -> None:
    stage = Stage(subscribe="clicks")
    stage.cluster.ids["clicks"] = SECOND_ID
    stage.base = begun.base
    with pytest.raises(OptionError, match="checkpoint is of topic orders"):
        stage.next()


def test_fewer_partitions_than_before_end_the_query_or_are_left_out_once(
    begun: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    assign = {"assign": '{"orders":[0]}'}
    strict, lenient = (Stage(**assign, failOnDataLoss=each) for each in ("true", "deleted=skip"))
    for stage in (strict, lenient):
        stage.base = begun.base
    with pytest.raises(OptionError, match="which leaves out orders-1 from offset 20 on"):
        strict.next()
    lenient.cluster.logs[ORDERS[0]] = (0, 12)
    assert lenient.next() == [(0, 10, 12)]
    assert lenient.base is not None
    assert lenient.base.ends() == {ORDERS[0]: 12}
    lenient.next()
    assert [record.getMessage() for record in caplog.records] == [
        "assign says orders-0, and failOnDataLoss allows it: what the checkpoint has beside that "
        "is left unread, orders-1 from offset 20 on."
    ]
    # Then a look that finds nothing new costs as little as it did before.
    del lenient.cluster.asked[:]
    assert lenient.next() == []
    assert lenient.cluster.asked == ["offsets"]
