"""What every session of the bench shares: a fresh broker, taken through the steps that are wanted.

Each part of the table has its own kind of session, with its own start of each broker.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.client import Client
from bench.processes import BenchError, Child, wait_port
from bench.systems import new_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.rows import Sizes
    from bench.selection import Selection
    from bench.systems import ApacheKafka, System

    Step = tuple[Callable[[], None], tuple[str, ...]]

_ADMIN_PATIENCE = 120.0
_START_PATIENCE = 120.0
_RESTART_PATIENCE = 900.0


class Course:
    """One start of one broker. `record` receives each figure as it is measured."""

    SETTINGS: ClassVar[Mapping[str, str]] = {}
    """What differs from the brokers' defaults, the same for both."""
    REPLICAS: ClassVar[int] = 1
    """Of the topics it makes."""
    MAKES_MANY_FILES: ClassVar[bool] = False
    """Whether deleted files would be in the way; see `settling`."""

    def __init__(
        self,
        system: System,
        tools: ApacheKafka,
        folder: Path,
        sizes: Sizes,
        selection: Selection,
        record: Callable[[str, float], None],
    ) -> None:
        self._system = system
        self._tools = tools
        self._sizes = sizes
        self._selection = selection
        self._record = record
        self._node = new_node(folder)
        self._broker: Child | None = None
        self._stack = ExitStack()
        self.failures: list[str] = []

    def run(self) -> None:
        """Everything the pattern selects, in the order that disturbs the least."""
        self._prepare()
        os.sync()
        with self._stack as stack:
            self._start(stack)
            for step in self._chosen():
                try:
                    step()
                except (BenchError, KafkaException) as error:
                    self.failures.append(f"{self._system.name}: {error}")
                    print(f"  failed: {error}", flush=True)
                    for child in self._running():
                        if child.process.poll() is not None:
                            raise BenchError(f"{child.name} is gone:\n{child.tail()}") from None
                    if step == self._warm_up:
                        return  # nothing after it would mean anything

    # What a kind of session says of itself.

    def _prepare(self) -> None:
        """What is done before the first start."""
        self._system.prepare(self._node, self.SETTINGS)

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
        steps = [step for step in self._steps() if self._wants(*step[1])]
        # What would come after the last row that is reported is nobody's past.
        while steps and not self._selection.reports(*steps[-1][1]):
            steps.pop()
        if steps:
            yield self._warm_up
            yield from (step for step, _keys in steps)

    @property
    def _bootstrap(self) -> str:
        return self._node.bootstrap

    def _running(self) -> Sequence[Child]:
        """All that should be there now."""
        return [] if self._broker is None else [self._broker]

    def _cpu_seconds(self) -> float:
        return sum(child.usage().cpu_seconds for child in self._running())

    @property
    def _child(self) -> Child:
        assert self._broker is not None
        return self._broker

    def _wants(self, *keys: str) -> bool:
        """Whether one of the rows is run, reported or not."""
        return self._selection.runs(*keys)

    def _report(self, key: str, value: float) -> None:
        if self._selection.reports(key):
            self._record(key, value)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 2})

    def _create(
        self, topic: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        admin = self._admin()
        pending = admin.create_topics(
            [NewTopic(topic, partitions, self.REPLICAS, config=dict(configs or {}))],
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

    def _alter(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set some of a topic's own settings; the others stay."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = self._admin()  # with it its requests would end
        for done in admin.incremental_alter_configs([resource]).values():
            try:
                done.result(_ADMIN_PATIENCE)
            except KafkaException as error:
                raise BenchError(f"{topic} did not take {dict(configs)}: {error}") from None

    def _delete(self, topic: str) -> None:
        admin = self._admin()
        pending = admin.delete_topics([topic], operation_timeout=_ADMIN_PATIENCE)
        pending[topic].result(_ADMIN_PATIENCE)

    def _paced(self, topic: str, while_open: Callable[[], None], acks: int = 1) -> dict[str, float]:
        """Latencies of records sent at the fixed rate while something else goes on."""
        os.sync()
        with Client(
            "paced",
            bootstrap=self._bootstrap,
            topic=topic,
            rate=self._sizes.latency_rate,
            size=100,
            acks=acks,
        ) as client:
            client.wait_ready()
            time.sleep(1.0)
            client.tell()
            while_open()
            client.tell()
            return client.result()

    def _start_again(self) -> None:
        """Start the broker that was stopped or killed, on the same data; return when it listens."""
        self._broker = self._stack.enter_context(self._system.start(self._node))
        wait_port(self._node.port, self._child, _RESTART_PATIENCE)
