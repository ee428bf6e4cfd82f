"""Produce requests that repeat the one before, with other records: never read as anything else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.dispatch.context import Request, Services
from ottla.dispatch.dispatcher import Dispatcher
from ottla.dispatch.table import Table, handles
from ottla.net.connection import Connection, Hangup
from ottla.protocol.apis import ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.header import request_header
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.runtime.metrics import Metrics

VERSIONS = [3, 7, 9, 12, 13]


class Client:
    """A connection to a dispatcher whose Produce handler notes what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.bodies: list[ProduceRequest] = []

        @handles(ApiKey.PRODUCE, versions=range(14), failure=None)
        def produce(request: Request[ProduceRequest], services: Services) -> ProduceResponse:
            body = request.body
            self.bodies.append(body)
            said = [
                (topic.name, topic.topic_id, each.index, each.records and bytes(each.records))
                for topic in body.topic_data
                for each in topic.partition_data
            ]
            self.seen.append(
                (request.api_version, request.client_id, body.transactional_id, body.acks, said)
            )
            return ProduceResponse(responses=[])

        table = Table([produce])
        services = cast("Services", SimpleNamespace(metrics=Metrics(), table=table))
        self.dispatcher = Dispatcher(table, services)
        self.connection = cast("Connection", SimpleNamespace(client="", remembered=None))

    def send(self, frame: bytes) -> Any:
        """What the handler saw, with the answer; or why the connection is closed."""
        try:
            reply = self.dispatcher.answer(self.connection, memoryview(bytearray(frame)))
        except Hangup as error:
            return str(error)
        assert isinstance(reply, list)
        return self.seen[-1], b"".join(map(bytes, cast("list[bytes]", reply)))


def frame(
    version: int,
    records: bytes | None = b"records",
    *,
    correlation_id: int = 1,
    client: str | None = "client",
    topic: str = "t",
    partitions: int = 1,
    acks: int = 1,
) -> bytes:
    named = {"topic_id": topic.encode() * 16} if version >= 13 else {"name": topic}
    view = None if records is None else memoryview(records)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                partition_data=[
                    PartitionProduceData(index=n, records=view) for n in range(partitions)
                ],
                **named,
            )
        ],
    )
    parts: list[Any] = []
    codec(ProduceRequest, version).encode(request, parts)
    return request_header(ApiKey.PRODUCE, version, correlation_id, client) + b"".join(parts)


def alone(data: bytes) -> Any:
    """What becomes of the frame where it is the first."""
    return Client().send(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeated_request_is_not_decoded_again_and_has_its_own_records(version: int) -> None:
    client = Client()
    sizes = [7, 7, 1, 126, 127, 128, 20_000, 0]
    for number, size in enumerate(sizes):
        data = frame(version, bytes([number]) * size, correlation_id=number)
        assert client.send(data) == alone(data)
    assert len({id(body) for body in client.bodies}) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_differs_is_read_anew(version: int) -> None:
    client = Client()
    client.send(frame(version))
    for data in (
        frame(version, client="other"),
        frame(version, client=None),
        frame(version, topic="u"),
        frame(version, acks=-1),
        frame(version, partitions=2),
        frame(version, None),
        frame(version) + b"more",
        frame(version)[:-1],
        frame(7 if version == 3 else 3),
    ):
        assert client.send(data) == alone(data)
        assert client.send(frame(version)) == alone(frame(version))


@pytest.mark.parametrize("version", VERSIONS)
def test_no_flipped_bit_is_overlooked(version: int) -> None:
    good = frame(version)
    for position in range(len(good)):
        for bit in range(8):
            client = Client()
            client.send(good)
            data = bytearray(good)
            data[position] ^= 1 << bit
            assert client.send(bytes(data)) == alone(bytes(data)), (position, bit)


def test_the_records_are_not_kept_when_they_have_been_handled() -> None:
    client = Client()
    for _ in range(2):
        client.send(frame(9))
        assert client.bodies[-1].topic_data[0].partition_data[0].records is None
