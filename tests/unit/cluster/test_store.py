from __future__ import annotations

import asyncio

import pytest

from ottla.cluster.store import Create, Loss, check_key, check_ops, covers


def test_a_prefix_covers_itself_and_what_is_below() -> None:
    assert covers("", "anything")
    assert covers("a", "a")
    assert covers("a", "a/b/c")
    assert not covers("a", "ab")
    assert not covers("a/b", "a")


@pytest.mark.parametrize("key", ["", "/", "a/", "/a", "a//b", "a/./b", "..", "\u00e9", "a\tb"])
def test_keys_that_a_backend_could_not_hold_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        check_key(key)


def test_a_key_twice_in_a_commit_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        check_ops((Create("a", b""), Create("a", b"")))


async def test_a_loss_is_awaited_by_many_and_cancelled_by_none() -> None:
    loss = Loss()

    async def wait() -> str:
        await loss
        return "lost"

    impatient, patient = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    assert not loss.happened
    loss.happen()
    loss.happen()
    assert await patient == "lost"
    assert loss.happened
    await loss
