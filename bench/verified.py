"""`ottla verify run` on three brokers of each system, while these are killed and restarted.

What the harness calls wrong must be wrong for Apache Kafka too: on a cluster that does what Kafka
promises it finds nothing. The same three things happen to both systems, one after the other, each
to another broker: SIGKILL and a start, SIGSTOP for some seconds, SIGTERM and a start.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.processes import BenchError, Child, wait_port
from bench.systems import new_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date
    from pathlib import Path

    from bench.systems import Cluster, System

HISTORY = "verify.history.gz"
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
_START_TIMEOUT = 240.0
_END_TIMEOUT = 300.0
_CALM = 6.0
_DOWN = 3.0
_STILL = 8.0
_WRITERS = 40
_SOME_EVENTS = 5_000
"""Bytes of the history, when everybody has begun."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the harness said of one system."""

    system: str
    report: Mapping[str, Any]

    @property
    def anomalies(self) -> int:
        return len(self.report["anomalies"]) + int(self.report["left_out"])


def verify(system: System, folder: Path) -> Told:
    """Run the harness on a new cluster of a system. Raises BenchError when it says nothing."""
    cluster = new_cluster(folder, 3)
    system.prepare_cluster(cluster, SETTINGS)
    with ExitStack() as running:
        store = system.start_store(cluster)
        if store is not None:
            running.enter_context(store)
            wait_port(cluster.store_port, store, _START_TIMEOUT)
        brokers = _Brokers(system, cluster)
        running.callback(brokers.stop)
        brokers.start_all()
        output = folder / "verify.json"
        command = [sys.executable, "-m", "ottla", "verify", "run", "--json"]
        history = folder / HISTORY
        command += ["--bootstrap", cluster.bootstrap]
        command += ["--writers", str(_WRITERS), "--history", str(history)]
        harness = running.enter_context(Child("ottla verify run", command, output=output))
        _wait_begun(harness, history)
        brokers.trouble()
        harness.process.send_signal(signal.SIGINT)  # it ends the run and judges it
        harness.process.wait(_END_TIMEOUT)
        return Told(system.name, report_in(output.read_text(errors="replace")))


def _wait_begun(harness: Child, history: Path) -> None:
    """Wait until clients write and read."""
    deadline = time.monotonic() + _START_TIMEOUT
    while not history.exists() or history.stat().st_size < _SOME_EVENTS:
        if harness.process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"ottla verify run does not begin:\n{harness.tail()}")
        time.sleep(0.1)


def report_in(output: str) -> Mapping[str, Any]:
    """The JSON at the end of what a run prints; what is meant for a terminal comes before it."""
    start = output.find("\n{") + 1
    try:
        found: Mapping[str, Any] = json.loads(output[start:])
    except ValueError:
        raise BenchError(f"ottla verify run does not say what it saw:\n{output[-2000:]}") from None
    return found


class _Brokers:
    """The processes of one cluster."""

    def __init__(self, system: System, cluster: Cluster) -> None:
        self._system = system
        self._cluster = cluster
        self._running: list[Child] = []

    def start_all(self) -> None:
        self._running = [self._system.start(node) for node in self._cluster.nodes]
        for index in range(len(self._running)):
            self._wait(index)

    def trouble(self) -> None:
        """What happens while the harness looks."""
        time.sleep(_CALM)
        self._running[0].kill()
        time.sleep(_DOWN)
        self._start(0)
        time.sleep(_CALM)
        self._running[1].process.send_signal(signal.SIGSTOP)
        time.sleep(_STILL)
        self._running[1].process.send_signal(signal.SIGCONT)
        time.sleep(_CALM)
        self._running[2].stop()
        self._start(2)
        time.sleep(_CALM)

    def stop(self) -> None:
        for child in self._running:
            child.kill()

    def _start(self, index: int) -> None:
        self._running[index] = self._system.start(self._cluster.nodes[index])
        self._wait(index)

    def _wait(self, index: int) -> None:
        wait_port(self._cluster.nodes[index].port, self._running[index], _START_TIMEOUT)


def markdown(told: Sequence[Told], day: date) -> str:
    text = [
        f"Recorded on {day.isoformat()} with `make interop`: three brokers, of which one is killed "
        f"with SIGKILL and started again, one stands still for {_STILL:g} s (SIGSTOP), and one is "
        "stopped and started again.",
        "",
        "| cluster | records acknowledged | of unknown fate | longest pause | anomalies |",
        "|---|---|---|---|---|",
    ]
    for each in told:
        report = each.report
        text.append(
            f"| {each.system} | {report['acknowledged']:,} | {report['unknown']:,} | "
            f"{report['longest_pause']:.1f} s | {each.anomalies or 'none'} |"
        )
    return "\n".join(text)
