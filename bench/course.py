"""What every session of the bench shares: a fresh broker, taken through the steps that are wanted.

Each part of the table has its own kind of session, with its own start of each broker.
"""

from __future__ import annotations

import fnmatch
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.processes import BenchError, Child, wait_port
from bench.systems import new_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.rows import Sizes
    from bench.systems import ApacheKafka, System

    Step = tuple[Callable[[], None], tuple[str, ...]]

_ADMIN_PATIENCE = 120.0
_START_PATIENCE = 120.0


class Course:
    """One start of one broker. `record` receives each figure as it is measured."""

    SETTINGS: ClassVar[Mapping[str, str]] = {}
    """What differs from the brokers' defaults, the same for both."""

    def __init__(
        self,
        system: System,
        tools: ApacheKafka,
        folder: Path,
        sizes: Sizes,
        wanted: str,
        record: Callable[[str, float], None],
    ) -> None:
        self._system = system
        self._tools = tools
        self._sizes = sizes
        self._wanted = wanted
        self._record = record
        self._node = new_node(folder)
        self._broker: Child | None = None
        self.failures: list[str] = []

    def run(self) -> None:
        """Everything the pattern selects, in the order that disturbs the least."""
        self._system.prepare(self._node, self.SETTINGS)
        os.sync()
        with ExitStack() as stack:
            self._start(stack)
            for step in self._chosen():
                try:
                    step()
                except BenchError as error:
                    self.failures.append(f"{self._system.name}: {error}")
                    print(f"  failed: {error}", flush=True)
                    if self._child.process.poll() is not None:
                        raise BenchError(
                            f"{self._child.name} is gone:\n{self._child.tail()}"
                        ) from None

    # What a kind of session says of itself.

    def _start(self, stack: ExitStack) -> None:
        """Start the broker; return when it listens."""
        self._broker = stack.enter_context(self._system.start(self._node))
        wait_port(self._node.port, self._child, _START_PATIENCE)

    def _steps(self) -> Sequence[Step]:
        """What there is to do, and for which rows."""
        raise NotImplementedError

    def _warm_up(self) -> None:
        """A load that is not measured."""
        raise NotImplementedError

    # What the steps share.

    def _chosen(self) -> Iterator[Callable[[], None]]:
        chosen = [step for step, keys in self._steps() if self._wants(*keys)]
        if chosen:
            yield self._warm_up
            yield from chosen

    @property
    def _child(self) -> Child:
        assert self._broker is not None
        return self._broker

    def _wants(self, *keys: str) -> bool:
        return any(fnmatch.fnmatchcase(key, self._wanted) for key in keys)

    def _report(self, key: str, value: float) -> None:
        if self._wants(key):
            self._record(key, value)

    def _create(self, topic: str, partitions: int, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._node.bootstrap, "log_level": 3})
        pending = admin.create_topics(
            [NewTopic(topic, partitions, 1, config=config)],
            operation_timeout=_ADMIN_PATIENCE,
            request_timeout=_ADMIN_PATIENCE,
        )
        pending[topic].result(_ADMIN_PATIENCE)
        deadline = time.monotonic() + _ADMIN_PATIENCE
        while True:
            found = admin.list_topics(topic, timeout=_ADMIN_PATIENCE).topics[topic].partitions
            if len(found) == partitions and all(state.leader >= 0 for state in found.values()):
                return
            if time.monotonic() > deadline:
                raise BenchError(f"the {partitions} partitions of {topic} never got a leader")
            time.sleep(0.05)
