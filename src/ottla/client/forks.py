"""Clients in a child process that was forked.

librdkafka's threads do not come along: what a child sends through its parent's producer goes
nowhere, waiting for anything never ends, and letting go of the client aborts the process. So a
child finds the clients of its parent closed, has in place of librdkafka's side of them something
that refuses every call, and never lets go of the real one.

    keep_out_of_children(owner, name)   the attribute `name` of `owner` is a client of librdkafka's;
                                        `closed` and `forked`, if it has them, are set in children
    LEFT_BEHIND                         what to say to whoever uses one there
"""

from __future__ import annotations

import os
import weakref
from typing import NoReturn

LEFT_BEHIND = (
    "this client belongs to the process that forked this one; make one here, after the fork"
)


class _Refusal:
    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(LEFT_BEHIND)


_owners: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()


def keep_out_of_children(owner: object, name: str) -> None:
    """Close `owner`, and only there, in every process that is forked from this one."""
    _owners[owner] = name


def _in_child() -> None:
    if not _owners:
        return
    import ctypes

    for owner, name in list(_owners.items()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(owner, name)))
        setattr(owner, name, _Refusal())
        for mark in ("closed", "forked"):
            if hasattr(owner, mark):
                setattr(owner, mark, True)
    _owners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
