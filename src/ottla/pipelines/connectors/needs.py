"""What a pipeline will need of the cluster: topics, and the rights of whoever runs it.

`needs_of` says it from the pipeline alone; `missing` asks the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.errors import KafkaError
from ottla.pipelines.cluster import Cluster, Unreachable
from ottla.pipelines.connectors.spec.option_values import nearest
from ottla.pipelines.connectors.spec.values import PipelineSpec

_QUESTION = 5.0  # seconds


class Acl(NamedTuple):
    """A right, in Kafka's words."""

    resource: str
    name: str
    operation: str
    why: str


@dataclass(frozen=True, slots=True)
class Needed:
    """`read` and `written` are topics."""

    group: str
    read: tuple[str, ...]
    written: tuple[str, ...]
    acls: tuple[Acl, ...]


def needs_of(spec: PipelineSpec) -> Needed:
    """From what the source and the sink say of themselves."""
    source, sink = spec.source.make(), spec.sink.make()
    read = _asked(source, "topics_read")
    written = _asked(sink, "topics_written")
    letters = spec.on_error.dead_letter
    acls = [Acl("Group", spec.group, "Read", "its progress, and one driver at a time")]
    for topic in read:
        acls += _rights(topic, "source", "Read")
    for topic in written:
        acls += _rights(topic, "sink", "Write")
    if letters is not None:
        acls += _rights(letters, "dead letters", "Write", "Read")
        written = (*written, letters)
    return Needed(spec.group, read, tuple(dict.fromkeys(written)), tuple(acls))


def missing(spec: PipelineSpec, needed: Needed) -> tuple[list[str], str | None]:
    """Sentences for topics that are not there, and why the cluster could not be asked, if so."""
    wanted = (*needed.read, *needed.written)
    try:
        with Cluster(
            spec.bootstrap, timeout=_QUESTION, client_id="ottla-cli", settings=spec.kafka
        ) as cluster:
            found = cluster.topics(wanted)
            if len(found) == len(set(wanted)):
                return [], None
            known = list(cluster.matching(".*"))
    except Unreachable as error:
        return [], str(error)
    except KafkaError as error:
        return [str(error)], None
    return [_sentence(topic, needed, known) for topic in dict.fromkeys(wanted)
            if topic not in found], None  # fmt: skip


def _sentence(topic: str, needed: Needed, known: list[str]) -> str:
    use = "read" if topic in needed.read else "written"
    near = nearest(topic, known)
    hint = f"did you mean {near}? Otherwise " if near else ""
    return f"there is no topic {topic}, which is {use}; {hint}`ottla topic create {topic}` makes it"


def _rights(topic: str, why: str, *operations: str) -> list[Acl]:
    return [Acl("Topic", topic, operation, why) for operation in (*operations, "Describe")]


def _asked(connector: Any, what: str) -> tuple[str, ...]:
    """What it says of itself; a source or sink of the user's own may say nothing."""
    told: Sequence[Any] = getattr(connector, what, tuple)()
    return tuple(str(each) for each in told)
