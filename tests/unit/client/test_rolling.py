"""When a rolling restart goes on, and when it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ottla.client.cluster_health import BrokerHealth, ClusterHealth, Known, PartitionHealth
from ottla.client.descriptions import PartitionDescription, TopicDescription
from ottla.client.rolling import Doubt, Interrupted, Rolling, exposed, exposures, order, wrong
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

LACKING = PartitionHealth("t", 0, 1, (1, 2, 3), (1, 3), (), (), 2)


def broker(number: int, since_ms: int = 100) -> BrokerHealth:
    return BrokerHealth(number, f"h{number}:9092", None, False, 1, 3, 3, "h", since_ms)


def cluster(*brokers: BrokerHealth, troubled: tuple[PartitionHealth, ...] = ()) -> ClusterHealth:
    return ClusterHealth("abc", 2, brokers or tuple(map(broker, (1, 2, 3))), 6, troubled)


class Simulated:
    """A cluster whose brokers do as told when they are restarted; time passes between looks."""

    def __init__(self) -> None:
        self.health = cluster()
        self.coming: list[ClusterHealth | KafkaError] = []
        self.restarted: list[int] = []
        self.steps: list[tuple[int, str]] = []
        self.now = 0.0
        self.after: Callable[[int], Sequence[ClusterHealth | KafkaError]] = self.well

    def well(self, number: int) -> Sequence[ClusterHealth | KafkaError]:
        """It goes, comes back, and catches up."""
        there = [each for each in self.health.brokers if each.id != number]
        missing = replace(broker(number), address=None, since_ms=None)
        back = sorted([*there, broker(number, 200)], key=lambda each: each.id)
        return [
            self.health,
            KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection has ended"),
            cluster(*there, missing, troubled=(LACKING,)),
            cluster(*back, troubled=(LACKING,)),
            cluster(*back),
        ]

    def look(self) -> ClusterHealth:
        if self.coming:
            found = self.coming.pop(0)
            if isinstance(found, KafkaError):
                raise found
            self.health = found
        return self.health

    def restart(self, which: BrokerHealth) -> None:
        self.restarted.append(which.id)
        self.coming = list(self.after(which.id))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @staticmethod
    def check(number: int, health: ClusterHealth) -> str | None:
        return None

    @property
    def rolling(self) -> Rolling:
        return Rolling(
            self.look,
            self.restart,
            lambda number, what: self.steps.append((number, what.partition(",")[0])),
            check=self.check,
            patience=10.0,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


@pytest.fixture
def simulated() -> Simulated:
    return Simulated()


def test_each_broker_is_in_sync_again_before_the_next_ones_turn(simulated: Simulated) -> None:
    rolling = simulated.rolling
    rolling.run([1, 3])
    assert simulated.restarted == [1, 3]
    assert simulated.steps == [
        (1, "stopping"), (1, "back"), (1, "in sync"), (3, "stopping"), (3, "back"), (3, "in sync"),
    ]  # fmt: skip
    assert list(rolling.taken) == [1, 3]
    assert all(taken > 0 for taken in rolling.taken.values())


def test_nothing_is_stopped_while_something_is_wrong(simulated: Simulated) -> None:
    simulated.health = cluster(troubled=(LACKING,))
    with pytest.raises(Doubt, match="t-0 is under-replicated; broker 1 is left as it is"):
        simulated.rolling.run([1])
    assert simulated.restarted == []


def test_what_speaks_against_a_broker_is_asked_when_its_turn_has_come(
    simulated: Simulated,
) -> None:
    rolling = Rolling(
        simulated.look,
        simulated.restart,
        lambda number, what: None,
        against=lambda number: f"clients need {number}" if simulated.restarted else None,
        clock=lambda: simulated.now,
        sleep=simulated.sleep,
    )
    with pytest.raises(Doubt, match="clients need 3; broker 3 is left as it is"):
        rolling.run([1, 3])
    assert list(rolling.taken) == [1]


def test_a_cluster_that_does_not_answer_at_a_brokers_turn_ends_it(simulated: Simulated) -> None:
    simulated.coming = [KafkaError(ErrorCode.NETWORK_EXCEPTION, "nobody answers")]
    with pytest.raises(Doubt, match="nobody answers; broker 1 is left as it is"):
        simulated.rolling.run([1])
    assert simulated.restarted == []


def test_one_that_does_not_come_back_ends_it(simulated: Simulated) -> None:
    simulated.after = lambda number: simulated.well(number)[:3]
    rolling = simulated.rolling
    with pytest.raises(Doubt, match=r"until broker 1 restarts: broker 1 is missing.*The others"):
        rolling.run([1, 3])
    assert simulated.restarted == [1]
    assert rolling.taken == {}


def test_one_that_does_not_catch_up_ends_it(simulated: Simulated) -> None:
    simulated.after = lambda number: simulated.well(number)[:4]
    with pytest.raises(Doubt, match="until broker 1 catches up: t-0 is under-replicated"):
        simulated.rolling.run([1, 3])
    assert simulated.restarted == [1]


def test_one_without_partitions_has_to_come_back_too(simulated: Simulated) -> None:
    empty = replace(broker(3), leads=0, replicas=0, in_sync=0)
    simulated.health = cluster(broker(1), broker(2), empty)
    # It is seen once more when it has told the others that it goes, and nobody names it then.
    going = cluster(broker(1), broker(2), replace(empty, since_ms=150))
    simulated.after = lambda number: [going, cluster(broker(1), broker(2))]
    rolling = simulated.rolling
    with pytest.raises(Doubt, match="until broker 3 catches up"):
        rolling.run([3, 1])
    assert rolling.taken == {}


def test_one_that_nobody_names_any_more_is_not_restarted(simulated: Simulated) -> None:
    simulated.health = cluster(broker(1), broker(2))
    with pytest.raises(Doubt, match="broker 3 is missing"):
        simulated.rolling.run([3])
    assert simulated.restarted == []


def test_one_that_is_missing_and_holds_nothing_can_be_forgotten(simulated: Simulated) -> None:
    gone = replace(broker(3), address=None, leads=0, replicas=0, in_sync=0)
    simulated.health = cluster(broker(1), broker(2), gone)
    with pytest.raises(Doubt, match="forget it with `kafka-cluster unregister`"):
        simulated.rolling.run([1])
    assert simulated.restarted == []


def test_one_that_ignores_it_ends_it(simulated: Simulated) -> None:
    simulated.after = lambda number: ()
    with pytest.raises(Doubt, match="broker 1 still runs as before"):
        simulated.rolling.run([1])


def test_another_that_dies_meanwhile_ends_it(simulated: Simulated) -> None:
    dead = replace(broker(3), address=None)
    simulated.after = lambda number: [cluster(broker(1, 200), broker(2), dead)]
    with pytest.raises(Doubt, match="until broker 1 catches up: broker 3 is missing"):
        simulated.rolling.run([1, 2])
    assert simulated.restarted == [1]


def test_who_does_not_answer_is_waited_for_and_judged_by_its_answer(simulated: Simulated) -> None:
    def after(number: int) -> Sequence[ClusterHealth]:
        back = cluster(broker(1, 200), broker(2), broker(3))
        silent = replace(back, known=Known(True, silent=frozenset({1})))
        return [silent, silent, replace(back, known=Known(True, versions={1: "2.0"})), silent]

    judged = []
    simulated.after = after
    simulated.check = lambda number, health: judged.append(health.known.versions)
    simulated.rolling.run([1])
    assert judged == [{1: "2.0"}]


def test_nothing_is_stopped_while_another_does_not_answer(simulated: Simulated) -> None:
    simulated.health = replace(cluster(), known=Known(True, silent=frozenset({3})))
    with pytest.raises(Doubt, match="broker 3 does not answer; broker 1 is left as it is"):
        simulated.rolling.run([1])
    assert simulated.restarted == []


def test_nothing_is_stopped_while_brokers_are_without_the_metadata_store(
    simulated: Simulated,
) -> None:
    # Nobody could take over what the broker leads, and it could not come back.
    simulated.health = replace(cluster(), known=Known(True, store_away={1: 100, 2: 100, 3: 100}))
    with pytest.raises(
        Doubt, match=r"brokers 1, 2, 3 do not reach the metadata store; broker 1 is left as it is"
    ):
        simulated.rolling.run([1])
    assert simulated.restarted == []


def test_a_broker_is_in_sync_only_when_it_reaches_the_metadata_store(simulated: Simulated) -> None:
    back = cluster(broker(1, 200), broker(2), broker(3))
    away = replace(back, known=Known(True, store_away={1: 200}))
    simulated.after = lambda number: [away]
    with pytest.raises(
        Doubt, match="until broker 1 catches up: broker 1 does not reach the metadata store"
    ):
        simulated.rolling.run([1, 3])
    assert simulated.restarted == [1]


def test_one_of_which_nobody_tells_since_when_it_is_up_is_not_stopped(simulated: Simulated) -> None:
    # Apache Kafka's do not, so that nobody could tell that such a broker has come back.
    others = [replace(broker(number), since_ms=None) for number in (1, 2, 3)]
    simulated.health = cluster(*others)
    with pytest.raises(Doubt, match=r"nobody tells since when broker 1 is up.*is left as it is"):
        simulated.rolling.run([1])
    assert simulated.restarted == []


def interrupting(simulated: Simulated, at: str) -> Rolling:
    """A rolling restart of which somebody has seen enough at broker 3."""

    def report(number: int, what: str) -> None:
        if (number, what.partition(",")[0]) == (3, at):
            raise KeyboardInterrupt

    def restart(which: BrokerHealth) -> None:
        if (which.id, at) == (3, "the command"):
            raise KeyboardInterrupt
        simulated.restart(which)

    return Rolling(
        simulated.look,
        restart,
        report,
        clock=lambda: simulated.now,
        sleep=simulated.sleep,
    )


@pytest.mark.parametrize(
    ("at", "left", "told"),
    [
        ("stopping", (3, 2), "broker 1 is restarted and in sync; brokers 3, 2 are left as before"),
        (
            "the command",
            (3, 2),
            "broker 1 is restarted and in sync; broker 3 may be stopped: "
            "`ottla cluster status` tells how it is; broker 2 is left as before",
        ),
        (
            "back",
            (2,),
            "broker 1 is restarted and in sync; broker 3 was stopped and should come back: "
            "`ottla cluster status` tells how it is; broker 2 is left as before",
        ),
        ("in sync", (2,), "brokers 1, 3 are restarted and in sync; broker 2 is left as before"),
    ],
)
def test_an_interrupt_says_what_is_done_and_what_is_left(
    simulated: Simulated, at: str, left: tuple[int, ...], told: str
) -> None:
    with pytest.raises(Interrupted) as interrupted:
        interrupting(simulated, at).run([1, 3, 2])
    assert interrupted.value.left == left
    assert str(interrupted.value) == f"interrupted: {told}"


def test_the_controller_comes_last() -> None:
    assert order(cluster()) == [1, 3, 2]
    assert order(cluster(), [2, 1]) == [1, 2]
    assert order(cluster(), [3, 1, 3]) == [1, 3], "each of them once"
    with pytest.raises(Doubt, match="no broker 9: the cluster has 1, 2, 3"):
        order(cluster(), [9])


def test_what_is_wrong() -> None:
    assert wrong(cluster()) is None
    assert wrong(replace(cluster(), controller=None)) == "there is no controller"
    assert wrong(cluster(replace(broker(1), fenced=True))) == "broker 1 is fenced"
    several = cluster(troubled=(LACKING, LACKING, LACKING))
    assert wrong(several) == "t-0 is under-replicated, and so are 2 more"


def topic(name: str, *isrs: tuple[int, ...]) -> TopicDescription:
    parts = tuple(PartitionDescription(number, isr[0], isr, isr) for number, isr in enumerate(isrs))
    return TopicDescription(name, "id", False, parts)


def test_partitions_that_need_a_broker_are_named() -> None:
    topics = [topic("a", (1, 2, 3), (1,)), topic("b", (1, 2), (2, 3)), topic("c", (3,))]
    found = exposed(topics, {"a": 2, "b": 2}, [1, 2, 3])
    assert [(each.broker, each.offline, each.refusing) for each in found] == [
        (1, (TopicPartition("a", 1),), (TopicPartition("b", 0),)),
        (2, (), (TopicPartition("b", 0), TopicPartition("b", 1))),
        (3, (TopicPartition("c", 0),), (TopicPartition("b", 1),)),
    ]
    assert str(found[0]) == (
        "without broker 1: a-1 is offline (there is no other replica), "
        "b-0 is read-only (fewer than min.insync.replicas)"
    )
    many = exposed([topic("m", *[(1,)] * 5)], {}, [1])
    assert str(many[0]).startswith("without broker 1: m-0, m-1, m-2 and 2 more are offline")


def test_a_broker_that_came_back_wrong_ends_it() -> None:
    simulated = Simulated()
    rolling = Rolling(
        simulated.look,
        simulated.restart,
        lambda number, what: None,
        check=lambda number, health: f"broker {number} came back with 0.0.9",
        clock=lambda: simulated.now,
        sleep=simulated.sleep,
    )
    with pytest.raises(Doubt, match=r"broker 1 came back with 0\.0\.9\. The others were left"):
        rolling.run([1, 3, 2])
    assert simulated.restarted == [1]


class Describing:
    """A `DirectAdmin` whose brokers do not tell the settings of some topics."""

    def __init__(self, *, told: set[str]) -> None:
        part = PartitionDescription(0, 1, (1, 2, 3), (1, 2, 3))
        self.named = dict.fromkeys(("a", "b"), False)
        self.described = {name: TopicDescription(name, "", False, (part,)) for name in self.named}
        self.router = self
        self._told = told

    def topics(self) -> dict[str, bool]:
        return self.named

    def describe_each(self, _names: object) -> dict[str, TopicDescription]:
        return self.described

    def ask_any(self, request: Any) -> DescribeConfigsResponse:
        entry = DescribeConfigsResourceResult(
            name="min.insync.replicas", value="3", read_only=False, is_sensitive=False, synonyms=[]
        )
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    error_code=0 if each.resource_name in self._told else 7,
                    resource_type=2,
                    resource_name=each.resource_name,
                    configs=[entry] if each.resource_name in self._told else [],
                )
                for each in request.resources
            ]
        )


def test_what_needs_a_broker_is_not_guessed_where_nobody_tells_it() -> None:
    admin: Any = Describing(told={"a", "b"})
    [exposure] = exposures(admin, [2])
    assert exposure.refusing == (TopicPartition("a", 0), TopicPartition("b", 0))
    admin = Describing(told={"a"})
    with pytest.raises(Doubt, match=r"no broker tells min\.insync\.replicas of topic b"):
        exposures(admin, [2])
    admin.topics = iter([{"a": False, "b": False}, {"a": False}]).__next__  # deleted meanwhile
    [exposure] = exposures(admin, [2])
    assert exposure.refusing == (TopicPartition("a", 0),)
