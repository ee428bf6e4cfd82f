"""Moving partitions to other replicas (KIP-455). No I/O: states in, states out.

A reassignment is part of a partition's state, so it outlives every controller and every broker:

    begin       the new replicas are added to the old ones; they follow, and join the in-sync set
                when they have caught up, like any replica that was away
    complete    once all replicas of the target are in sync, the others are taken away; where the
                leader is one of these, a replica of the target leads
    cancel      the new replicas are taken away again, and the old ones stay

Nothing that was acknowledged is lost on the way: the next in-sync set is always a part of the
present one, and every in-sync replica has every committed record. Only then do brokers delete what
they do not hold any more. Whenever replicas are taken away the leader epoch is a new one, so that
whoever does not know of it yet is fenced.

A reassignment may be replaced by another one before it is done. Replicas that the earlier one was
bringing remain in `adding`, also where they are to be taken away again: so a cancellation leads
back to where all of it began, and what must be in sync for `acks=all` is the same all the time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from ottla.controller.election import uncleanly_led_by
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionState
from ottla.replication.isr import Rules, eligible


class Reassignment(NamedTuple):
    """A reassignment in progress, as it is told to clients."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def begin(state: PartitionState, target: Sequence[int], able: Set[int]) -> PartitionState:
    """On its way to the `target`, or there already; the same object if nothing is to be done.

    `able` brokers may lead.
    """
    held = {*state.replicas}
    adding = tuple(sorted({*state.adding, *target} - {*state.original}))
    removing = tuple(sorted(held.difference(target)))
    replicas = (*target, *removing)
    if (replicas, adding, removing) == (state.replicas, state.adding, state.removing):
        return state
    begun = replace(
        state,
        partition_epoch=state.partition_epoch + 1,
        replicas=replicas,
        adding=adding,
        removing=removing,
    )
    done = complete(begun, able)
    return done if done is begun else replace(done, partition_epoch=begun.partition_epoch)


def complete(state: PartitionState, able: Set[int]) -> PartitionState:
    """On its target, if all of that is in sync and able to lead; else the same object."""
    target = state.target
    if not state.reassigning or not target or not able >= {*target}:
        return state
    if not {*state.isr}.issuperset(target):
        return state
    return replace(
        state,
        leader=state.leader if state.leader in target else target[0],
        leader_epoch=state.leader_epoch + bool(state.removing),
        partition_epoch=state.partition_epoch + 1,
        replicas=target,
        isr=tuple(each for each in state.isr if each in target),
        elr=(),
        last_known_elr=(),
        adding=(),
        removing=(),
    )


def cancel(state: PartitionState, able: Collection[int], rules: Rules) -> PartitionState | None:
    """On its original replicas again; None if only those could lead it then who may lack records,
    and the topic does not allow that. So it is, too, where nobody leads and one of those that are
    waited for would be taken away: it may have more than all others."""
    replicas = state.original
    reverted = replace(state, replicas=replicas, adding=(), removing=())
    isr = tuple(each for each in state.isr if each in replicas)
    elr, last_known = eligible(reverted, isr, rules)
    for candidate in (state.leader, *replicas):
        if candidate in isr and candidate in able:
            return replace(
                reverted,
                leader=candidate,
                leader_epoch=state.leader_epoch + (bool(state.adding) or candidate != state.leader),
                partition_epoch=state.partition_epoch + 1,
                isr=isr,
                elr=elr,
                last_known_elr=last_known,
            )
    awaited = state.elr or state.last_known_elr or state.replicas
    all_stay = not any(each in state.adding for each in awaited)
    if state.leader in isr or (state.leader == NO_LEADER and (elr or all_stay)):
        # Nobody can be elected now; whoever comes back goes on from here.
        return replace(
            reverted,
            leader_epoch=state.leader_epoch + bool(state.adding),
            partition_epoch=state.partition_epoch + 1,
            isr=isr,
            elr=elr,
            last_known_elr=last_known,
        )
    if rules.unclean and not isr:
        for candidate in replicas:
            if candidate in able:
                return uncleanly_led_by(reverted, candidate)
    return None


# --- what is asked for ----------------------------------------------------------------------------


def plan_reassignment(
    image: ClusterImage,
    partition: TopicPartition,
    replicas: Sequence[int] | None,
    able: Set[int],
    rules: Rules,
    *,
    allow_factor_change: bool = True,
) -> tuple[PartitionState, PartitionState]:
    """The partition's state, and the next one on the way to these replicas; None to cancel.

    Raises KafkaError as Kafka's controller does, in the same order.
    """
    before = _find(image, partition)
    if replicas is None:
        if not before.reassigning:
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
            )
        after = cancel(before, able, rules)
        if after is None:
            raise _bad_assignment(
                f"Unable to revert partition assignment for {partition.topic}:"
                f"{partition.partition} because it would require an unclean leader election."
            )
        return before, after
    _check(image, replicas)
    if not allow_factor_change and len(replicas) != len(before.target):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(before.target)} to {len(replicas)}",
        )
    return before, begin(before, tuple(replicas), able)


def ongoing(
    image: ClusterImage, wanted: Mapping[str, Collection[int]] | None
) -> dict[TopicPartition, Reassignment]:
    """The reassignments in progress: of the `wanted` partitions by topic, or of all."""
    names = image.topics if wanted is None else wanted
    found = {}
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            continue
        for index, state in enumerate(topic.partitions):
            if state.reassigning and (wanted is None or index in wanted[name]):
                target = state.target
                found[TopicPartition(name, index)] = Reassignment(
                    state.replicas,
                    tuple(each for each in state.adding if each in target),
                    state.removing,
                )
    return found


def _find(image: ClusterImage, partition: TopicPartition) -> PartitionState:
    topic = image.topics.get(partition.topic)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Unable to find a topic named {partition.topic}.",
        )
    if not 0 <= partition.partition < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Unable to find partition {partition.topic}:{partition.partition}.",
        )
    return topic.partitions[partition.partition]


def _check(image: ClusterImage, replicas: Sequence[int]) -> None:
    """Every broker that the cluster remembers may get replicas, be it away for now."""
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    before = None
    for broker in sorted(replicas):
        if broker not in image.broker_states and broker not in image.brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker}, "
                "but no such broker is registered."
            )
        if broker == before:
            raise _bad_assignment(
                f"The manual partition assignment includes the broker {broker} more than once."
            )
        before = broker


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
