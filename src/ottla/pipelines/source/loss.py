"""Records that were to be read and are not there: why, how many, and what to do about it.

A query that finds its place gone should say more than "offset out of range". Four things happen to
a log behind a reader's back, and each calls for another answer:

- AGED_OUT: retention removed the records, as it was told to. The query is too slow, or was down
  for too long.
- DELETED: somebody removed them (DeleteRecords), or the whole topic.
- RECREATED: the topic was deleted and one of the same name was made. Its offsets mean something
  else; reading on at the old number would leave out records without a word.
- TRUNCATED: the log ends before the place that was reached (an unclean election, a restored disk).

`judge` tells them apart from what was seen, without asking anybody. Kafka keeps no record of why a
log starts where it starts, so DELETED means that retention cannot be the reason; what may
have been either is AGED_OUT. The retention of Kafka removes whole segments, and a segment starts
with a batch: a log that starts inside a batch was cut by a person.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ottla.model.ids import NO_LEADER_EPOCH, ZERO_TOPIC_ID, topic_id_text
from ottla.pipelines.errors import DataLossError, OptionError

OPTION = "failOnDataLoss"


class Cause(enum.Enum):
    AGED_OUT = "aged_out"
    DELETED = "deleted"
    RECREATED = "recreated"
    TRUNCATED = "truncated"


class Action(enum.Enum):
    """FAIL ends the query, SKIP goes on behind what is missing, REWIND begins at what is there."""

    FAIL = "fail"
    SKIP = "skip"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """The value of `failOnDataLoss`: what to do for each cause."""

    aged_out: Action = Action.FAIL
    deleted: Action = Action.FAIL
    recreated: Action = Action.FAIL
    truncated: Action = Action.FAIL

    @classmethod
    def parse(cls, text: str) -> LossPolicy:
        """Read `true`, `false`, or choices such as `aged_out=skip,recreated=rewind`.

        A cause that is not named fails.
        """
        plain = text.strip().lower()
        if plain in _SHORT:
            return _SHORT[plain]
        chosen: dict[str, Action] = {}
        for part in plain.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in _CAUSES or value not in _ACTIONS:
                raise OptionError(
                    OPTION,
                    f"{OPTION} does not understand {part.strip()!r} in {text!r}: give true, false, "
                    "or a choice per cause such as aged_out=skip,deleted=fail,recreated=rewind "
                    f"(causes: {', '.join(_CAUSES)}; choices: {', '.join(_ACTIONS)}).",
                )
            if name in chosen:
                raise OptionError(OPTION, f"{OPTION} names {name} twice in {text!r}: give it once.")
            chosen[name] = _ACTIONS[value]
        return cls(**chosen)

    def action(self, cause: Cause) -> Action:
        """What to do about a loss of this cause."""
        chosen: Action = getattr(self, cause.value)
        return chosen

    def __str__(self) -> str:
        return ",".join(f"{cause.value}={self.action(cause).value}" for cause in Cause)


_CAUSES = {cause.value: cause for cause in Cause}
_ACTIONS = {action.value: action for action in Action}
_SHORT = {
    "true": LossPolicy(),
    "false": LossPolicy(
        aged_out=Action.SKIP, deleted=Action.SKIP, recreated=Action.REWIND, truncated=Action.SKIP
    ),
}


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of a partition when its next records were asked for.

    `position` is the next offset to read and `end` where this reading is to stop (None: not
    known). What could not be found out is None. `first_batch` is the base offset of the batch that
    holds `log_start`; `epoch_end` is what OffsetForLeaderEpoch answers for `epoch`; `newest` is the
    timestamp of the newest record known to have been in the log and `now` the time of the look, in
    milliseconds.
    """

    topic: str
    partition: int
    position: int
    end: int | None = None
    topic_id: bytes = ZERO_TOPIC_ID
    epoch: int = NO_LEADER_EPOCH
    found_topic_id: bytes | None = None
    """The id that the name has now: None when there is no such topic, zeros when not known."""
    log_start: int = 0
    log_end: int = 0
    first_batch: int | None = None
    epoch_end: int | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None
    cleanup_policy: str | None = None
    newest: int | None = None
    now: int | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The offsets `first` up to and without `end` that will never be read, and how that is known.

    `resume_skip` and `resume_rewind` are the offsets to go on at, None when the topic is gone and
    there is nothing to go on with. `topic_id` is the id to go on with.
    """

    topic: str
    partition: int
    cause: Cause
    first: int
    end: int
    evidence: str
    resume_skip: int | None
    resume_rewind: int | None
    topic_id: bytes = ZERO_TOPIC_ID

    @property
    def count(self) -> int:
        """How many records at most: offsets may have held markers, or were compacted away."""
        return max(self.end - self.first, 0)

    def resume(self, action: Action) -> int | None:
        """Where to go on: None to leave the partition. FAIL raises DataLossError."""
        if action is Action.FAIL:
            raise self.error()
        return self.resume_skip if action is Action.SKIP else self.resume_rewind

    def error(self) -> DataLossError:
        """The exception that ends the query, with what could be chosen instead."""
        choice = self.cause.value
        return DataLossError(
            f"{self.sentence()[:-1]}; to go on without them set {OPTION} to {choice}=skip or "
            f"{choice}=rewind.",
            self,
        )

    def sentence(self) -> str:
        """What is missing and why, for people."""
        where = f"of partition {self.partition} of topic {self.topic}"
        if self.count == 0:
            what = f"Whatever came from offset {self.first} on {where} was"
        elif self.count == 1:
            what = f"Offset {self.first} {where} (1 record) was"
        else:
            what = f"Offsets {self.first} to {self.end - 1} {where} ({self.count:,} records) were"
        return f"{what} {_HAPPENED[self.cause]}: {self.evidence}."


_HAPPENED = {
    Cause.AGED_OUT: "removed by retention (aged out) before being read",
    Cause.DELETED: "deleted before being read",
    Cause.RECREATED: "deleted with the topic, which was made anew",
    Cause.TRUNCATED: "cut off the end of the log",
}


def judge(seen: Observation) -> Loss | None:
    """Why records are missing at `seen.position`, or None when none are."""
    if seen.found_topic_id is None:
        return _loss(seen, Cause.DELETED, seen.position, seen.end, "the topic was deleted")
    if _differ(seen.topic_id, seen.found_topic_id):
        return _loss(
            seen,
            Cause.RECREATED,
            seen.position,
            seen.end,
            f"its id was {topic_id_text(seen.topic_id)}, "
            f"and is {topic_id_text(seen.found_topic_id)} now",
            skip=seen.log_end,
        )
    if seen.position < seen.log_start:
        end = seen.log_start if seen.end is None else min(seen.end, seen.log_start)
        proof = _deleted_by_hand(seen)
        if proof:
            return _loss(seen, Cause.DELETED, seen.position, end, proof)
        kept = _retention(seen)
        evidence = f"the log now starts at {seen.log_start}{kept}"
        return _loss(seen, Cause.AGED_OUT, seen.position, end, evidence)
    return _truncated(seen)


def _differ(expected: bytes, found: bytes) -> bool:
    return expected != found and ZERO_TOPIC_ID not in (expected, found)


def _loss(
    seen: Observation,
    cause: Cause,
    first: int,
    end: int | None,
    evidence: str,
    *,
    skip: int | None = None,
) -> Loss:
    gone = seen.found_topic_id is None
    return Loss(
        topic=seen.topic,
        partition=seen.partition,
        cause=cause,
        first=first,
        end=first if end is None else end,
        evidence=evidence,
        resume_skip=None if gone else seen.log_start if skip is None else skip,
        resume_rewind=None if gone else seen.log_start,
        topic_id=seen.found_topic_id or ZERO_TOPIC_ID,
    )


def _deleted_by_hand(seen: Observation) -> str | None:
    """Why retention cannot have moved the start of the log; None when it can."""
    now_at = f"the log now starts at {seen.log_start}"
    if seen.first_batch is not None and seen.first_batch < seen.log_start:
        return (
            f"{now_at}, inside the batch that begins at {seen.first_batch}, "
            "and retention removes whole segments only"
        )
    policies = {part.strip() for part in (seen.cleanup_policy or "").split(",")} - {""}
    if policies == {"compact"}:
        return f"{now_at}, and cleanup.policy=compact removes nothing from the start of a log"
    if seen.retention_ms == -1 and seen.retention_bytes == -1:
        return f"{now_at}, and retention.ms=-1 and retention.bytes=-1 keep everything"
    if (
        seen.log_start == seen.log_end
        and seen.retention_bytes == -1
        and seen.retention_ms is not None
        and seen.newest is not None
        and seen.now is not None
        and seen.retention_ms >= 0
        and seen.now - seen.newest < seen.retention_ms
    ):
        return (
            f"the log is empty and starts at {seen.log_start}, "
            f"and its newest record was younger than retention.ms={seen.retention_ms}"
        )
    return None


def _retention(seen: Observation) -> str:
    limits = [
        f"{name}={value}"
        for name, value in (
            ("retention.ms", seen.retention_ms),
            ("retention.bytes", seen.retention_bytes),
        )
        if value is not None and value != -1
    ]
    return f" ({' and '.join(limits)})" if limits else ""


def _truncated(seen: Observation) -> Loss | None:
    ended = seen.epoch_end
    if ended is not None and 0 <= ended < seen.position:
        cut = min(ended, seen.log_end)
        evidence = f"leader epoch {seen.epoch}, under which they were seen, ended at {ended}"
    elif seen.position > seen.log_end:
        cut = seen.log_end
        evidence = f"the log now ends at {seen.log_end}"
    else:
        return None
    return _loss(seen, Cause.TRUNCATED, cut, seen.position, evidence, skip=max(cut, seen.log_start))
