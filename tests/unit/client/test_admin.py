from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import confluent_kafka as rd
import pytest

import ottla
from ottla.client.descriptions import (
    NewTopic,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from ottla.client.errors import PartialFailureError
from ottla.errors import ErrorCode, KafkaError


class FakeAdmin:
    """Answers each request with what a test has put there, by the name of the thing asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: dict[str, Any] = {}

    def _answer(self, things: list[Any]) -> dict[Any, Future[Any]]:
        self.asked += things
        futures: dict[Any, Future[Any]] = {}
        for thing in things:
            name = str(getattr(thing, "topic", getattr(thing, "name", thing)))
            futures[name] = Future()
            answer = self.answers.get(name)
            if isinstance(answer, int):
                futures[name].set_exception(rd.KafkaException(rd.KafkaError(answer)))
            else:
                futures[name].set_result(answer)
        return futures

    def create_topics(self, topics: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        return self._answer(topics)

    def delete_topics(self, topics: list[str], **_: Any) -> dict[Any, Future[Any]]:
        return self._answer(topics)

    def describe_topics(self, topics: Any, **_: Any) -> dict[Any, Future[Any]]:
        return self._answer(topics.topic_names)

    def incremental_alter_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        return self._answer(resources)

    def list_topics(self, timeout: float) -> Any:
        def topic(partitions: int, replicas: int) -> Any:
            return Things(
                partitions={n: Things(replicas=range(replicas)) for n in range(partitions)}
            )

        return Things(
            topics={"b": topic(2, 3), "a": topic(1, 1), "__consumer_offsets": topic(50, 1)}
        )


class Things:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.fixture
def fake() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def admin(fake: FakeAdmin) -> ottla.Admin:
    admin = ottla.Admin("127.0.0.1:1")
    admin._client = fake
    return admin


def test_topics_are_listed_by_name_without_internal_ones(admin: ottla.Admin) -> None:
    assert admin.list_topics() == (
        TopicListing("a", 1, 1, False),
        TopicListing("b", 2, 3, False),
    )
    assert TopicListing("__consumer_offsets", 50, 1, True) in admin.list_topics(internal=True)


def test_a_topic_is_created_with_the_brokers_defaults_unless_told(
    admin: ottla.Admin, fake: FakeAdmin
) -> None:
    admin.create_topic("a")
    admin.create_topic("b", partitions=3, replication=2, config={"retention.ms": "1"})
    admin.create_topic("c", assignment=[[1, 2], [2, 3]])
    first, second, third = fake.asked
    assert (first.num_partitions, first.replication_factor) == (-1, -1)
    assert (second.num_partitions, second.replication_factor) == (3, 2)
    assert second.config == {"retention.ms": "1"}
    assert third.replica_assignment == [[1, 2], [2, 3]]


def test_one_failure_is_raised_as_it_is(admin: ottla.Admin, fake: FakeAdmin) -> None:
    fake.answers["a"] = 36
    with pytest.raises(KafkaError) as caught:
        admin.create_topic("a")
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert not isinstance(caught.value, PartialFailureError)


def test_some_failures_of_many_are_named(admin: ottla.Admin, fake: FakeAdmin) -> None:
    fake.answers["b"] = 36
    with pytest.raises(PartialFailureError) as caught:
        admin.create_topics([NewTopic("a"), NewTopic("b")])
    assert set(caught.value.failures) == {"b"}


def test_a_missing_topic_is_called_by_its_name(admin: ottla.Admin, fake: FakeAdmin) -> None:
    fake.answers["a"] = 3
    for ask in (admin.delete_topics, admin.describe_topic):
        with pytest.raises(KafkaError, match="there is no topic 'a'"):
            ask("a")


def test_a_description_is_frozen_and_its_id_spelt_as_kafka_does(
    admin: ottla.Admin, fake: FakeAdmin
) -> None:
    node = Things(id=1)
    fake.answers["a"] = Things(
        name="a",
        topic_id="+/AAAAAAAAAAAAAAAAAAAA",
        is_internal=False,
        partitions=[
            Things(id=1, leader=None, replicas=[node], isr=[]),
            Things(id=0, leader=node, replicas=[node], isr=[node]),
        ],
    )
    described = admin.describe_topic("a")
    assert described == TopicDescription(
        "a",
        "-_AAAAAAAAAAAAAAAAAAAA",
        False,
        (PartitionDescription(0, 1, (1,), (1,)), PartitionDescription(1, None, (1,), ())),
    )
    assert described.replication == 1
    with pytest.raises(AttributeError):
        described.name = "b"


def test_settings_are_changed_one_by_one(admin: ottla.Admin, fake: FakeAdmin) -> None:
    admin.alter_configs(topic="a", set={"x": "1"}, delete=["y"], append={"z": "2"})
    [resource] = fake.asked
    changes = [
        (entry.name, entry.value, entry.incremental_operation.name)
        for entry in resource.incremental_configs
    ]
    assert changes == [("x", "1", "SET"), ("z", "2", "APPEND"), ("y", None, "DELETE")]


def test_nothing_asked_for_is_nothing_done(admin: ottla.Admin, fake: FakeAdmin) -> None:
    admin.create_topics([])
    admin.delete_topics()
    assert admin.describe_topics() == ()
    assert admin.delete_records({}) == {}
    assert admin.list_offsets({}) == {}
    assert fake.asked == []


@pytest.mark.parametrize(
    ("call", "kind", "complaint"),
    [
        (lambda a: a.create_topic(""), ValueError, "a topic's name is a str that is not empty"),
        (lambda a: a.create_topic("a", partitions=0), ValueError, "partitions is at least 1"),
        (lambda a: a.create_topic("a", replication=0), ValueError, "replication is at least 1"),
        (lambda a: a.create_topic("a", config={"x": 1}), TypeError, "x is int"),
        (
            lambda a: a.create_topic("a", partitions=1, assignment=[[1]]),
            ValueError,
            "takes the place of partitions=",
        ),
        (lambda a: a.create_partitions("a", 0), ValueError, "at least one partition"),
        (lambda a: a.describe_configs(), ValueError, "one of topic='name' and broker=id"),
        (lambda a: a.describe_configs(topic="a", broker=1), ValueError, "one of topic="),
        (lambda a: a.alter_configs(topic="a"), ValueError, "needs set=, delete=, append="),
        (lambda a: a.alter_configs(topic="a", set={"x": 1}), TypeError, "given as str"),
        (lambda a: a.delete_records({("a", 0): -1}), ValueError, 'an offset or "latest"'),
        (lambda a: a.delete_records({"a": 1}), TypeError, r"given as \(topic, number\)"),
        (
            lambda a: a.list_offsets({("a", 0): "first"}),
            ValueError,
            '"max-timestamp" or a datetime',
        ),
        (lambda a: a.list_groups(states=["Emtpy"]), ValueError, "'Emtpy' is no state of a group"),
        (lambda a: a.list_groups(types="consumers"), ValueError, "'consumers' is no type of a"),
        (lambda a: ottla.Admin(timeout=0), ValueError, "seconds above 0"),
        (lambda a: ottla.Admin(config={"foo": 1}), ValueError, "No such configuration property"),
        (
            lambda a: ottla.Admin(config={"bootstrap.servers": "x"}),
            ValueError,
            "use bootstrap=",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_ones(
    admin: ottla.Admin, call: Any, kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        call(admin)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.list_groups(),
        lambda a: a.list_transactions(),
        lambda a: a.describe_log_dirs(),
        lambda a: a.elect_leaders(unclean=True),
    ],
)
def test_nobody_who_wants_tls_is_connected_without_it(call: Any) -> None:
    with (
        ottla.Admin("127.0.0.1:1", config={"security.protocol": "SSL"}) as admin,
        pytest.raises(ValueError, match=r"security\.protocol=SSL is not supported here"),
    ):
        call(admin)


def test_without_a_broker_a_request_times_out() -> None:
    with ottla.Admin("127.0.0.1:1", timeout=0.2) as admin:
        with pytest.raises(KafkaError) as caught:
            admin.list_topics()
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        with pytest.raises(KafkaError) as caught:
            admin.describe_cluster()
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
