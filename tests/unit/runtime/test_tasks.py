"""Tasks: an end that nobody awaits is told, being stopped is not."""

from __future__ import annotations

import asyncio

import pytest

from ottla.runtime.tasks import Tasks


async def fail() -> None:
    raise ValueError("no")


async def end() -> None:
    return


async def wait() -> None:
    await asyncio.Event().wait()


async def run(work, endless, told):
    deaths = []
    tasks = Tasks(lambda what, error: deaths.append((what, str(error))))
    await asyncio.wait([tasks.start("it", work(), endless=endless)])
    await asyncio.sleep(0)
    assert deaths == ([] if told is None else [("it", told)])


@pytest.mark.parametrize(
    ("work", "endless", "told"),
    [(fail, False, "no"), (fail, True, "no"), (end, True, "None"), (end, False, None)],
)
def test_who_dies_is_told(work, endless, told):
    asyncio.run(run(work, endless, told))


def test_being_cancelled_is_no_death():
    deaths = []

    async def scenario() -> None:
        task = Tasks(lambda *death: deaths.append(death)).start("it", wait(), endless=True)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(scenario())
    assert deaths == []
