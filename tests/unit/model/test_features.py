"""Which feature levels a cluster may have, and what they allow."""

from __future__ import annotations

import pytest

from ottla.model.features import (
    FORMATS,
    REASSIGNMENT,
    SUPPORTED,
    TRANSACTIONS,
    allows,
    initial,
    newest,
    objection,
    supported,
    unreadable,
)

OLDER = {"metadata.version": 29, "group.version": 1, "eligible.leader.replicas.version": 1}


def test_a_new_cluster_has_the_newest_levels_and_an_older_one_keeps_its_own() -> None:
    levels = initial({})
    assert levels == {name: known[-1] for name, known in SUPPORTED.items()}
    assert initial(OLDER) == {}
    assert newest(levels) == {}
    assert newest(OLDER) == {FORMATS: 1, TRANSACTIONS: 2}


def test_what_an_older_cluster_has_not_heard_of_is_off() -> None:
    assert not allows(OLDER, FORMATS, REASSIGNMENT)
    assert not allows(OLDER, TRANSACTIONS, 0)
    assert allows({**OLDER, TRANSACTIONS: 0}, TRANSACTIONS, 0)
    assert allows({}, FORMATS, REASSIGNMENT), "nobody has agreed on anything: a new cluster"


def test_every_broker_has_to_know_a_level() -> None:
    brokers = {1: supported(), 2: {}}
    why = objection(OLDER, FORMATS, 1, downgrade=False, brokers=brokers)
    assert why == (
        f"Invalid update version 1 for feature {FORMATS}. "
        "Broker 2 does not support this feature."
    )  # fmt: skip
    brokers[2] = {FORMATS: (0, 0)}
    why = objection(OLDER, FORMATS, 1, downgrade=False, brokers=brokers)
    assert why is not None
    assert why.endswith("Broker 2 only supports versions 0-0")
    brokers[2] = supported()
    assert objection(OLDER, FORMATS, 1, downgrade=False, brokers=brokers) is None
    # A level of 0 is something else than never having heard of it.
    assert objection(OLDER, TRANSACTIONS, 0, downgrade=False, brokers=brokers) is None
    assert objection(OLDER, TRANSACTIONS, 0, downgrade=False, brokers={2: {}}) is not None


def test_there_is_no_way_back_while_partitions_are_reassigned() -> None:
    levels = {**OLDER, FORMATS: 1}
    why = objection(levels, FORMATS, 0, downgrade=True, reassigning=True)
    assert why is not None
    assert "Partitions are being reassigned" in why
    assert objection(levels, FORMATS, 0, downgrade=True) is None


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        ({"x": 1}, "the cluster has finalized x at 1, which this version does not know"),
        ({FORMATS: 9}, f"the cluster has finalized {FORMATS} at 9, and this version knows 0 to 1"),
        (OLDER, None),
    ],
)
def test_a_cluster_with_levels_that_are_too_new_is_told(
    levels: dict[str, int], why: str | None
) -> None:
    assert unreadable(levels) == why
