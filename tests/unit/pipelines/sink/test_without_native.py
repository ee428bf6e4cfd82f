"""Where the native code was not built the writer works, and says that it is slow."""

from __future__ import annotations

import pytest

from ottla.pipelines.sink.writer import OttlaStreamWriter, OttlaWriter, Written


def commit(kind: type, messages: list[Written | None]) -> None:
    writer = kind.__new__(kind)
    if kind is OttlaStreamWriter:
        writer.commit(messages, 7)
    else:
        writer.commit(messages)


@pytest.mark.parametrize("kind", [OttlaWriter, OttlaStreamWriter])
def test_the_driver_says_which_machines_have_no_native_code(kind, caplog):
    slow = Written(1, 1, 1, 1, plain=f"{kind.__name__}'s worker (the native code is not there)")
    fast = Written(1, 1, 1, 1)
    for _ in range(3):  # micro-batches of one stream
        commit(kind, [slow, fast, slow, None])
    [line] = caplog.messages
    assert line == (
        "2 of 4 tasks made record batches in plain Python, some forty times slower, on "
        f"{kind.__name__}'s worker (the native code is not there)."
    )


@pytest.mark.parametrize("kind", [OttlaWriter, OttlaStreamWriter])
def test_the_driver_is_silent_where_all_is_well(kind, caplog):
    commit(kind, [Written(1, 1, 1, 1), None])
    assert caplog.messages == []
