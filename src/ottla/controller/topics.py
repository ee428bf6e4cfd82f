"""What becomes of requests to create, grow and delete topics. No I/O: an image in, outcomes out.

The rules, their order and their words are those of Kafka 4.2's controller; a client compares codes,
and people read the messages. What one topic gets wrong never harms its neighbours in the request,
except for the limit on the size of a whole request.

Kafka's own oddities are kept: two new topics of one request are not checked against each other
for `.`/`_` collisions; a request that mentions a topic twice fails for that topic as a whole;
growing by more than a request may hold is a server error without a message, while creating that
many is explained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.config.setting import ConfigError
from ottla.controller.placement import Random, place
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker
from ottla.model.ids import ZERO_TOPIC_ID, TopicId
from ottla.model.image import ClusterImage
from ottla.model.names import (
    CLUSTER_METADATA_TOPIC,
    check_topic_name,
    collision_key,
    may_collide,
)
from ottla.model.topic import PartitionState, Topic

MAX_CHANGES = 10_000
"""Kafka's limit on the metadata records of one request: one per topic, partition and setting."""

DEFAULT = -1
"""In place of a number of partitions or replicas: what the broker's settings say."""

ConfigCheck = Callable[[Mapping[str, str]], None]
"""Raises ConfigError, or a KafkaError, unless these are valid settings of a topic."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that somebody wants; `assignments` are (partition, replicas), or empty."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    config: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """`num.partitions` and `default.replication.factor`."""

    partitions: int = 1
    replication_factor: int = 1


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """What became of a request: the topic, or what is wrong with it."""

    name: str
    topic: Topic | None = None
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """A topic that must go: by name, or by id."""

    name: str | None = None
    id: TopicId = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """What became of it. `name` and `id` as far as the one who asked may know them."""

    name: str | None
    id: TopicId
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """A topic that is to have `count` partitions; `assignments` are those of the new ones."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicGrowth:
    """What became of it: the new partitions, which follow number `first` - 1."""

    name: str
    id: TopicId = ZERO_TOPIC_ID
    first: int = 0
    partitions: tuple[PartitionState, ...] = ()
    error: KafkaError | None = None


# --- creation -------------------------------------------------------------------------------------


def plan_creation(
    requests: Sequence[NewTopic],
    image: ClusterImage,
    *,
    defaults: TopicDefaults,
    rng: Random,
    new_id: Callable[[], TopicId],
    check_config: ConfigCheck,
) -> list[TopicCreation]:
    """One outcome per name: in the order asked, then the doubles, then the forbidden one."""
    times = Counter(request.name for request in requests)
    forbidden = CLUSTER_METADATA_TOPIC
    single = [
        request for request in requests if times[request.name] == 1 and request.name != forbidden
    ]
    asked = sum(
        len(request.assignments)
        or (defaults.partitions if request.partitions == DEFAULT else max(0, request.partitions))
        for request in single
    )
    if asked > MAX_CHANGES:
        return _refuse(requests, "Excessively large number of partitions per request.")
    outcomes = []
    changes = 0
    for request in single:
        try:
            _check_name(request.name, image)
            config = _check_config(request, check_config)
            partitions = _partitions(request, image, defaults, rng)
        except KafkaError as error:
            outcomes.append(TopicCreation(request.name, error=error))
            continue
        topic = Topic(request.name, new_id(), partitions, config)
        changes += 1 + len(config) + len(partitions)
        outcomes.append(TopicCreation(request.name, topic))
    if changes > MAX_CHANGES:
        return _refuse(requests, "Unable to perform excessively large batch operation.")
    for name, count in times.items():
        if count > 1:
            outcomes.append(TopicCreation(name, error=_invalid("Duplicate topic name.")))
    if times[forbidden] == 1:
        problem = f"Creation of internal topic {forbidden} is prohibited."
        outcomes.append(TopicCreation(forbidden, error=_invalid(problem)))
    return outcomes


def _refuse(requests: Sequence[NewTopic], message: str) -> list[TopicCreation]:
    error = KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return [TopicCreation(request.name, error=error) for request in requests]


def _check_name(name: str, image: ClusterImage) -> None:
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_topic_name(name)
    if may_collide(name):
        key = collision_key(name)
        for other in image.topics:
            if collision_key(other) == key:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"Topic '{name}' collides with existing topic: {other}",
                )


def _check_config(request: NewTopic, check_config: ConfigCheck) -> dict[str, str]:
    config = {}
    nulls = []
    for name, value in request.config.items():
        if value is None:
            nulls.append(name)
        else:
            config[name] = value
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(nulls)}",
        )
    if config:
        try:
            check_config(config)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return config


def _partitions(
    request: NewTopic, image: ClusterImage, defaults: TopicDefaults, rng: Random
) -> tuple[PartitionState, ...]:
    if request.assignments:
        return _assigned(request, image)
    if request.replication_factor < DEFAULT or request.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if request.partitions < DEFAULT or request.partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    count = defaults.partitions if request.partitions == DEFAULT else request.partitions
    factor = request.replication_factor
    if factor == DEFAULT:
        factor = defaults.replication_factor
    try:
        placed = place(image.brokers.values(), count, factor, rng)
    except KafkaError as error:
        raise KafkaError(
            error.code, f"Unable to replicate the partition {factor} time(s): {error.message}"
        ) from None
    return tuple(map(_new_partition, placed))


