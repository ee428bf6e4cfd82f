"""The expected codes and messages are those that Apache Kafka 4.2 answered to the same requests, as
node 7 of a cluster of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest

from ottla.config.setting import ConfigError
from ottla.controller.topics import (
    DeleteTopic,
    GrowTopic,
    NewTopic,
    TopicCreation,
    TopicDefaults,
    plan_creation,
    plan_deletion,
    plan_growth,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker
from ottla.model.ids import ZERO_TOPIC_ID, TopicId
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic

STATE = PartitionState(7, 0, 0, (7,), (7,))
Verdict = tuple[ErrorCode, str | None] | None


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


def image(*topics: Topic, brokers: Sequence[int] = (7,)) -> ClusterImage:
    return ClusterImage(
        revision=1,
        brokers={number: Broker(number, 0, {}) for number in brokers},
        topics={topic.name: topic for topic in topics},
        topic_names={topic.id: topic.name for topic in topics},
    )


THREE = Topic("three", topic_id(3), (STATE,) * 3)
DOTTED = Topic("a.b", topic_id(4), (STATE,))
IMAGE = image(THREE, DOTTED)


def check_config(config: Mapping[str, str]) -> None:
    if config.get("retention.ms") == "x":
        raise ConfigError("retention.ms", "not a number")
    if "policy" in config:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "no")


def create(
    *new_topics: NewTopic, cluster: ClusterImage = IMAGE, defaults: TopicDefaults | None = None
) -> list[TopicCreation]:
    ids = iter(range(100, 100_000))
    return plan_creation(
        new_topics,
        cluster,
        defaults=defaults or TopicDefaults(),
        rng=Random(0),
        new_id=lambda: topic_id(next(ids)),
        check_config=check_config,
    )


def verdict(error: KafkaError | None) -> Verdict:
    return None if error is None else (error.code, error.message)


def invalid(message: str) -> Verdict:
    return ErrorCode.INVALID_REQUEST, message


def misassigned(message: str) -> Verdict:
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, message


def manual(*assignments: tuple[int, list[int]], **more: int) -> NewTopic:
    return NewTopic("m", assignments=assignments, **more)


BAD_FACTOR = (
    ErrorCode.INVALID_REPLICATION_FACTOR,
    "Replication factor must be larger than 0, or -1 to use the default value.",
)
BAD_COUNT = (
    ErrorCode.INVALID_PARTITIONS,
    "Number of partitions was set to an invalid non-positive value.",
)
NOT_CONSECUTIVE = misassigned("partitions should be a consecutive 0-based integer sequence")
TWICE_SEVEN = misassigned("The manual partition assignment includes the broker 7 more than once.")
NO_EIGHT = misassigned(
    "The manual partition assignment includes broker 8, but no such broker is registered."
)
EMPTY = misassigned("The manual partition assignment includes an empty replica list.")
WITH_FACTOR = invalid(
    "A manual partition assignment was specified, but replication factor was not set to -1."
)
WITH_COUNT = invalid(
    "A manual partition assignment was specified, but numPartitions was not set to -1."
)


@pytest.mark.parametrize(
    ("new_topic", "expected"),
    [
        (NewTopic("new"), None),
        (NewTopic("a-b"), None),
        (NewTopic("__consumer_offsets"), None),
        (NewTopic("three"), (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'three' already exists.")),
        (NewTopic("a.b"), (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a.b' already exists.")),
        (
            NewTopic("a_b"),
            (
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "Topic 'a_b' collides with existing topic: a.b",
            ),
        ),
        (
            NewTopic(".", partitions=0),
            (ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '.' is not allowed"),
        ),
        (
            NewTopic("__cluster_metadata"),
            invalid("Creation of internal topic __cluster_metadata is prohibited."),
        ),
        (NewTopic("c1", partitions=0), BAD_COUNT),
        (NewTopic("c2", partitions=-2), BAD_COUNT),
        (NewTopic("c3", replication_factor=0), BAD_FACTOR),
        (NewTopic("c4", replication_factor=-2), BAD_FACTOR),
        (
            NewTopic("c5", replication_factor=2),
            (
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Unable to replicate the partition 2 time(s): The target replication factor of 2 "
                "cannot be reached because only 1 broker(s) are registered.",
            ),
        ),
        (NewTopic("c6", partitions=0, replication_factor=0), BAD_FACTOR),
        (NewTopic("c7", partitions=0, replication_factor=5), BAD_COUNT),
        (manual((0, [7])), None),
        (manual((1, [7]), (0, [7])), None),
        (manual((0, [7]), replication_factor=1), WITH_FACTOR),
        (manual((0, [7]), partitions=1), WITH_COUNT),
        (manual((0, [7]), partitions=1, replication_factor=1), WITH_FACTOR),
        (manual((0, [7]), (2, [7])), NOT_CONSECUTIVE),
        (manual((1, [7])), NOT_CONSECUTIVE),
        (manual((0, [])), EMPTY),
        (manual((0, [8])), NO_EIGHT),
        (manual((0, [7, 8])), NO_EIGHT),
        (manual((0, [7, 7])), TWICE_SEVEN),
        (manual((0, [7]), (1, [7, 7])), TWICE_SEVEN),
        (manual((0, [7]), (1, [])), EMPTY),
        (
            manual((0, [7]), (0, [7])),
            misassigned("Found multiple manual partition assignments for partition 0"),
        ),
        (
            NewTopic("k1", partitions=0, config={"retention.ms": "x"}),
            (ErrorCode.INVALID_CONFIG, "not a number"),
        ),
        (
            NewTopic("k2", config={"retention.ms": None, "cleanup.policy": None, "x": "y"}),
            (
                ErrorCode.INVALID_CONFIG,
                "Null value not supported for topic configs: retention.ms,cleanup.policy",
            ),
        ),
        (NewTopic("k3", config={"policy": "x"}), (ErrorCode.POLICY_VIOLATION, "no")),
        (
            NewTopic("three", config={"retention.ms": None}),
            (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'three' already exists."),
        ),
    ],
)
def test_a_request_is_judged_as_kafka_judges_it(new_topic: NewTopic, expected: Verdict) -> None:
    (outcome,) = create(new_topic)
    assert outcome.name == new_topic.name
    assert verdict(outcome.error) == expected
    assert (outcome.topic is None) == (expected is not None)


def test_a_partition_with_fewer_replicas_than_the_first_is_refused() -> None:
    (outcome,) = create(manual((0, [7, 8]), (1, [7])), cluster=image(brokers=(7, 8)))
    assert verdict(outcome.error) == misassigned(
        "The manual partition assignment includes a partition with 1 replica(s), but this is not "
        "consistent with previous partitions, which have 2 replica(s)."
    )


def test_a_cluster_without_brokers_creates_nothing() -> None:
    (outcome,) = create(NewTopic("t"), cluster=image(brokers=()))
    assert verdict(outcome.error) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Unable to replicate the partition 1 time(s): All brokers are currently fenced.",
    )


def test_a_new_topic_has_what_was_asked_for() -> None:
    new_topic = NewTopic("t", 4, 2, config={"retention.ms": "5"})
    (outcome,) = create(new_topic, cluster=image(brokers=(1, 2, 3)))
    topic = outcome.topic
    assert topic is not None
    assert (topic.name, topic.id, topic.config) == ("t", topic_id(100), {"retention.ms": "5"})
    assert len(topic.partitions) == 4
    for state in topic.partitions:
        assert len(set(state.replicas)) == 2
        assert state.isr == state.replicas
        assert (state.leader, state.leader_epoch, state.partition_epoch) == (
            state.replicas[0], 0, 0,
        )  # fmt: skip


def test_defaults_stand_in_for_minus_one() -> None:
    defaults = TopicDefaults(partitions=5, replication_factor=2)
    cluster = image(brokers=(1, 2, 3))
    (outcome,) = create(NewTopic("t"), cluster=cluster, defaults=defaults)
    assert outcome.topic is not None
    assert [len(state.replicas) for state in outcome.topic.partitions] == [2] * 5


def test_assignments_are_taken_by_their_number() -> None:
    new_topic = manual((1, [8, 7]), (0, [7, 8]))
    (outcome,) = create(new_topic, cluster=image(brokers=(7, 8)))
    assert outcome.topic is not None
    assert [state.replicas for state in outcome.topic.partitions] == [(7, 8), (8, 7)]


def test_one_bad_topic_does_not_harm_its_neighbours_and_order_is_kept() -> None:
    new_topics = [NewTopic("x"), NewTopic("three"), NewTopic("y", partitions=0), NewTopic("z")]
    outcomes = create(*new_topics)
    assert [outcome.name for outcome in outcomes] == ["x", "three", "y", "z"]
    assert [outcome.error is None for outcome in outcomes] == [True, False, False, True]


def test_doubles_and_the_forbidden_name_come_last() -> None:
    names = ["d", "__cluster_metadata", "e", "d", "d"]
    outcomes = create(*(NewTopic(name) for name in names))
    assert [(outcome.name, verdict(outcome.error)) for outcome in outcomes] == [
        ("e", None),
        ("d", invalid("Duplicate topic name.")),
        (
            "__cluster_metadata",
            invalid("Creation of internal topic __cluster_metadata is prohibited."),
        ),
    ]


def test_new_topics_of_one_request_may_collide_with_each_other_as_in_kafka() -> None:
    assert [outcome.error for outcome in create(NewTopic("q.r"), NewTopic("q_r"))] == [None, None]


TOO_MANY = (ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
TOO_LARGE = (ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


@pytest.mark.parametrize(
    ("new_topics", "expected"),
    [
        ([NewTopic("t", partitions=9_999)], None),
        ([NewTopic("t", partitions=10_000)], TOO_LARGE),
        ([NewTopic("t", partitions=9_999, config={"a": "b"})], TOO_LARGE),
        ([NewTopic("t", partitions=10_001)], TOO_MANY),
        ([NewTopic("t", partitions=6_000), NewTopic("u", partitions=5_000)], TOO_MANY),
        ([NewTopic("t", partitions=6_000), NewTopic("u", partitions=-5_000)], None),
    ],
)
def test_a_request_that_is_too_large_fails_whole(
    new_topics: list[NewTopic], expected: Verdict
) -> None:
    outcomes = create(*new_topics)
    assert [outcome.name for outcome in outcomes] == [new_topic.name for new_topic in new_topics]
    if expected is None:
        assert outcomes[0].topic is not None
    else:
        assert {verdict(outcome.error) for outcome in outcomes} == {expected}


# --- growth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("growth", "expected"),
    [
        (GrowTopic("three", 4), None),
        (GrowTopic("three", 5, [[7], [7]]), None),
        (GrowTopic("nope", 3), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)),
        (
            GrowTopic("three", 3),
            (ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s)."),
        ),
        (
            GrowTopic("three", 2),
            (
                ErrorCode.INVALID_PARTITIONS,
                "The topic three currently has 3 partition(s); 2 would not be an increase.",
            ),
        ),
        (
            GrowTopic("three", -1),
            (
                ErrorCode.INVALID_PARTITIONS,
                "The topic three currently has 3 partition(s); -1 would not be an increase.",
            ),
        ),
        (
            GrowTopic("three", 5, [[7]]),
            misassigned(
                "Attempted to add 2 additional partition(s), but only 1 assignment(s) were "
                "specified."
            ),
        ),
        (
            GrowTopic("three", 5, []),
            misassigned(
                "Attempted to add 2 additional partition(s), but only 0 assignment(s) were "
                "specified."
            ),
        ),
        (
            GrowTopic("three", 5, [[7], [7], [7]]),
            misassigned(
                "Attempted to add 2 additional partition(s), but only 3 assignment(s) were "
                "specified."
            ),
        ),
        (GrowTopic("three", 4, [[8]]), NO_EIGHT),
        (GrowTopic("three", 4, [[7, 7]]), TWICE_SEVEN),
        (GrowTopic("three", 4, [[]]), EMPTY),
        (GrowTopic("three", 10_003), None),
        (GrowTopic("three", 10_004), (ErrorCode.UNKNOWN_SERVER_ERROR, None)),
    ],
)
def test_growing_is_judged_as_kafka_judges_it(growth: GrowTopic, expected: Verdict) -> None:
    (outcome,) = plan_growth([growth], IMAGE, rng=Random(0))
    assert verdict(outcome.error) == expected
    if expected is None:
        assert (outcome.id, outcome.first) == (THREE.id, 3)
        assert outcome.partitions == (STATE,) * (growth.count - 3)


def test_new_partitions_have_as_many_replicas_as_the_old() -> None:
    pair = PartitionState(1, 4, 9, (1, 2), (1, 2))
    cluster = image(Topic("t", topic_id(9), (pair,)), brokers=(1, 2, 3))
    (outcome,) = plan_growth([GrowTopic("t", 4)], cluster, rng=Random(0))
    assert [len(set(state.replicas)) for state in outcome.partitions] == [2, 2, 2]
    assert {state.leader_epoch for state in outcome.partitions} == {0}
    (outcome,) = plan_growth([GrowTopic("t", 2, [[3]])], cluster, rng=Random(0))
    assert verdict(outcome.error) == misassigned(
        "The manual partition assignment includes a partition with 1 replica(s), but this is not "
        "consistent with previous partitions, which have 2 replica(s)."
    )
    alone = image(Topic("t", topic_id(9), (pair,)), brokers=(1,))
    (outcome,) = plan_growth([GrowTopic("t", 2)], alone, rng=Random(0))
    assert verdict(outcome.error) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "The target replication factor of 2 cannot be reached because only 1 broker(s) are "
        "registered.",
    )


def test_the_limit_is_one_for_all_topics_of_a_request() -> None:
    changes = [GrowTopic("three", 9_003), GrowTopic("a.b", 1_002)]
    outcomes = plan_growth(changes, IMAGE, rng=Random(0))
    assert [verdict(outcome.error) for outcome in outcomes] == [
        None,
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),
    ]


def test_a_topic_named_twice_does_not_grow_and_others_do() -> None:
    changes = [GrowTopic("three", 4), GrowTopic("a.b", 3), GrowTopic("three", 5)]
    outcomes = plan_growth(changes, IMAGE, rng=Random(0))
    assert [(outcome.name, verdict(outcome.error)) for outcome in outcomes] == [
        ("three", invalid("Duplicate topic name.")),
        ("a.b", None),
    ]


# --- deletion -------------------------------------------------------------------------------------


def deletions(*changes: DeleteTopic) -> set[tuple[str | None, TopicId, Verdict]]:
    outcomes = plan_deletion(changes, IMAGE)
    judged = {(outcome.name, outcome.id, verdict(outcome.error)) for outcome in outcomes}
    assert len(judged) == len(outcomes)
    return judged


def test_topics_are_deleted_by_name_or_by_id() -> None:
    assert deletions(DeleteTopic("three"), DeleteTopic(id=DOTTED.id)) == {
        ("three", THREE.id, None),
        ("a.b", DOTTED.id, None),
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [DeleteTopic("nope")],
            (
                "nope",
                ZERO_TOPIC_ID,
                (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "This server does not host this topic-partition.",
                ),
            ),
        ),
        (
            [DeleteTopic(id=topic_id(99))],
            (
                None,
                topic_id(99),
                (ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."),
            ),
        ),
        (
            [DeleteTopic()],
            (None, ZERO_TOPIC_ID, invalid("Neither topic name nor id were specified.")),
        ),
        (
            [DeleteTopic("x", topic_id(5))],
            ("x", topic_id(5), invalid("You may not specify both topic name and topic id.")),
        ),
        (
            [DeleteTopic("three"), DeleteTopic("three")],
            ("three", ZERO_TOPIC_ID, invalid("Duplicate topic name.")),
        ),
        (
            [DeleteTopic(id=THREE.id), DeleteTopic(id=THREE.id)],
            (None, THREE.id, invalid("Duplicate topic id.")),
        ),
        (
            [DeleteTopic("three"), DeleteTopic(id=THREE.id)],
            (
                "three",
                THREE.id,
                invalid("The provided topic name maps to an ID that was already supplied."),
            ),
        ),
    ],
)
def test_unclear_deletions_delete_nothing(
    changes: list[DeleteTopic], expected: tuple[str | None, TopicId, Verdict]
) -> None:
    # A good one beside it is not harmed.
    assert deletions(*changes, DeleteTopic("a.b")) == {expected, ("a.b", DOTTED.id, None)}


def test_a_name_whose_id_was_given_twice_is_refused_too() -> None:
    changes = [DeleteTopic(id=THREE.id), DeleteTopic(id=THREE.id), DeleteTopic("three")]
    assert deletions(*changes) == {
        (None, THREE.id, invalid("Duplicate topic id.")),
        (
            "three",
            THREE.id,
            invalid("The provided topic name maps to an ID that was already supplied."),
        ),
    }


def test_planning_changes_nothing_by_itself() -> None:
    before = image(THREE, DOTTED)
    plans: list[Callable[[], object]] = [
        lambda: create(NewTopic("n")),
        lambda: plan_growth([GrowTopic("three", 9)], IMAGE, rng=Random(0)),
        lambda: plan_deletion([DeleteTopic("three")], IMAGE),
    ]
    for plan in plans:
        plan()
    assert before == IMAGE
