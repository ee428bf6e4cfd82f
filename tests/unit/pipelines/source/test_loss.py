"""Why records are missing, told from what was seen; and what is done about it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from ottla.model.ids import ZERO_TOPIC_ID, topic_id_text
from ottla.pipelines.errors import DataLossError, OptionError
from ottla.pipelines.source.loss import Action, Cause, Loss, LossPolicy, Observation, judge

OLD = bytes(range(16))
NEW = bytes(range(1, 17))
WEEK = 7 * 24 * 3600 * 1000

# A reader at 100 that is to stop at 300, of a log that has 0 to 499.
SEEN = Observation(
    topic="orders",
    partition=2,
    position=100,
    end=300,
    topic_id=OLD,
    epoch=4,
    found_topic_id=OLD,
    log_start=0,
    log_end=500,
    retention_ms=WEEK,
    retention_bytes=-1,
    cleanup_policy="delete",
)


def found(**changes: object) -> Loss:
    loss = judge(replace(SEEN, **changes))
    assert loss is not None
    return loss


def test_nothing_is_missing_from_a_log_that_has_the_position() -> None:
    assert judge(SEEN) is None
    assert judge(replace(SEEN, log_start=100)) is None
    assert judge(replace(SEEN, log_end=100)) is None, "everything is read"
    assert judge(replace(SEEN, epoch_end=100)) is None


def test_a_start_that_moved_means_aged_out() -> None:
    loss = found(log_start=220, first_batch=220)
    assert (loss.cause, loss.first, loss.end, loss.count) == (Cause.AGED_OUT, 100, 220, 120)
    assert loss.sentence() == (
        "Offsets 100 to 219 of partition 2 of topic orders (120 records) were removed by retention "
        "(aged out) before being read: the log now starts at 220 (retention.ms=604800000)."
    )


def test_only_what_was_to_be_read_counts_as_lost() -> None:
    loss = found(log_start=450)
    assert (loss.first, loss.end, loss.resume_skip) == (100, 300, 450)


def test_one_record_is_said_in_the_singular() -> None:
    assert (
        "Offset 100 of partition 2 of topic orders (1 record) was"
        in found(log_start=101).sentence()
    )


def test_a_start_inside_a_batch_was_made_by_a_person() -> None:
    loss = found(log_start=220, first_batch=210)
    assert loss.cause is Cause.DELETED
    assert "inside the batch that begins at 210" in loss.sentence()


@pytest.mark.parametrize(
    ("changes", "proof"),
    [
        ({"retention_ms": -1}, "retention.ms=-1 and retention.bytes=-1 keep everything"),
        ({"cleanup_policy": "compact"}, "cleanup.policy=compact removes nothing"),
        ({"log_end": 220, "newest": 10, "now": WEEK}, "its newest record was younger than"),
    ],
)
def test_what_retention_cannot_explain_was_deleted(changes: dict[str, object], proof: str) -> None:
    loss = found(log_start=220, **changes)
    assert loss.cause is Cause.DELETED
    assert proof in loss.sentence()


@pytest.mark.parametrize(
    "changes",
    [
        {"retention_ms": None, "retention_bytes": None, "cleanup_policy": None},
        {"cleanup_policy": "compact,delete"},
        {"retention_ms": -1, "retention_bytes": 1000},
        {"log_end": 220, "newest": 0, "now": WEEK},
        {"log_end": 220, "newest": 10, "now": WEEK, "retention_bytes": 1000},
    ],
)
def test_what_retention_may_explain_is_not_blamed_on_anybody(changes: dict[str, object]) -> None:
    assert found(log_start=220, **changes).cause is Cause.AGED_OUT


def test_a_topic_that_is_gone_was_deleted() -> None:
    loss = found(found_topic_id=None)
    assert loss.cause is Cause.DELETED
    assert loss.evidence == "the topic was deleted"
    assert (loss.first, loss.end) == (100, 300)
    assert loss.resume(Action.SKIP) is None
    assert loss.resume(Action.REWIND) is None


def test_an_unknown_end_leaves_the_count_open() -> None:
    loss = found(found_topic_id=None, end=None)
    assert loss.count == 0
    assert loss.sentence().startswith("Whatever came from offset 100 on of partition 2")


def test_another_id_means_that_the_topic_was_made_anew() -> None:
    loss = found(found_topic_id=NEW, log_start=0, log_end=7)
    assert loss.cause is Cause.RECREATED
    assert topic_id_text(OLD) in loss.sentence()
    assert topic_id_text(NEW) in loss.sentence()
    assert loss.topic_id == NEW
    assert loss.resume(Action.SKIP) == 7, "behind all that is there now"
    assert loss.resume(Action.REWIND) == 0, "with the first record that is there"


@pytest.mark.parametrize(
    ("mine", "theirs"), [(ZERO_TOPIC_ID, NEW), (OLD, ZERO_TOPIC_ID)], ids=["mine", "theirs"]
)
def test_an_id_that_is_not_known_proves_nothing(mine: bytes, theirs: bytes) -> None:
    assert judge(replace(SEEN, topic_id=mine, found_topic_id=theirs)) is None


def test_a_log_that_ends_before_the_position_was_truncated() -> None:
    loss = found(log_end=80)
    assert (loss.cause, loss.first, loss.end) == (Cause.TRUNCATED, 80, 100)
    assert "the log now ends at 80" in loss.sentence()
    assert loss.resume(Action.SKIP) == 80
    assert loss.resume(Action.REWIND) == 0


def test_an_epoch_that_ended_earlier_means_truncated_even_if_the_log_grew_again() -> None:
    loss = found(epoch_end=90)
    assert (loss.cause, loss.first, loss.end) == (Cause.TRUNCATED, 90, 100)
    assert "leader epoch 4" in loss.sentence()
    assert loss.resume(Action.SKIP) == 90


def test_an_epoch_that_nobody_remembers_proves_nothing() -> None:
    assert judge(replace(SEEN, epoch_end=-1)) is None


def test_going_on_after_a_truncation_never_lies_before_the_start() -> None:
    assert found(position=100, log_start=95, log_end=98, epoch_end=90).resume(Action.SKIP) == 95


def test_to_fail_says_what_could_be_chosen_instead() -> None:
    loss = found(log_start=220)
    with pytest.raises(DataLossError, match=r"set failOnDataLoss to aged_out=skip") as caught:
        loss.resume(Action.FAIL)
    assert caught.value.loss == loss
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.loss == loss


def test_true_fails_always_and_false_never() -> None:
    assert {LossPolicy.parse("TRUE").action(cause) for cause in Cause} == {Action.FAIL}
    never = LossPolicy.parse(" false ")
    assert str(never) == "aged_out=skip,deleted=skip,recreated=rewind,truncated=skip"


def test_a_choice_per_cause_leaves_the_others_failing() -> None:
    policy = LossPolicy.parse("aged_out=skip, Recreated = REWIND")
    assert policy == LossPolicy(aged_out=Action.SKIP, recreated=Action.REWIND)
    assert policy.action(Cause.DELETED) is Action.FAIL
    assert LossPolicy.parse(str(policy)) == policy


@pytest.mark.parametrize("text", ["", "yes", "aged_out", "aged_out=", "old=skip", "deleted=maybe"])
def test_another_value_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        LossPolicy.parse(text)
    assert caught.value.option == "failOnDataLoss"
    for word in ("aged_out", "truncated", "fail", "skip", "rewind"):
        assert word in str(caught.value)


def test_a_cause_is_named_once() -> None:
    with pytest.raises(OptionError, match="names deleted twice"):
        LossPolicy.parse("deleted=skip,deleted=fail")
