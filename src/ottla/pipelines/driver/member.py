"""The driver as a member of its pipeline's group: joining, heartbeats, commits, leaving.

    member = Member(groups, Membership("ottla-orders", id, topics), lost=stop)
    member.join()                  # `Refused` when another driver is the member
    member.commit(offsets)         # soon, the newest only; returns at once
    member.leave()

A thread does the talking, so that no batch waits for a coordinator. A cluster that cannot be
reached is waited for: whether we are still a member is for the group to say once it answers, and
until then the checkpoint protects the rows. When it says that we are not, `lost` is called once,
in that thread.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from ottla.client.groups import CommittedOffset, GroupMember, Groups
from ottla.client.retry import is_retriable
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.driver.home import Refused
from ottla.pipelines.driver.membership import INSTANCE, Lost, Membership
from ottla.pipelines.outage import Outage

LOGGER = logging.getLogger("ottla.pipelines.driver")

_PAUSE: Final = 1.0
"""Seconds between two attempts to reach the coordinator."""
_PREFIX: Final = "ottla-pipeline@"
_UUID: Final = 36


def client_id() -> str:
    """Who this driver is, for whoever looks at the group: machine and process."""
    return f"{_PREFIX}{socket.gethostname()}:{os.getpid()}"


def new_member_id() -> str:
    """For a pipeline's folder, made once; another machine with the same folder makes another."""
    return f"{socket.gethostname()}-{uuid.uuid4()}"


def is_ours(member: str) -> bool:
    """Whether a remembered member id was made on this machine."""
    return member[:-_UUID] == f"{socket.gethostname()}-"


def who(member: GroupMember) -> str:
    """A driver in words."""
    machine, colon, process = member.client.removeprefix(_PREFIX).rpartition(":")
    if member.client.startswith(_PREFIX) and colon:
        return f"process {process} on {machine} ({member.host.removeprefix('/')})"
    return f"client {member.client} at {member.host.removeprefix('/')}"


class Member:
    """One driver's membership, kept up by a thread."""

    def __init__(
        self,
        groups: Groups,
        membership: Membership,
        pipeline: str,
        *,
        lost: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._membership = membership
        self._pipeline = pipeline
        self._lost = lost
        self._outage = Outage(LOGGER, f"The member of group {membership.group}")
        self._changed = threading.Condition()
        self._wanted: Mapping[TopicPartition, CommittedOffset] | None = None
        self._busy = False
        self._over = False
        self._trouble: str | None = None
        self._refused: str | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"member of {membership.group}", daemon=True
        )

    @property
    def trouble(self) -> str | None:
        """Why the coordinator could not be asked the last time; None when it could."""
        return self._trouble

    def join(self) -> None:
        """Become the group's member, and stay it; `Refused` when another driver is."""
        try:
            self._beat()
        except Lost as refused:
            if refused.code is not ErrorCode.UNRELEASED_INSTANCE_ID:
                group = self._membership.group
                raise Refused(
                    self._pipeline, f"is not let into its group {group}: {refused}"
                ) from None
            self._follow_myself()
        self._thread.start()

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Show these offsets, soon; what was given before and is not committed yet is forgotten."""
        with self._changed:
            self._wanted = offsets
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything is committed; False when that takes too long."""
        with self._changed:
            return self._changed.wait_for(
                lambda: (self._wanted is None and not self._busy) or self._over, timeout
            )

    def leave(self) -> None:
        """Be no member any more, if the group can be told."""
        with self._changed:
            was, self._over = self._over, True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_PAUSE)
        if was or not self._membership.joined:
            return
        try:
            self._groups.router.coordinator(self._membership.group).ask(self._membership.leave())
        except KafkaError as error:
            LOGGER.warning("Group %s was not told of the end: %s", self._membership.group, error)

    # -- in the thread

    def _run(self) -> None:
        due = 0.0 if self._membership.settling else self._membership.interval
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._wanted is not None, due)
                if self._over:
                    return
                wanted, self._wanted = self._wanted, None
                self._busy = wanted is not None
            again = True
            try:
                if wanted is not None:
                    again = self._commit(wanted)
                self._beat()
                due = 0.0 if self._membership.settling else self._membership.interval
                self._outage.over()
                self._trouble = None
            except Lost as lost:
                self._end(lost)
                return
            except KafkaError as error:
                due = _PAUSE
                self._membership.failed()
                self._trouble = error.message or error.code.text
                self._outage.note(self._trouble)
            except Exception as error:
                if self._over:  # whoever left has closed the connections
                    return
                # Without heartbeats another driver would be let in, beside this one.
                LOGGER.exception("The member of group %s has failed.", self._membership.group)
                self._give_up(
                    f"its member of group {self._membership.group} has failed "
                    f"({type(error).__name__}: {error})"
                )
                return
            with self._changed:
                if again and wanted is not None and self._wanted is None:
                    self._wanted = wanted
                self._busy = False
                self._changed.notify_all()
                if again and wanted is not None:
                    self._changed.wait_for(lambda: self._over, _PAUSE)

    def _beat(self) -> None:
        def ask() -> None:
            coordinator = self._groups.router.coordinator(self._membership.group)
            try:
                answer = coordinator.ask(self._membership.beat())
            except KafkaError:
                self._membership.failed()
                raise
            self._membership.take(answer)

        self._groups.router.retried(ask)

    def _commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Whether it is to be tried again."""
        request = self._membership.commit(offsets)
        try:
            answer = self._groups.router.coordinator(self._membership.group).ask(request)
            self._membership.committed(answer)
        except KafkaError as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH or is_retriable(error.code):
                return True
            if self._refused != str(error):
                self._refused = str(error)
                LOGGER.warning(
                    "Group %s does not show how far pipeline %s has come: %s. The checkpoint is "
                    "not affected.",
                    self._membership.group,
                    self._pipeline,
                    error,
                )
        return False

    def _give_up(self, why: str) -> None:
        with self._changed:
            self._over = True
            self._busy = False
            self._changed.notify_all()
        self._lost(why)

    def _end(self, lost: Lost) -> None:
        holder = self._holder()
        instead = f"; it has {who(holder)} now" if holder is not None else ""
        self._give_up(
            f"group {self._membership.group} does not have this driver as its member any more "
            f"({lost}){instead}"
        )

    def _follow_myself(self) -> None:
        """Go on as the driver before us, if the member is that one: it was killed.

        Nobody else has the id: it is in the pipeline's folder, whose lock we hold.
        """
        member = self._holder(patiently=True)
        if member is None:  # gone this very moment
            self._beat()
            return
        if member.id != self._membership.member or member.epoch is None:
            raise Refused(
                self._pipeline,
                f"is run by {who(member)} already: the group {self._membership.group} has that "
                "driver as its member (UNRELEASED_INSTANCE_ID). Stop it there, or, if it is gone, "
                "wait until its session has ended, 45 s unless the broker says otherwise",
            )
        self._membership.resume(member.epoch)
        self._beat()

    def _holder(self, *, patiently: bool = False) -> GroupMember | None:
        """The driver that the group has as its member."""
        try:
            group = self._membership.group
            members = self._groups.describe(group)[group].members
        except KafkaError as error:
            if patiently and error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return None
        return next((each for each in members if each.instance == INSTANCE), None)
