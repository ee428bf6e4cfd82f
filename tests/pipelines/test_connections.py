"""With which settings a pipeline's connections are made: those of its file."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ottla.cli.pipeline_places import open_groups_of
from ottla.client.groups import Groups
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.connectors.contract import Outage, Place
from ottla.pipelines.connectors.needs import missing, needs_of
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.process import Way
from ottla.pipelines.connectors.sinks.topic import SINK
from ottla.pipelines.connectors.spec.values import Connector, PipelineSpec
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles
from ottla.pipelines.driver.home import Home
from ottla.pipelines.driver.moving import move_to
from ottla.pipelines.driver.run import Driver
from ottla.pipelines.driver.start import Choices, check_query


class Listener:
    """Somebody who listens to the first request of a connection, and hangs up."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.bootstrap = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.clients: set[str] = set()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as incoming:
                head = incoming.read(14)  # size, API, version, correlation id, length of a name
                if len(head) == 14:
                    self.clients.add(incoming.read(struct.unpack(">h", head[12:])[0]).decode())

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


class Reads:
    def topics_read(self) -> list[str]:
        return ["orders"]


def connector(name: str, made: object) -> Connector:
    return Connector(name, {}, Declaration(name, "", (), lambda _options: made))


def spec_of(bootstrap: str, **kafka: str) -> PipelineSpec:
    settings = {"client.id": "billing"} | kafka
    return PipelineSpec(
        "p", bootstrap, connector("topic", Reads()), connector("x", object()), kafka=settings
    )


def test_the_driver_asks_with_the_client_id_of_the_file(listener, tmp_path):
    spec = spec_of(listener.bootstrap)
    with pytest.raises(KafkaError):
        Driver(spec, Way(Reads(), lambda rows: rows, object()), Home(tmp_path, "p")).run()
    assert listener.clients == {"billing"}


def test_and_within_its_request_timeout(listener, tmp_path, monkeypatch):
    allowed = []

    def groups(*args: Any, **given: Any) -> Groups:
        allowed.append(given["timeout"])
        return Groups(*args, **given)

    monkeypatch.setattr("ottla.pipelines.cluster.Groups", groups)
    spec = spec_of(listener.bootstrap, **{"request.timeout.ms": "45000"})
    with pytest.raises(KafkaError):
        Driver(spec, Way(Reads(), lambda rows: rows, object()), Home(tmp_path, "p")).run()
    assert allowed == [45.0, 45.0], "its member's, and that of its questions"


def test_so_does_validate(listener):
    spec = spec_of(listener.bootstrap)
    _, why = missing(spec, needs_of(spec))
    assert why is not None
    assert listener.clients == {"billing"}


def test_so_does_the_topic_sink_whose_own_settings_come_first(listener, monkeypatch):
    values = {option.name: option.default for option in SINK.options}
    sink = SINK.make(values | {"name": "out", "kafka": {"client.id": "mine"}})
    monkeypatch.setattr(sink, "_records", lambda rows: rows)

    class Spark:
        schema = None

        def createDataFrame(self, *_: object) -> Spark:  # noqa: N802 - Spark's name for it
            return self

    from pyspark.sql.types import StructType

    place = Place("p", "/nowhere", "/nowhere", listener.bootstrap, (("client.id", "billing"),))
    with pytest.raises(Outage):
        sink.prepare(Spark(), StructType([]), place)
    assert listener.clients == {"mine"}


def test_so_do_the_commands_that_move_a_pipeline_by_its_name(listener, tmp_path, monkeypatch):
    monkeypatch.setattr("ottla.cli.pipeline_places.connect", lambda bootstrap: None)
    home = Home(tmp_path, "p")
    home.make()
    spec = replace(spec_of(listener.bootstrap, **{"client.rack": "s3cret"}),
                   secrets=frozenset({"s3cret"}))  # fmt: skip
    checkpoint = Checkpoint("p", LocalFiles(home.folder / "checkpoint"))
    known = check_query(spec, home, checkpoint, ["orders"], Choices())
    assert known["kafka"] == {"client.id": "billing"}, "secrets are not kept"
    home.remember(known)
    with open_groups_of(home) as groups, pytest.raises(KafkaError):
        groups.list_groups()
    assert listener.clients == {"billing"}


def test_also_where_they_look_at_the_topics(listener, tmp_path, monkeypatch):
    home = Home(tmp_path, "p")
    home.make()
    home.remember(
        {"bootstrap": listener.bootstrap, "kafka": {"client.id": "billing"}, "source": "topic",
         "checkpoint": str(tmp_path / "checkpoint"), "topics": ["orders"], "group": "g"}
    )  # fmt: skip
    monkeypatch.setattr("ottla.pipelines.driver.moving._put_out", lambda *_: None)
    with pytest.raises(KafkaError):
        move_to(home, object(), {TopicPartition("orders", 0): 1})
    assert listener.clients == {"billing"}
