"""The driver in its group, on a real broker and without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import CommittedOffset, Groups
from ottla.client.router import Router
from ottla.model.ids import TopicPartition
from ottla.pipelines.driver.home import Refused
from ottla.pipelines.driver.member import Member, client_id, is_ours, new_member_id
from ottla.pipelines.driver.membership import Membership


class Drivers:
    """Members of one group, each with connections of its own, as in processes of their own."""

    def __init__(self, bootstrap: str, group: str, topics: tuple[str, ...]) -> None:
        self.group = group
        self.lost = threading.Event()
        self.why: list[str] = []
        self._bootstrap = bootstrap
        self._topics = topics
        self._open: list[Groups] = []

    def __call__(self, member: str) -> Member:
        self._open.append(Groups(self._bootstrap, client_id=client_id()))
        membership = Membership(self.group, member, self._topics)
        return Member(self._open[-1], membership, "orders", lost=self._note)

    def _note(self, why: str) -> None:
        self.why.append(why)
        self.lost.set()

    def kill(self) -> None:
        """The connections of the last one end, without a word to the group."""
        self._open[-1].close()

    def close(self) -> None:
        for each in self._open:
            each.close()


@pytest.fixture
def drivers(bootstrap: str, unique: Callable[..., str]) -> Iterator[Drivers]:
    topic = unique()
    with DirectAdmin(bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 2, 1))
    found = Drivers(bootstrap, f"ottla-{topic}", (topic,))
    yield found
    found.close()


def test_the_driver_is_a_member_that_tools_see_and_its_commits_too(
    bootstrap: str, drivers: Drivers, eventually: Any
) -> None:
    member = drivers(new_member_id())
    member.join()
    [topic] = drivers._topics
    first = TopicPartition(topic, 0)
    member.commit({first: CommittedOffset(7, None, "ottla pipeline r batch 1")})
    assert member.flush(30)
    with Groups(bootstrap) as groups:

        def settled() -> bool:
            described = groups.describe(drivers.group)[drivers.group]
            [one] = described.members
            assert (one.instance, one.client) == ("driver", client_id())
            return described.state == "Stable" and len(one.assignment) == 2

        eventually(settled)
        assert groups.offsets(drivers.group) == {
            first: CommittedOffset(7, None, "ottla pipeline r batch 1")
        }
        member.leave()
        assert groups.describe(drivers.group)[drivers.group].idle
        assert groups.offsets(drivers.group)[first].offset == 7
    assert not drivers.lost.is_set()


def test_a_second_driver_is_told_who_runs(drivers: Drivers) -> None:
    first = drivers(new_member_id())
    first.join()
    with pytest.raises(Refused, match=r"UNRELEASED_INSTANCE_ID") as refused:
        drivers(new_member_id()).join()
    machine, process = client_id().removeprefix("ottla-pipeline@").rsplit(":", 1)
    assert f"is run by process {process} on {machine} (127.0.0.1)" in str(refused.value)
    first.leave()
    second = drivers(new_member_id())
    second.join()
    second.leave()


def test_a_driver_that_was_killed_is_followed_at_once_by_one_of_the_same_folder(
    bootstrap: str, drivers: Drivers, eventually: Any
) -> None:
    name = new_member_id()
    assert is_ours(name)
    killed = drivers(name)
    killed.join()
    killed._over = True  # no more heartbeats
    drivers.kill()
    follower = drivers(name)
    follower.join()
    [topic] = drivers._topics
    follower.commit({TopicPartition(topic, 1): CommittedOffset(3)})
    assert follower.flush(30)
    with Groups(bootstrap) as groups:
        assert groups.offsets(drivers.group)[TopicPartition(topic, 1)].offset == 3
        [one] = groups.describe(drivers.group)[drivers.group].members
        assert one.id == name
    follower.leave()


def test_a_driver_that_is_put_out_of_its_group_says_so_once(
    bootstrap: str, drivers: Drivers
) -> None:
    name = new_member_id()
    member = drivers(name)
    member.join()
    with Router(bootstrap) as router:
        # What an administrator's tool does: the coordinator forgets the member.
        leaving = Membership(drivers.group, name).leave()
        router.coordinator(drivers.group).ask(leaving)
    [topic] = drivers._topics
    member.commit({TopicPartition(topic, 0): CommittedOffset(1)})  # at once, not with the beat
    assert drivers.lost.wait(60)
    assert len(drivers.why) == 1
    assert (
        f"group {drivers.group} does not have this driver as its member any more" in drivers.why[0]
    )
    member.leave()


def test_a_pipeline_without_topics_has_a_group_too(bootstrap: str, unique: Any) -> None:
    drivers = Drivers(bootstrap, f"ottla-{unique()}", ())
    member = drivers(new_member_id())
    member.join()
    with Groups(bootstrap) as groups:
        assert len(groups.describe(drivers.group)[drivers.group].members) == 1
    member.leave()
    drivers.close()
