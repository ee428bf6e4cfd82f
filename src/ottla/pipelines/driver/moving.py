"""A pipeline that does not run: where it stands, moving it, and forgetting it.

Everything here holds the pipeline's lock meanwhile, so that nobody starts it. The checkpoint is
changed first and the group after it: whoever is killed in between leaves a group that is behind,
which the next start puts right. Before both, the group has to be without members: a driver that
was killed here is put out of it, and one that runs elsewhere is left alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ottla.client import resets
from ottla.client.groups import Groups
from ottla.client.router import error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster
from ottla.pipelines.driver import offsets
from ottla.pipelines.driver.checkpoint import Checkpoint, open_checkpoint
from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.lock import Lock
from ottla.pipelines.driver.member import is_ours, who
from ottla.pipelines.driver.membership import Membership
from ottla.pipelines.driver.start import move
from ottla.pipelines.source.offsets import Progress, same_topic


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: where the pipeline goes on, what its group says, where the log ends."""

    partition: TopicPartition
    checkpoint: int | None
    group: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        """Records that are still to be read."""
        if self.checkpoint is None or self.end is None:
            return None
        return max(self.end - self.checkpoint, 0)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a pipeline stands.

    finished    its last finished batch
    unfinished  the batch that the next run repeats
    partitions  of the topics that it reads
    document    what the source wrote, where that is no topic
    """

    pipeline: str
    finished: int | None
    unfinished: int | None
    partitions: tuple[Partition, ...]
    document: Mapping[str, Any] | None


def remembered(home: Home) -> dict[str, Any]:
    """What the last start wrote down; `Refused` when there was none."""
    found = home.remembered()
    if not found:
        raise Refused(
            home.name,
            f"has never run with the state folder {home.folder.parent}; `ottla pipeline list` "
            "shows those that have, --state-dir names another folder",
        )
    return found


def whereabouts(home: Home, groups: Groups) -> Whereabouts:
    """Where it stands; also while it runs."""
    known = remembered(home)
    checkpoint = open_checkpoint(home.name, known["checkpoint"])
    stands = offsets.standing(checkpoint)
    position = stands.position
    rows: tuple[Partition, ...] = ()
    if position is not None or known["topics"]:
        ends = {} if position is None else position.ends()
        committed = groups.offsets(known["group"])
        partitions = {*ends, *(tp for tp in committed if tp.topic in known["topics"])}
        logs = groups.topics.ends(partitions)
        rows = tuple(
            Partition(
                tp,
                ends.get(tp),
                committed[tp].offset if tp in committed else None,
                logs.get(tp),
            )
            for tp in sorted(partitions)
        )
    return Whereabouts(
        home.name,
        checkpoint.finished,
        stands.repeats,
        rows,
        checkpoint.position() if position is None else None,
    )


@contextmanager
def stopped(home: Home) -> Iterator[None]:
    """Nobody runs it for as long as this lasts; `Refused` when somebody does."""
    lock = Lock(home)
    lock.take()
    try:
        yield
    finally:
        lock.release()


def planned(
    home: Home, groups: Groups, target: resets.Target, scope: Sequence[str] = ()
) -> dict[TopicPartition, int]:
    """Where a target would move the pipeline; nothing is changed.

    scope  `topic` and `topic:0,1`; all partitions when there is none
    """
    known = remembered(home)
    position = offsets.standing(open_checkpoint(home.name, known["checkpoint"])).position
    topics = _topics(known, position)
    if not topics:
        raise Refused(
            home.name,
            f"does not read topics but {known['source']}: its position cannot be moved. `ottla "
            f"pipeline reset {home.name}` lets it begin anew",
        )
    named = {each.partition(":")[0] for each in scope}
    if isinstance(target, resets.ToGiven):
        named |= {tp.topic for tp in target.offsets}
    strangers = named - set(topics)
    if strangers:
        raise Refused(
            home.name,
            f"does not read {', '.join(sorted(strangers))} but {', '.join(topics)}",
        )
    partitions = resets.scope(groups.topics, scope or _there(home, groups, topics))
    here = offsets.current(position, target)
    if here is not None:
        missing = [tp for tp in partitions if tp not in here]
        if missing:
            raise Refused(home.name, f"stands nowhere yet in {', '.join(map(str, missing))}")
        _check_same_topics(home, groups, position, {tp.topic for tp in partitions})
        target = resets.ToGiven({tp: here[tp] for tp in partitions})
    if isinstance(target, resets.ToGiven):
        partitions = list(target.offsets)
    return dict(resets.plan_reset(groups, known["group"], partitions, target).offsets)


def _check_same_topics(
    home: Home, groups: Groups, position: Progress | None, names: Collection[str]
) -> None:
    """`Refused` where the place in a topic is one in another of the same name, which is gone."""
    known = {} if position is None else position.topics
    for each in groups.router.metadata(sorted(names)).topics:
        name = each.name or ""
        if name in known and not same_topic(known[name].topic_id, bytes(each.topic_id)):
            raise Refused(
                home.name,
                f"stands in topic {name}, which was deleted and made anew: its offsets mean "
                f"something else now. `ottla pipeline offsets reset {home.name} --topic {name} "
                "--to earliest` lets the pipeline begin with the new one",
            )


def _there(home: Home, groups: Groups, topics: Sequence[str]) -> list[str]:
    """Those that are not deleted: a move leaves the others behind, which a pattern has matched."""
    answers = groups.router.metadata(list(topics)).topics
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = [each.name or "" for each in answers if error_code(each.error_code) is not gone]
    if not found:
        raise Refused(
            home.name, f"reads {', '.join(topics)}, and none of these is there: create it first"
        )
    return sorted(found)


def _topics(known: Mapping[str, Any], position: Progress | None) -> list[str]:
    """Those of the last start, and those that a pattern has found since; none of other sources."""
    if known["source"] != "topic":
        return []
    found = () if position is None else position.topics
    return sorted({*known["topics"], *found})


def move_to(home: Home, groups: Groups, wanted: Mapping[TopicPartition, int]) -> int:
    """Move the checkpoint and the group; returns the number of the batch that jumps there."""
    known = remembered(home)
    checkpoint = open_checkpoint(home.name, known["checkpoint"])
    stands = offsets.standing(checkpoint)
    _put_out(home, known, groups)
    with Cluster(known["bootstrap"], settings=known.get("kafka")) as cluster:
        topics = cluster.topics(_topics(known, stands.position))
        progress = move(checkpoint, stands, dict(wanted), topics, cluster)
    number = checkpoint.planned or 0
    _commit(groups, known["group"], progress, checkpoint, number)
    return number


def _put_out(home: Home, known: Mapping[str, Any], groups: Groups) -> None:
    """Let nobody be in the group: its coordinator would refuse what comes after the checkpoint."""
    group = known["group"]
    try:
        members = groups.describe(group)[group].members
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return
        raise
    for each in members:
        if each.id != known.get("member") or not is_ours(each.id):
            raise Refused(
                home.name,
                f"is run by {who(each)}, says its group {group}. Stop it there, or, if it is gone, "
                "wait until its session has ended, 45 s unless the broker says otherwise",
            )
        # It is gone: it was this machine's, and we hold its lock.
        answer = groups.router.coordinator(group).ask(Membership(group, each.id).leave())
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
            raise KafkaError(error_code(answer.error_code), answer.error_message)


def _commit(
    groups: Groups, group: str, progress: Progress, checkpoint: Checkpoint, number: int
) -> None:
    # A jump that has not been carried out counts as ours: the next start takes it for no surprise.
    run = checkpoint.id or ""
    groups.set_offsets(group, offsets.commits(progress, run, number))


def forget(home: Home, groups: Groups) -> list[str]:
    """Forget all progress, so that the next run begins as the first; returns what is gone."""
    known = remembered(home)
    _put_out(home, known, groups)
    gone = []
    open_checkpoint(home.name, known["checkpoint"]).remove()
    gone.append(f"checkpoint {known['checkpoint']}")
    if home.staging.exists():
        shutil.rmtree(home.staging)
        gone.append(f"staged rows {home.staging}")
    outcome = groups.delete(known["group"])[known["group"]]
    if outcome not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise KafkaError(outcome, f"group {known['group']} was not deleted: {outcome.text}")
    gone.append(f"group {known['group']}")
    return gone
