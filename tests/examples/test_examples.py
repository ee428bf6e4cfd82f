"""The examples do what they say: each is run against a broker, and its claims are checked.

Each is run twice: its `run` here, where what came of it can be looked at, and as the program that a
reader would start, whose output is compared with what the page of the examples shows.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Broker

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


# -- delivery semantics ------------------------------------------------------------------------


def test_at_most_once_loses_what_was_committed_but_not_done(broker: Broker) -> None:
    program = example("delivery_semantics")
    outcome = program["run"](program["AT_MOST_ONCE"], broker.bootstrap)
    assert outcome.killed == [f"order {n}" for n in (1, 2, 3, 4, 5)]
    assert outcome.successor == [f"order {n}" for n in (7, 8, 9, 10)]
    assert outcome.lost == ["order 6"]
    assert outcome.repeated == []


def test_at_least_once_repeats_what_was_done_but_not_committed(broker: Broker) -> None:
    program = example("delivery_semantics")
    outcome = program["run"](program["AT_LEAST_ONCE"], broker.bootstrap)
    assert outcome.killed == [f"order {n}" for n in (1, 2, 3, 4, 5)]
    assert outcome.successor == [f"order {n}" for n in (4, 5, 6, 7, 8, 9, 10)]
    assert outcome.lost == []
    assert outcome.repeated == ["order 4", "order 5"]


def test_exactly_once_repeats_what_was_aborted_and_nobody_sees_it_twice(broker: Broker) -> None:
    program = example("exactly_once")
    outcome = program["run"](broker.bootstrap)
    assert outcome.committed == program["ORDERS"]
    assert outcome.aborted == ["order 4", "order 5"]


# -- keys --------------------------------------------------------------------------------------


def test_records_of_one_key_are_in_one_partition_in_the_order_in_which_they_were_sent(
    broker: Broker,
) -> None:
    program = example("keys_and_ordering")
    outcome = program["run"](broker.bootstrap)
    assert sorted((record.key, record.value) for record in outcome.read) == sorted(outcome.sent)
    for parcel in program["PARCELS"]:
        assert len(outcome.partitions_of(parcel)) == 1
        assert outcome.events_of(parcel) == program["EVENTS"]


def test_a_partition_keeps_the_order_of_all_its_keys(broker: Broker) -> None:
    program = example("keys_and_ordering")
    outcome = program["run"](broker.bootstrap)
    used = {record.partition for record in outcome.read}
    assert len(used) > 1, "the example shows nothing when all of it is in one partition"
    for partition in used:
        read = [record for record in outcome.read if record.partition == partition]
        keys = {record.key for record in read}
        assert [record.offset for record in read] == list(range(len(read)))
        assert [(record.key, record.value) for record in read] == [
            p for p in outcome.sent if p[0] in keys
        ]


# -- groups ------------------------------------------------------------------------------------


def test_a_consumer_too_many_is_idle_until_another_leaves(broker: Broker) -> None:
    program = example("more_consumers_than_partitions")
    outcome = program["run"](broker.bootstrap)
    [idle] = outcome.idle
    assert sorted(map(len, outcome.before.values())) == [0, 1, 1, 1]
    assert outcome.leaver != idle
    assert outcome.after.keys() == outcome.before.keys() - {outcome.leaver}
    assert len(outcome.after[idle]) == 1
    for owners in (outcome.before, outcome.after):
        read = sorted(number for numbers in owners.values() for number in numbers)
        assert read == list(range(program["PARTITIONS"])), "each partition has one reader"


def test_a_consumer_that_comes_back_goes_on_where_it_left(broker: Broker) -> None:
    outcome = example("leave_and_come_back")["run"](broker.bootstrap)
    chapters = [f"chapter {number}" for number in range(1, 7)]
    assert outcome.first_visit == chapters[:3]
    assert outcome.committed == 3
    assert outcome.second_visit == chapters[3:]
    assert outcome.from_the_start == chapters


def test_each_of_several_groups_gets_everything_at_its_own_pace(broker: Broker) -> None:
    program = example("several_groups")
    outcome = program["run"](broker.bootstrap)
    assert outcome.shipping_at_first == program["ORDERS"][:2]
    assert outcome.billing == outcome.shipping == outcome.audit == program["ORDERS"]


def test_readers_of_one_group_share_the_records_of_a_queue(broker: Broker) -> None:
    program = example("queue_and_publish_subscribe")
    outcome = program["run"](("workers", "workers"), broker.bootstrap)
    assert outcome.first
    assert outcome.second
    assert sorted(outcome.first + outcome.second) == sorted(program["TASKS"])


def test_readers_of_different_groups_each_get_every_record(broker: Broker) -> None:
    program = example("queue_and_publish_subscribe")
    outcome = program["run"](("mail", "statistics"), broker.bootstrap)
    assert sorted(outcome.first) == sorted(outcome.second) == sorted(program["TASKS"])


# -- as programs -------------------------------------------------------------------------------


def shown(name: str) -> str:
    """What the page of the examples says that one prints."""
    page = (EXAMPLES / "README.md").read_text()
    section = page.partition(f"\n[{name}.py]({name}.py): ")[2].partition("\n## ")[0]
    found = re.search(r"^```text\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found is not None, f"examples/README.md does not show what {name}.py prints"
    return found[1]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_its_page_shows(name: str, broker: Broker) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env={**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout == shown(name)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_what_it_shows_and_the_concepts_lead_to_it(name: str) -> None:
    first, _, rest = (example(name)["__doc__"] or "").partition("\n")
    assert first.endswith(".")
    assert rest.strip()
    concepts = (EXAMPLES.parent / "docs" / "concepts.md").read_text()
    assert f"(../examples/{name}.py)" in concepts