def _assigned(request: NewTopic, image: ClusterImage) -> tuple[PartitionState, ...]:
    for given, what in (
        (request.replication_factor, "replication factor"),
        (request.partitions, "numPartitions"),
    ):
        if given != DEFAULT:
            raise _invalid(
                f"A manual partition assignment was specified, but {what} was not set to -1."
            )
    partitions: dict[int, PartitionState] = {}
    factor: int | None = None
    for number, replicas in request.assignments:
        if number in partitions:
            raise _bad_assignment(
                f"Found multiple manual partition assignments for partition {number}"
            )
        _check_assignment(replicas, image.brokers, factor)
        factor = len(replicas)
        partitions[number] = _new_partition(replicas)
    if any(number not in partitions for number in range(len(partitions))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return tuple(partitions[number] for number in range(len(partitions)))


def _check_assignment(
    replicas: Sequence[int], brokers: Mapping[int, Broker], factor: int | None
) -> None:
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    before = None
    for broker in sorted(replicas):
        if broker not in brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker}, "
                "but no such broker is registered."
            )
        if broker == before:
            raise _bad_assignment(
                f"The manual partition assignment includes the broker {broker} more than once."
            )
        before = broker
    if factor is not None and len(replicas) != factor:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} "
            "replica(s), but this is not consistent with previous partitions, which have "
            f"{factor} replica(s)."
        )


def _new_partition(replicas: Sequence[int]) -> PartitionState:
    """Every registered broker can take part, so all replicas begin in sync."""
    order = tuple(replicas)
    return PartitionState(
        leader=order[0], leader_epoch=0, partition_epoch=0, replicas=order, isr=order
    )


# --- growth ---------------------------------------------------------------------------------------


def plan_growth(
    requests: Sequence[GrowTopic], image: ClusterImage, *, rng: Random
) -> list[TopicGrowth]:
    """One outcome per name: doubles first, then the others in the order asked."""
    times = Counter(request.name for request in requests)
    outcomes = [
        TopicGrowth(name, error=_invalid("Duplicate topic name."))
        for name, count in times.items()
        if count > 1
    ]
    room = MAX_CHANGES
    for request in requests:
        if times[request.name] > 1:
            continue
        try:
            growth = _grow(request, image, rng, room)
        except KafkaError as error:
            outcomes.append(TopicGrowth(request.name, error=error))
            continue
        room -= len(growth.partitions)
        outcomes.append(growth)
    return outcomes


def _grow(request: GrowTopic, image: ClusterImage, rng: Random, room: int) -> TopicGrowth:
    topic = image.topics.get(request.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    first = len(topic.partitions)
    if request.count == first:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {first} partition(s).")
    if request.count < first:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {request.name} currently has {first} partition(s); "
            f"{request.count} would not be an increase.",
        )
    additional = request.count - first
    if request.assignments is not None and len(request.assignments) != additional:
        raise _bad_assignment(
            f"Attempted to add {additional} additional partition(s), "
            f"but only {len(request.assignments)} assignment(s) were specified."
        )
    if additional > room:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    factor = len(topic.partitions[0].target)
    placed: Iterable[Sequence[int]]
    if request.assignments is None:
        placed = place(image.brokers.values(), additional, factor, rng)
    else:
        placed = request.assignments
        for replicas in request.assignments:
            _check_assignment(replicas, image.brokers, factor)
    return TopicGrowth(request.name, topic.id, first, tuple(map(_new_partition, placed)))


# --- deletion -------------------------------------------------------------------------------------


def plan_deletion(requests: Sequence[DeleteTopic], image: ClusterImage) -> list[TopicDeletion]:  # noqa: C901, PLR0912 - Kafka's checks in Kafka's order, one refusal each
    """One outcome per topic meant: those without an error are to be deleted.

    Kafka shuffles its answer, so that positions do not tell which topics exist but are hidden from
    the one who asks; whoever answers a client may do the same.
    """
    outcomes = []
    names: Counter[str] = Counter()
    ids: Counter[TopicId] = Counter()
    for request in requests:
        if request.name is None and request.id == ZERO_TOPIC_ID:
            error = _invalid("Neither topic name nor id were specified.")
            outcomes.append(TopicDeletion(None, request.id, error))
        elif request.name is None:
            ids[request.id] += 1
        elif request.id == ZERO_TOPIC_ID:
            names[request.name] += 1
        else:
            error = _invalid("You may not specify both topic name and topic id.")
            outcomes.append(TopicDeletion(request.name, request.id, error))
    doomed: dict[TopicId, str] = {}
    for topic_id, count in ids.items():
        if count > 1:
            outcomes.append(TopicDeletion(None, topic_id, _invalid("Duplicate topic id.")))
        elif topic_id in image.topic_names:
            doomed[topic_id] = image.topic_names[topic_id]
        else:
            # Kafka gives these two the standing text of their codes.
            error = KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."
            )
            outcomes.append(TopicDeletion(None, topic_id, error))
    for name, count in names.items():
        topic = image.topics.get(name)
        if count > 1:
            outcomes.append(TopicDeletion(name, ZERO_TOPIC_ID, _invalid("Duplicate topic name.")))
        elif topic is None:
            error = KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )
            outcomes.append(TopicDeletion(name, ZERO_TOPIC_ID, error))
        elif topic.id in ids:
            doomed.pop(topic.id, None)
            error = _invalid("The provided topic name maps to an ID that was already supplied.")
            outcomes.append(TopicDeletion(name, topic.id, error))
        else:
            doomed[topic.id] = name
    outcomes += (TopicDeletion(name, topic_id) for topic_id, name in doomed.items())
    return outcomes


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
