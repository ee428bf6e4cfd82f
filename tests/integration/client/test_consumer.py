from __future__ import annotations

import struct
import time

import pytest

import ottla
from ottla.client.router import Router
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.records.checksum import crc32c
from ottla.testing import Broker


def test_librdkafka_accepts_every_option() -> None:
    with ottla.Consumer(
        "127.0.0.1:1",
        group="g",
        reset="error",
        auto_commit=False,
        read_uncommitted=True,
        client_id="c",
        config={"fetch.min.bytes": 1},
    ) as consumer:
        assert consumer.assignment() == ()


def test_a_header_whose_name_is_no_text_crashes_nobody() -> None:
    """librdkafka's binding leaves a hole in its place, and whoever looks at it has a segfault."""
    now = int(time.time() * 1000)
    batch = bytearray(
        build_batch(
            [
                *[(now, None, b"0", (("h", b"v"),))] * 99,
                (now, b"k", b"1", (("trace", b"x"), ("zz", b"v"))),
                (now, None, b"2", (("größe", b"7"),)),
            ]
        ).replace(b"\x04zz\x02v", b"\x04\xff\xfe\x02v")
    )
    batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
    with Broker(topics=["t"]) as broker:
        part = PartitionProduceData(index=0, records=bytes(batch))
        topic = TopicProduceData(name="t", partition_data=[part])
        with Router(broker.bootstrap) as router:
            router.ask_any(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic]))
        refused: list[object] = []
        with ottla.Consumer(broker.bootstrap) as consumer:
            consumer.assign("t", "earliest")
            # Only then the interpreter takes short cuts.
            assert len(list(consumer.records(limit=99))) == 99
            for _ in range(2):
                with pytest.raises(
                    ottla.RecordDecodeError, match=r"headers .* not UTF-8"
                ) as caught:
                    consumer.poll(30)
                assert (caught.value.offset, caught.value.record.headers) == (99, ())
        with ottla.Consumer(
            broker.bootstrap, on_error=lambda record, error: refused.append(record.value)
        ) as consumer:
            consumer.assign("t", "earliest")
            records = list(consumer.records(until_end=True))
        assert [record.header("größe") for record in records] == [None] * 99 + [b"7"]
        assert refused == [b"1"]
