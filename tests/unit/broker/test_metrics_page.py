"""How pages of metrics are made: one at a time, for all who wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ottla.broker.metrics_page import OPENMETRICS, MetricsPage
from ottla.runtime.metrics import Metrics, Reading
from ottla.testing.clock import ManualClock


def page_of(metrics: Metrics) -> MetricsPage:
    return MetricsPage(metrics, ManualClock(), folders=list, failure=lambda: None, missing=dict)


async def test_those_who_ask_meanwhile_get_the_next_page_together() -> None:
    metrics = Metrics()
    made = running = 0

    def collect() -> Iterator[Reading | None]:
        nonlocal made, running
        made += 1
        running += 1
        assert running == 1, "two pages are made at the same time"
        yield None
        yield Reading("pages", "Made so far.", "gauge", (), (((), made),))
        running -= 1

    metrics.collect(collect)
    page = page_of(metrics)
    first = asyncio.ensure_future(page._text({}))
    while not made:
        await asyncio.sleep(0)
    others = [page._text({"accept": OPENMETRICS if n == 0 else ""}) for n in range(16)]
    bodies = [each.body for each in await asyncio.gather(first, *others)]
    assert b"pages 1.0\n" in bodies[0]
    assert made == 3, "the first, and the next one in either format"
    assert len(set(bodies[2:])) == 1
    assert (await page._text({})).body != bodies[2], "nobody gets an old one"
    await page.close()


async def test_who_gives_up_takes_nobody_elses_page_away() -> None:
    page = page_of(Metrics())
    impatient, patient = (asyncio.ensure_future(page._text({})) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    assert b"process_" in (await patient).body
    await page.close()
