"""More replicas for the brokers' own topics, as brokers join. No I/O: an image in, changes out.

A cluster often begins as one broker, whose groups' offsets then have one replica. Kafka waits with
such a topic until there are as many brokers as `offsets.topic.replication.factor` asks for; here it
is made at once, and gets its replicas as brokers come. New replicas fetch what is there and join
the in-sync set like any that was away. None is ever taken away.

They go to racks that have none yet, then to the brokers that have fewest of the topic; and the
preferred leaders are shared out anew, or the first broker would lead all of them for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ottla.model.broker import Broker
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionChange, PartitionState, Topic


def plan_more_replicas(image: ClusterImage, factors: Mapping[str, int]) -> list[PartitionChange]:
    """The partitions of these topics that can have more replicas, up to the topic's factor."""
    states = image.broker_states
    able = {
        number: broker
        for number, broker in image.brokers.items()
        if not ((state := states.get(number)) and state.stopping)
    }
    changes: list[PartitionChange] = []
    for name, factor in factors.items():
        topic = image.topics.get(name)
        if topic is not None:
            changes += _grow(topic, factor, able)
    return changes


def _grow(topic: Topic, factor: int, able: Mapping[int, Broker]) -> list[PartitionChange]:
    if all(len(state.replicas) >= factor for state in topic.partitions):
        return []
    held = Counter(each for state in topic.partitions for each in state.replicas)
    preferred = Counter(state.replicas[0] for state in topic.partitions)
    changes = []
    for index, before in enumerate(topic.partitions):
        if before.leader not in able or before.reassigning:
            continue  # nobody to fetch from; somebody is at it
        replicas = _with_more(before, factor, able, held)
        if len(replicas) == len(before.replicas):
            continue
        preferred[before.replicas[0]] -= 1
        first = min(replicas, key=lambda each: (preferred[each], replicas.index(each)))
        preferred[first] += 1
        order = (first, *(each for each in replicas if each != first))
        after = replace(before, replicas=order, partition_epoch=before.partition_epoch + 1)
        changes.append(PartitionChange(topic.id, index, before, after))
    return changes


def _with_more(
    state: PartitionState, factor: int, able: Mapping[int, Broker], held: Counter[int]
) -> list[int]:
    replicas = list(state.replicas)
    while len(replicas) < factor:
        candidates = [each for each in able if each not in replicas]
        if not candidates:
            break
        racks = {able[each].rack for each in replicas if each in able}
        chosen = min(candidates, key=lambda each: (able[each].rack in racks, held[each], each))
        held[chosen] += 1
        replicas.append(chosen)
    return replicas
