"""What is looked at before a query starts: whatever is wrong is said before Spark is there.

- There is such a master, and it answers. A cluster of other machines cannot use a checkpoint that
  only this one sees, nor rows that are staged here.
- The topics that are read exist.
- The query is the one that the checkpoint was made by.
- Nobody has moved the group's offsets; if somebody has, one of the two is chosen.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ottla.client.groups import Groups
from ottla.pipelines import masters
from ottla.pipelines.cluster import Cluster, Topic
from ottla.pipelines.connectors.spec.values import PipelineSpec
from ottla.pipelines.connectors.spec.variables import scrubbed
from ottla.pipelines.driver import offsets
from ottla.pipelines.driver.changes import differences, places_of, query_of, without_secrets
from ottla.pipelines.driver.checkpoint import Checkpoint
from ottla.pipelines.driver.home import Home, Refused, local_path
from ottla.pipelines.driver.member import is_ours, new_member_id

if TYPE_CHECKING:
    from ottla.pipelines.source.offsets import Progress

_ANSWER: Final = 10.0
"""Seconds for a Spark master to take a connection."""


class Follow(Enum):
    """Which of two is right, where group and checkpoint differ."""

    GROUP = "group"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line says about one run.

    once            end when everything that is there now was read
    master          where Spark runs; None: what the pipeline's file says, else this machine
    shared_path     the folders of this machine are there for all machines of the master
    follow          what to do when somebody has moved the group's offsets
    accept_changes  the checkpoint of another query is this one's from now on
    metrics         where Prometheus finds the figures; port 0 is any that is free
    """

    once: bool = False
    master: str | None = None
    shared_path: bool = False
    follow: Follow | None = None
    accept_changes: bool = False
    metrics: tuple[str, int] = ("127.0.0.1", 0)


def check_places(spec: PipelineSpec, home: Home, master: str, choices: Choices) -> None:
    """`Refused` for a master on whose machines the pipeline cannot work."""
    if not masters.is_master(master):
        raise Refused(spec.name, no_master(master))
    if not masters.is_remote(master):
        return
    here = only_here(spec)
    if here:
        raise Refused(spec.name, f"cannot run on {master}: {'; '.join(here)}")
    if choices.shared_path:
        return
    unseen = local_places(spec, home.checkpoint(spec.checkpoint), str(home.staging))
    if unseen:
        raise Refused(
            spec.name,
            f"is to run on {master}, whose machines do not see {', '.join(unseen)} of this one: "
            "name a place that all of them reach (`checkpoint: hdfs://…`), or say with "
            "--shared-path (in Python, shared_path=True) that the folder is mounted everywhere",
        )


def check_master(spec: PipelineSpec, master: str) -> None:
    """`Refused` when nobody answers there: Spark would try for a minute, and say little."""
    try:
        masters.own_address(master, _ANSWER)
    except OSError as error:
        raise Refused(
            spec.name,
            f"is to run on {master}, where no Spark master answers ({error.strerror or error}): "
            "start it, or name another with --master",
        ) from None


def no_master(master: str) -> str:
    """A clause for what Spark does not know."""
    return (
        f"cannot run on {master}, which is no master of Spark: those are local[*], "
        "spark://host:7077, yarn and k8s://…"
    )


def only_here(spec: PipelineSpec) -> list[str]:
    """Clauses about sources and sinks that work with a local master only."""
    parts = (("source", spec.source), ("sink", spec.sink))
    return [
        f"the {role} {connector.name} works with a local master only, since its file belongs to "
        "this machine; PostgreSQL is the database for a cluster"
        for role, connector in parts
        if getattr(connector.make(), "only_here", bool)()
    ]


def local_places(spec: PipelineSpec, checkpoint: str, staging: str) -> list[str]:
    """Folders that the machines of a cluster would look for in vain."""
    source, sink = spec.source.make(), spec.sink.make()
    found = [checkpoint] if local_path(checkpoint) is not None else []
    if getattr(source, "stages", bool)():
        found.append(staging)
    for role in (source, sink):
        found += [str(path) for path in _needs(role, "local_paths")]
    return found


