"""Clients in a child process that was forked.

librdkafka's threads do not come along: what a child sends through its parent's producer goes
nowhere, waiting for it never ends, and letting go of the client aborts the process. So a child
finds the clients of its parent closed, and librdkafka's side of them is never let go of.

    keep_out_of_children(owner)   an `Inbox` or `Outbox`; `closed` is set in forked children
    LEFT_BEHIND                   what to say to whoever uses one there
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

LEFT_BEHIND = (
    "this client belongs to the process that forked this one; make one here, after the fork"
)


class Owner(Protocol):
    closed: bool
    forked: bool

    @property
    def handle(self) -> Any: ...


_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_out_of_children(owner: Owner) -> None:
    """Close `owner`, and only there, in every process that is forked from this one."""
    _owners.add(owner)


def _in_child() -> None:
    if not _owners:
        return
    import ctypes

    for owner in list(_owners):
        owner.closed = owner.forked = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner.handle))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
