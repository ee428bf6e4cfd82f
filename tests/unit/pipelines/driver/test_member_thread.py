"""The thread of a member, with a coordinator that answers what no coordinator should."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from ottla.pipelines.driver.member import Member, new_member_id
from ottla.pipelines.driver.membership import Membership


class Coordinator:
    """Lets the member in, and then sends nonsense."""

    def __init__(self) -> None:
        self.router = self
        self._answers = [
            SimpleNamespace(
                error_code=0, error_message=None, member_epoch=1, heartbeat_interval_ms=1,
                assignment=None,
            )
        ]  # fmt: skip

    def coordinator(self, group: str) -> Coordinator:
        return self

    def retried(self, call: Any) -> Any:
        return call()

    def ask(self, request: Any) -> Any:
        if not self._answers:
            raise ValueError("nonsense")
        return self._answers.pop()


def test_a_thread_that_cannot_go_on_ends_the_run_instead_of_leaving_it_without_heartbeats() -> None:
    lost, why = threading.Event(), []
    groups: Any = Coordinator()
    member = Member(
        groups,
        Membership("ottla-orders", new_member_id()),
        "orders",
        lost=lambda text: (why.append(text), lost.set()),
    )
    member.join()
    assert lost.wait(60)
    assert "ValueError: nonsense" in why[0]
    assert member.flush(10)
