"""The limit on what replicas that catch up take of the network."""

from __future__ import annotations

from ottla.config.broker import BrokerConfig
from ottla.config.setting import MAX_LONG
from ottla.config.topic import TopicConfig
from ottla.replication.throttle import Throttle


class Limited:
    """A throttle of broker 7, with a limit and a clock that stands still."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.now = 100.0
        self.throttle = Throttle(7, lambda: self.limit, lambda: self.now)


def test_without_a_limit_nothing_is_too_much() -> None:
    limited = Limited(MAX_LONG)
    assert not limited.throttle.limited
    limited.throttle.record(2**60)
    assert not limited.throttle.exceeded


def test_a_burst_is_worked_off_before_more_is_copied() -> None:
    limited = Limited(1000)
    assert not limited.throttle.exceeded
    limited.throttle.record(5000)
    assert limited.throttle.exceeded
    limited.now += 4.9
    assert limited.throttle.exceeded
    limited.now += 0.1
    assert not limited.throttle.exceeded, "5,000 bytes in five seconds"


def test_what_is_long_ago_does_not_count() -> None:
    limited = Limited(1)
    limited.throttle.record(1_000_000)
    limited.now += 10.9
    assert limited.throttle.exceeded
    limited.now += 0.1
    assert not limited.throttle.exceeded
    limited.throttle.record(0)
    assert not limited.throttle.exceeded


def test_a_steady_flow_below_the_limit_goes_on() -> None:
    limited = Limited(1000)
    for _ in range(200):
        limited.throttle.record(80)
        assert not limited.throttle.exceeded
        limited.now += 0.1


def test_another_limit_counts_at_once() -> None:
    limited = Limited(10)
    limited.throttle.record(100)
    assert limited.throttle.exceeded
    limited.limit = 1000
    assert not limited.throttle.exceeded


def test_replicas_are_named_by_partition_and_broker() -> None:
    throttle = Limited(1).throttle
    assert not throttle.names(0, named(""))
    assert throttle.names(0, named("*"))
    assert throttle.names(3, named("1:2,3:7"))
    assert not throttle.names(3, named("3:2,7:3,13:7"))


def test_one_of_very_many_replicas_is_found_without_a_look_at_the_others() -> None:
    """A plan names three for each partition, and a broker looks for all of them in each round."""
    replicas = named(",".join(f"{index}:{each}" for index in range(1_000) for each in (5, 6, 7)))
    assert isinstance(replicas, frozenset)
    assert Limited(1).throttle.names(999, replicas)
    assert not Limited(1).throttle.names(1_000, replicas)


def named(text: str) -> frozenset[str]:
    """The value of the setting, as a broker has it."""
    config = TopicConfig.resolve({"leader.replication.throttled.replicas": text}, BrokerConfig())
    return config.leader_replication_throttled_replicas
