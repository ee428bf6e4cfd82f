"""What a broker tells over HTTP: `/metrics`, `/healthz` and `/readyz` (`metrics.listen`).

/metrics   Everything that is counted, in Prometheus' text format, or in OpenMetrics' for those who
           ask for that. The numbers are read on the loop, with turns for others in between; the
           text is made in a thread, one page at a time: those who ask while one is being made get
           the next one, all the same. The library that makes it is loaded with the first page, so
           that the start does not wait for it
           ([why a library](../../docs/adr/0025-metrics-are-plain-integers.md)).
/healthz   200 as long as the process lives, its event loop turns and nothing in it has died: a
           broker that does not answer here, or not with 200, is to be started again.
/readyz    200 while clients are served: the broker is registered, was admitted by the controller,
           has lost no data folder and is not stopping. Else 503, and what is missing.

A port that is taken is no reason to serve no clients: it is logged, and the broker goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from ottla.broker.addresses import not_bound
from ottla.broker.series_metering import volumes
from ottla.net.http import Fields, HttpServer, Page
from ottla.runtime.clock import Clock
from ottla.runtime.metrics import Metrics, Reading

logger = logging.getLogger(__name__)

OPENMETRICS = "application/openmetrics-text"
_INDEX = b"""\
/metrics   what is counted, for Prometheus
/healthz   whether the broker is alive
/readyz    whether it serves clients, and what is missing
"""
_ELSEWHERE = "name another address with metrics.listen"


class MetricsPage:
    """The pages of one broker. `await open()`; `await close()` at the end."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        *,
        folders: Callable[[], Sequence[str]],
        failure: Callable[[], str | None],
        missing: Callable[[], dict[str, str]],
    ) -> None:
        self._metrics = metrics
        self._folders = folders
        self._failure = failure
        self._missing = missing
        self._server = HttpServer(
            {
                "/": self._index,
                "/metrics": self._text,
                "/healthz": self._health,
                "/readyz": self._readiness,
            },
            clock,
        )
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="ottla-metrics")
        self._one_at_a_time = asyncio.Lock()
        self._next: dict[str, asyncio.Task[Page]] = {}  # by format: pages that are not begun
        self._pages: set[asyncio.Task[Page]] = set()  # these, and the one that is being made
        self.address: tuple[str, int] | None = None  # while it is served

    async def open(self, host: str, port: int) -> None:
        """Serve the pages, if the address can be had."""
        try:
            address = self._server.bind(host, port)
        except (OSError, UnicodeError) as error:
            why = not_bound(host, port, error, _ELSEWHERE)
            logger.warning("metrics are not served: %s", why)
            return
        await self._server.start()
        self.address = address

    @property
    def url(self) -> str | None:
        """Where the metrics are, for people."""
        if self.address is None:
            return None
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    async def close(self) -> None:
        self.address = None
        await self._server.close()
        for page in tuple(self._pages):
            page.cancel()
        await asyncio.gather(*self._pages, return_exceptions=True)
        self._maker.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ the pages

    async def _index(self, _fields: Fields) -> Page:
        return Page(_INDEX)

    async def _text(self, fields: Fields) -> Page:
        wanted = OPENMETRICS if OPENMETRICS in fields.get("accept", "") else ""
        page = self._next.get(wanted)
        if page is None:
            page = asyncio.get_running_loop().create_task(self._make(wanted))
            self._next[wanted] = page
            self._pages.add(page)
            page.add_done_callback(self._pages.discard)
        return await asyncio.shield(page)

    async def _make(self, wanted: str) -> Page:
        async with self._one_at_a_time:
            del self._next[wanted]  # whoever asks from now on wants newer numbers
            readings = []
            for reading in self._metrics.read():
                if reading is None:
                    await asyncio.sleep(0)
                else:
                    readings.append(reading)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._maker, _made, readings, tuple(self._folders()), wanted
            )

    async def _health(self, _fields: Fields) -> Page:
        failure = self._failure()
        if failure is None:
            return Page.of_json({"status": "ok"})
        return Page.of_json({"status": "failed", "why": failure}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def _readiness(self, _fields: Fields) -> Page:
        missing = self._missing()
        if not missing:
            return Page.of_json({"ready": True})
        return Page.of_json({"ready": False, "missing": missing}, HTTPStatus.SERVICE_UNAVAILABLE)


def _made(readings: Sequence[Reading], folders: Sequence[str], wanted: str) -> Page:
    from ottla.runtime.exposition import text

    return Page(*text([*readings, *volumes(folders)], wanted))


def documented(metrics: Metrics, folders: Sequence[str]) -> list[Reading]:
    """Everything that the page has of a broker."""
    from ottla.runtime.exposition import of_process

    readings = [reading for reading in metrics.read() if reading is not None]
    return [*readings, *volumes(folders), *of_process()]
