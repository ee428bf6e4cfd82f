"""What the next batch of a stream is, from where it stands and from what the cluster holds.

A look that finds nothing new costs one request. When there is something new, the topics and
the starts of their logs are asked for as well, and every partition is checked before it moves on:

- Is this still the topic that was read? Another id of the same name: made anew.
- Does the log still begin at or before the place? Else records aged out or were deleted.
- Does the log reach the place, and did the leader epoch end behind it? Else it was truncated.

`failOnDataLoss` decides what follows. Two observations must last before they count, since they also
occur for a moment while a leader changes or a broker starts: a topic that nobody knows, and a log
that ends too early without an epoch to prove it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.descriptions import OffsetInfo
from ottla.model.ids import TopicPartition
from ottla.pipelines.source.lookup import starting_marks
from ottla.pipelines.source.loss import Cause, Loss, Observation, judge
from ottla.pipelines.source.offsets import Mark, Progress, same_topic
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.planner import due, limit
from ottla.pipelines.source.ranges import Range
from ottla.pipelines.source.strategy import Pattern, check_checkpoint, left_out, named
from ottla.pipelines.source.watch import View, Watch

LOGGER = logging.getLogger("ottla.pipelines")

GONE_AFTER: Final = 2.0
"""Seconds for which a topic must be missing before it counts as deleted."""
SHORT_AFTER: Final = 10.0
"""Seconds for which a log must end too early before it counts as truncated."""
_NEWEST_EVERY: Final = 10.0


@dataclass(slots=True)
class _Step:
    """Where partitions begin that do not go on where they stand, and where all of them may end."""

    begins: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, Mark] = field(default_factory=dict)
    gone: set[TopicPartition] = field(default_factory=set)


class StreamPlan:
    """Plans batch after batch; for one thread."""

    def __init__(
        self,
        options: ReadOptions,
        watch: Watch,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._watch = watch
        self._clock = clock
        self._view: View | None = None
        self._capped = False
        self._cap: dict[TopicPartition, int] | None = None
        self._owed: dict[TopicPartition, int] | None = None
        self._last_trigger: float | None = None
        self._checked: Progress | None = None
        self._known_ends: dict[tuple[TopicPartition, bytes], int] = {}
        self._left: set[str] = set()
        self._newest: Mapping[TopicPartition, int] = {}
        self._newest_asked: float | None = None
        self._odd_since: dict[str | TopicPartition, float] = {}
        self._told: set[tuple[str, int, Cause, int]] = set()

    @property
    def capped(self) -> bool:
        """Whether there is an end, so that to find nothing new is to be finished."""
        return self._capped

    @property
    def undecided(self) -> bool:
        """Whether something was seen that is a loss only if it lasts."""
        return bool(self._odd_since)

    def cap(self) -> bool:
        """Read no further than to where the logs end now (Trigger.AvailableNow).

        False while the cluster cannot be reached: then `next` fixes the end as soon as it can be.
        """
        self._capped = True
        view = self._watch.confirm()
        if view is None:
            return False
        self._see(view)
        self._cap = self.latest()
        return True

    def latest(self) -> dict[TopicPartition, int]:
        """Where the logs ended at the last look."""
        return {} if self._view is None else {tp: i.offset for tp, i in self._view.ends.items()}

    def next(self, base: Progress | None, *, everything: bool = False) -> Progress | None:
        """The progress after the next batch: `base` itself when there is nothing to do.

        None while the cluster cannot be reached. A `base` of None is a query that has not begun.
        Of `everything` there is only one batch, to which the limits do not apply (Trigger.Once).
        """
        if self._capped and self._cap is None and not self.cap():
            return None
        view = self._watch.look() if base is not None else self._watch.confirm()
        if view is None:
            return None
        self._see(view)
        begun = base if base is not None else self._begin(view)
        if begun is None:
            return None
        if begun is not self._checked:
            self._check(begun)
        if self._cap is not None and self._owed is None:
            self._owed = dict.fromkeys(begun.ends(), 0) if base is None else begun.ends()
        self._complete_cap(view)
        if not self._moved(begun, view):
            self._odd_since.clear()
            return begun
        confirmed = self._watch.confirm()
        starts = None if confirmed is None else self._watch.ask(lambda c: c.starts(confirmed.ends))
        if confirmed is None or starts is None:
            return None
        self._see(confirmed)
        self._complete_cap(confirmed)
        step = self._watch.ask(lambda _: self._step(begun, confirmed, starts))
        return None if step is None else self._advance(begun, step, everything)

    # -- inside

    def _check(self, base: Progress) -> None:
        strategy = self._options.strategy
        check_checkpoint(base, strategy, self._options.loss)
        missed = left_out(base, strategy)
        if missed:
            LOGGER.warning(
                "%s says %s, and failOnDataLoss allows it: what the checkpoint has beside that is "
                "left unread, %s.",
                strategy.option,
                strategy,
                named(missed),
            )
        self._checked = base

    def _see(self, view: View) -> None:
        self._view = view
        for tp, info in view.ends.items():
            self._known_ends[tp, view.topics[tp.topic].id] = info.offset
        self._left -= view.topics.keys()

    def _begin(self, view: View) -> Progress | None:
        marks = self._watch.ask(lambda cluster: starting_marks(cluster, view.topics, self._options))
        return None if marks is None else Progress.initial(marks)

    def _moved(self, base: Progress, view: View) -> bool:
        """Whether anything at all differs from where the stream stands."""
        standing = {tp: end for tp, end in base.ends().items() if tp.topic not in self._left}
        if view.ends.keys() != standing.keys():
            return True
        return any(
            info.offset != standing[tp] and self._capped_end(tp, info.offset) != standing[tp]
            for tp, info in view.ends.items()
        ) or any(
            not same_topic(topic.topic_id, view.topics[name].id)
            for name, topic in base.topics.items()
            if name in view.topics
        )

    def _complete_cap(self, view: View) -> None:
        """Add what the stream stands in and was not to be seen, or not as far as that, when the end
        was fixed: a leader that changes or a broker that starts may not know it for a moment, and
        that is no reason to pass over what there is to read."""
        if self._cap is None or self._owed is None:
            return
        for tp, place in self._owed.items():
            end = view.ends[tp].offset if tp in view.ends else -1
            if end >= 0 and (tp not in self._cap or self._cap[tp] < place <= end):
                self._cap[tp] = end

    def _capped_end(self, tp: TopicPartition, end: int) -> int:
        return end if self._cap is None else min(end, self._cap.get(tp, 0))

    def _step(
        self, base: Progress, view: View, starts: Mapping[TopicPartition, OffsetInfo]
    ) -> _Step:
        step = _Step()
        standing = base.marks()
        self._ask_newest(view)
        for tp, info in view.ends.items():
            if tp not in starts:
                continue
            topic_id = view.topics[tp.topic].id
            mark = standing.get(tp)
            if mark is None:
                step.begins[tp] = starts[tp].offset
            elif self._suspicious(mark, topic_id, starts[tp].offset, info):
                end = info.offset if same_topic(mark.topic_id, topic_id) else mark.offset
                seen = self._watch.cluster.observe(
                    self._range(tp, mark, end), newest=self._newest.get(tp)
                )
                loss = judge(seen)
                if loss is not None and not self._certain(tp, loss, seen):
                    continue
                resumed = None if loss is None else self._resume(loss)
                if resumed is not None:
                    step.begins[tp] = resumed
            self._odd_since.pop(tp, None)
            begin = step.begins.get(tp, mark.offset if mark else 0)
            epoch = -1 if info.leader_epoch is None else info.leader_epoch
            step.ends[tp] = Mark(topic_id, max(begin, self._capped_end(tp, info.offset)), epoch)
        step.gone.update(left_out(base, self._options.strategy))
        for name in base.topics.keys() - view.topics.keys():
            self._missing(name, base, step)
        for name in view.topics:
            self._odd_since.pop(name, None)
        return step

    def _advance(self, base: Progress, step: _Step, everything: bool) -> Progress:
        options = self._options
        standing = base.ends()
        begins = {tp: step.begins.get(tp, standing.get(tp, 0)) for tp in step.ends}
        ends = {tp: mark.offset for tp, mark in step.ends.items()}
        waiting = sum(max(ends[tp] - begins[tp], 0) for tp in ends)
        now = self._clock()
        if waiting and not everything:
            if not self._capped and not due(
                waiting,
                now=now,
                last_trigger=self._last_trigger,
                min_offsets=options.min_offsets_per_trigger,
                max_delay=options.max_trigger_delay,
            ):
                return base
            if options.max_offsets_per_trigger is not None:
                ends = limit(begins, ends, options.max_offsets_per_trigger)
        advanced = base.advance(
            {tp: Mark(mark.topic_id, ends[tp], mark.epoch) for tp, mark in step.ends.items()},
            begins=step.begins,
            gone=step.gone,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
        if advanced is not base:
            self._last_trigger = now
        return advanced

    # -- what is missing

    def _suspicious(self, mark: Mark, topic_id: bytes, start: int, end: OffsetInfo) -> bool:
        return (
            not same_topic(mark.topic_id, topic_id)
            or not start <= mark.offset <= end.offset
            or (mark.epoch >= 0 and end.leader_epoch not in (None, mark.epoch))
        )

    def _range(self, tp: TopicPartition, mark: Mark, end: int) -> Range:
        """What was still to be read: to where this process saw the log grow, else to `end`."""
        known = self._known_ends.get((tp, mark.topic_id), end)
        return Range(
            tp.topic, mark.topic_id, tp.partition, mark.offset, max(mark.offset, known), mark.epoch
        )

    def _certain(self, tp: TopicPartition, loss: Loss, seen: Observation) -> bool:
        if seen.found_topic_id is None:
            return False  # gone since the last look; the next one counts how long
        if loss.cause is not Cause.TRUNCATED:
            return True
        if seen.epoch_end is not None and seen.epoch_end < seen.position:
            return True
        return self._lasted(tp, SHORT_AFTER)

    def _lasted(self, what: str | TopicPartition, seconds: float) -> bool:
        now = self._clock()
        return now - self._odd_since.setdefault(what, now) >= seconds

    def _missing(self, name: str, base: Progress, step: _Step) -> None:
        """A topic that nobody knows any more; it keeps its place, should it come back."""
        if not self._options.strategy.covers(name) or not self._lasted(name, GONE_AFTER):
            return
        topic = base.topics[name]
        for number, place in sorted(topic.partitions.items()):
            tp = TopicPartition(name, number)
            whole = self._range(tp, Mark(topic.topic_id, place.end, place.epoch), place.end)
            loss = judge(
                Observation(name, number, whole.start, whole.end, whole.topic_id, whole.epoch)
            )
            if loss is not None:
                self._resume(loss)
        if isinstance(self._options.strategy, Pattern):
            step.gone.update(TopicPartition(name, number) for number in topic.partitions)
        else:
            self._left.add(name)

    def _resume(self, loss: Loss) -> int | None:
        action = self._options.loss.action(loss.cause)
        resumed = loss.resume(action)
        key = (loss.topic, loss.partition, loss.cause, loss.first)
        if key not in self._told:
            self._told.add(key)
            goes_on = "is left" if resumed is None else f"goes on at offset {resumed}"
            LOGGER.warning(
                "%s failOnDataLoss says %s=%s: the partition %s.",
                loss.sentence(),
                loss.cause.value,
                action.value,
                goes_on,
            )
        return resumed

    def _ask_newest(self, view: View) -> None:
        """Remember how young the logs are: an empty one that was young has been emptied by hand."""
        now = self._clock()
        if self._newest_asked is None or now - self._newest_asked >= _NEWEST_EVERY:
            self._newest = {**self._newest, **self._watch.cluster.newest(view.ends)}
            self._newest_asked = now
