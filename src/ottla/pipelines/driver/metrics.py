"""What a pipeline counts, for Prometheus: `/metrics`, on loopback unless told otherwise.

`METRICS` is the list of all names; a test holds it equal to the table in docs/pipelines/run.md.
An address that is taken is no reason not to move rows: it is logged, and the pipeline goes on. Nor
are strangers who connect and say nothing: no more than `MOST_CONNECTIONS` are open, each with a
thread, and a new one closes the oldest.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

from ottla.pipelines.driver.progress import OVER, Figures, State
from ottla.runtime.metrics import Reading

LOGGER = logging.getLogger("ottla.pipelines.driver")

PATH: Final = "/metrics"
_OPENMETRICS: Final = "application/openmetrics-text"
_PATIENCE: Final = 5.0
MOST_CONNECTIONS: Final = 16


class Metric(NamedTuple):
    """One metric: its name, kind and help, and where `Figures` or `_STATES` have its value."""

    name: str
    kind: str
    value: str
    help: str


_STATES: Final[Mapping[str, Callable[[State], bool]]] = {
    "is up": lambda state: state not in OVER and state is not State.STARTING,
    "waits": lambda state: state is State.WAITING,
}

METRICS: Final = tuple(
    Metric(f"ottla_pipeline_{name}", *rest)
    for name, *rest in (
        ("up", "gauge", "is up", "1 while the query runs, waiting included."),
        ("waiting", "gauge", "waits", "1 while something is away and is waited for."),
        ("rows_total", "counter", "rows", "Rows read from the source in this run."),
        ("written_rows_total", "counter", "written", "Rows the sink has taken in this run."),
        ("dead_letters_total", "counter", "letters", "Dead letters of this run."),
        ("rows_per_second", "gauge", "rows_per_second", "Rows read a second, over ten seconds."),
        ("batch", "gauge", "batch", "The number of the last finished batch."),
        ("batch_seconds", "gauge", "batch_seconds", "How long the last batch took."),
        ("lag_records", "gauge", "lag", "Records of its topics still to be read."),
        ("lag_seconds", "gauge", "lag_seconds", "The age of the next record to be read."),
        ("start_time_seconds", "gauge", "started", "When this run began, since the epoch."),
        ("last_error_time_seconds", "gauge", "error_at", "When something went wrong last."),
    )
)


def readings(figures: Figures) -> Iterator[Reading]:
    """Everything that is known at this moment."""
    for each in METRICS:
        state = _STATES.get(each.value)
        value = getattr(figures, each.value) if state is None else state(figures.state)
        series = () if value is None else (((figures.pipeline,), float(value)),)
        yield Reading(each.name, each.help, each.kind, ("pipeline",), series)


class _Bounded(ThreadingHTTPServer):
    """With a bound on connections, and so on threads and descriptors, which the pipeline needs."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            for oldest in list(self._open)[:-MOST_CONNECTIONS]:
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        gone = isinstance(sys.exception(), OSError)
        LOGGER.log(
            logging.DEBUG if gone else logging.ERROR,
            "The page for metrics was not given to %s.",
            client_address,
            exc_info=True,
        )


class MetricsServer:
    """Serves the figures of one pipeline, each request in a thread of its own."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures
        self._server: HTTPServer | None = None

    def open(self, host: str, port: int) -> str | None:
        """Serve; returns the page's address, None when it cannot be had."""
        figures = self._figures

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != PATH:
                    self.send_error(404, f"there is only {PATH}")
                    return
                from ottla.runtime.exposition import text

                accepted = self.headers.get("Accept", "")
                body, kind = text(
                    readings(figures()), _OPENMETRICS if _OPENMETRICS in accepted else ""
                )
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name for it
                LOGGER.debug(format, *args)

        try:
            self._server = _Bounded((host, port), Handler)
        except OSError as error:
            LOGGER.warning(
                "Metrics are not served at %s:%s: %s. Name another address with --metrics.",
                host,
                port,
                error.strerror or error,
            )
            return None
        threading.Thread(
            target=self._server.serve_forever, name="metrics of the pipeline", daemon=True
        ).start()
        return f"http://{host}:{self._server.server_port}{PATH}"

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