def check_topics(spec: PipelineSpec, source: Any, cluster: Cluster) -> dict[str, Topic]:
    """The topics that the pipeline reads; `Refused` when one, or that of its letters, is not there.

    Of a pattern those that match now; the query finds later ones by itself.
    """
    letters = spec.on_error.dead_letter
    if letters is not None and letters not in cluster.topics([letters]):
        # Brokers that create topics by themselves would make one of a name that is only misspelt.
        raise _no_topic(spec, "writes dead letters to", [letters], cluster)
    pattern = getattr(source, "topic_pattern", lambda: None)()
    if pattern is not None:
        return cluster.matching(pattern)
    wanted = topics_read(source)
    found = cluster.topics(wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise _no_topic(spec, "reads", missing, cluster)
    return found


def _no_topic(spec: PipelineSpec, does: str, missing: Sequence[str], cluster: Cluster) -> Refused:
    near = difflib.get_close_matches(missing[0], cluster.matching(".*"), n=1)
    hint = f"did you mean {near[0]}? Otherwise " if near else ""
    return Refused(
        spec.name,
        f"{does} topic {', '.join(missing)}, which {spec.bootstrap} does not have; {hint}"
        f"`ottla topic create {' '.join(missing)}` makes it",
    )


def topics_read(source: Any) -> tuple[str, ...]:
    """The topics of a source, as far as it can name them."""
    return tuple(str(name) for name in _needs(source, "topics_read"))


def member_of(home: Home) -> str:
    """The member id of the pipeline's driver: the one that its folder has, if this machine made it.

    Whoever follows a driver that was killed goes on under its id.
    """
    known = home.remembered().get("member")
    return known if isinstance(known, str) and is_ours(known) else new_member_id()


def check_query(
    spec: PipelineSpec,
    home: Home,
    checkpoint: Checkpoint,
    topics: Collection[str],
    choices: Choices,
) -> dict[str, Any]:
    """What to remember of this run; `Refused` when the checkpoint is another query's."""
    remembered = home.remembered()
    place = home.checkpoint(spec.checkpoint)
    now, places = query_of(spec), places_of(spec)
    begun = checkpoint.planned is not None
    if begun and remembered.get("checkpoint") != place:
        if not choices.accept_changes:
            raise Refused(
                spec.name,
                f"is to go on from {place}, a checkpoint that no pipeline of this folder has made: "
                "name another place, or say with --accept-changes that it is this query's",
            )
    elif begun:
        before = without_secrets(remembered.get("query", {}), spec)
        _check_same(spec, checkpoint, differences(before, now), choices)
        _check_same_places(spec, remembered.get("places", places), places, choices)
    return {
        "name": spec.name,
        "group": spec.group,
        "bootstrap": spec.bootstrap,
        "kafka": _without_secrets(spec),
        "file": spec.path,
        "checkpoint": place,
        "topics": sorted(topics),
        "source": spec.source.name,
        "sink": spec.sink.name,
        "query": now,
        "places": places,
    }


def _without_secrets(spec: PipelineSpec) -> dict[str, str]:
    """The settings of Kafka clients that may be kept in a file."""
    given = spec.kafka.items()
    return {name: value for name, value in given if scrubbed(value, spec.secrets) == value}


def _check_same(
    spec: PipelineSpec, checkpoint: Checkpoint, changed: Sequence[str], choices: Choices
) -> None:
    if not changed:
        return
    what = ", ".join(changed)
    anew = f"give the pipeline another name, or begin anew with `ottla pipeline reset {spec.name}`"
    if any(part == "source" for part in changed):
        raise Refused(
            spec.name,
            f"has another source now than the one whose progress its checkpoint holds: {anew}",
        )
    if not choices.accept_changes:
        raise Refused(
            spec.name,
            f"has changed since its checkpoint was made ({what}): rows that were written stay as "
            f"they are. If that is meant, say --accept-changes; otherwise {anew}",
        )
    unfinished = offsets.standing(checkpoint).repeats
    if unfinished is not None:
        raise Refused(
            spec.name,
            f"has changed ({what}) while batch {unfinished} is unfinished: another query would "
            "write some of its rows in another way. Run the former file once more with --once "
            "(and with on_error.dead_letter, if it stops at a row), then this one with "
            f"--accept-changes. {_giving_up(spec)}",
        )


def _giving_up(spec: PipelineSpec) -> str:
    """The way out for a batch that the former file will never finish."""
    way = (
        f"`ottla pipeline offsets reset {spec.name} --to current` gives it up"
        if spec.source.name == "topic"
        else f"`ottla pipeline reset {spec.name}` lets the pipeline begin anew"
    )
    return f"If that cannot be, {way}, and rows of it that are in the sink are written again"


def _check_same_places(
    spec: PipelineSpec, before: Mapping[str, str], now: Mapping[str, str], choices: Choices
) -> None:
    """A database may move, also while a batch is unfinished: whether it did is for a person."""
    # A place that was not remembered is one that an earlier version took for no secret.
    changed = [part for part in differences(before, now) if part in before]
    if not changed or choices.accept_changes:
        return
    what = ", ".join(f"{part}: {before.get(part)} before, {now.get(part)} now" for part in changed)
    raise Refused(
        spec.name,
        f"goes by a checkpoint that was made elsewhere ({what}). If the same rows are there, under "
        "another address, say --accept-changes; otherwise give the pipeline another name, or begin "
        f"anew with `ottla pipeline reset {spec.name}`",
    )


def check_group(
    spec: PipelineSpec,
    checkpoint: Checkpoint,
    groups: Groups,
    cluster: Cluster,
    topics: dict[str, Topic],
    choices: Choices,
) -> Progress | None:
    """Where the query goes on; `Refused` when group and checkpoint differ and nobody has chosen."""
    stands = offsets.standing(checkpoint)
    narrowed = _left_behind(spec, stands, choices)
    position = stands.position if narrowed is None else narrowed
    offered = groups.offsets(spec.group) if topics else {}
    committed = {tp: each for tp, each in offered.items() if tp.topic in topics}
    found = offsets.moved(position, checkpoint.id, committed)
    if not found or choices.follow is Follow.CHECKPOINT:
        if narrowed is not None:
            # Not before now: a start that is refused changes nothing. The former file would read
            # a topic that it finds left behind once more, from its beginning.
            checkpoint.jump(narrowed.to_json())
        return position
    if choices.follow is None:
        what = (
            "is new here, and its group has offsets"
            if position is None
            else "stands elsewhere than its group, whose offsets somebody has moved"
        )
        raise Refused(
            spec.name,
            f"{what}: {spec.group} has {offsets.told(found)}. Say --from-group to go on where the "
            "group stands, or --from-checkpoint to go on where the pipeline stands"
            + (" (its beginning, as the file says)" if position is None else ""),
        )
    wanted = {each.partition: each.group for each in found}
    return move(checkpoint, stands, wanted, topics, cluster)


def _left_behind(spec: PipelineSpec, stands: offsets.Standing, choices: Choices) -> Progress | None:
    """The position without the topics that the file has not any more, if there are such; `Refused`
    unless they may be left behind."""
    position = stands.position
    if position is None:
        return None
    source = spec.source.make()
    pattern = getattr(source, "topic_pattern", lambda: None)()
    names = topics_read(source)
    if pattern is None and not names:
        return None  # a source of another kind, which reads topics and does not say which
    kept = [
        name
        for name in position.topics
        if (re.fullmatch(pattern, name) if pattern is not None else name in names)
    ]
    left = sorted(position.topics.keys() - set(kept))
    if not left:
        return None
    what = ", ".join(left)
    if not kept:
        raise Refused(
            spec.name,
            f"reads none of the topics whose progress its checkpoint holds ({what}): give it "
            f"another name, or begin anew with `ottla pipeline reset {spec.name}`",
        )
    if not choices.accept_changes or stands.repeats is not None:
        raise Refused(
            spec.name,
            f"has a checkpoint with topics that its source does not have any more ({what}): "
            "--accept-changes leaves them behind, once no batch is unfinished",
        )
    return offsets.narrowed(stands, position, kept)


def move(
    checkpoint: Checkpoint,
    stands: offsets.Standing,
    wanted: dict[Any, int],
    topics: dict[str, Topic],
    cluster: Cluster,
) -> Progress:
    """Let the checkpoint go on from `wanted`; returns where that is, for all partitions."""
    known = {} if stands.position is None else stands.position.ends()
    anew = offsets.made_anew(stands.position, topics)
    partitions = [tp for topic in topics.values() for tp in topic.partitions if tp not in wanted]
    begin = cluster.starts([tp for tp in partitions if tp not in known or tp.topic in anew])
    starts = {tp: each.offset for tp, each in begin.items()}
    progress = offsets.jump(stands, wanted, topics, starts)
    checkpoint.jump(progress.to_json())
    return progress


def _needs(role: Any, what: str) -> Sequence[Any]:
    asked = getattr(role, what, None)
    return () if asked is None else tuple(asked())
