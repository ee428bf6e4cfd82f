"""Records that are damaged on the broker's disk: an error for whoever reads them, not silence."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.records.batch import batches
from ottla.records.builder import build_batch
from ottla.records.checksum import crc32c
from ottla.testing.process import BrokerProcess

StartBroker = Callable[..., BrokerProcess]

DAMAGE = {
    "a checksum that is wrong": (80, b"\xff\xff\xff\xff"),
    "a foreign version": (16, b"\x07"),
    "a length too small": (8, b"\x00\x00\x00\x10"),
    "a length too large": (8, b"\x00\x10\x00\x00"),
}


@pytest.fixture(params=["none", "zstd"])
def codec(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def broker(start_broker: StartBroker, codec: str) -> BrokerProcess:
    """Five batches of three records in partition 0 of `orders`."""
    broker = start_broker()
    ottla.Admin(broker.bootstrap).create_topic("orders")
    with ottla.Producer(broker.bootstrap, compression=codec, linger=5) as producer:
        for number in range(5):
            for each in range(3):
                producer.send("orders", f"{number}-{each} " * 20)
            producer.flush()
    return broker


def damage(broker: BrokerProcess, kind: str) -> None:
    """Overwrite bytes of the third batch, offsets 6 to 8, while the broker runs."""
    [log] = Path(broker.data_dir, "orders-0").glob("*.log")
    place = [position for position, _ in batches(log.read_bytes())][2]
    at, data = DAMAGE[kind]
    with log.open("r+b") as file:
        file.seek(place + at)
        file.write(data)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_consumer_stops_in_front_of_damaged_records_every_time(
    broker: BrokerProcess, kind: str
) -> None:
    damage(broker, kind)
    with ottla.Consumer(broker.bootstrap) as consumer:
        consumer.assign("orders", "earliest")
        assert [record.offset for record in consumer.records(limit=6)] == list(range(6))
        for _ in range(2):
            with pytest.raises(ottla.DamagedRecordsError, match="orders-0 is damaged at") as caught:
                consumer.poll(60)
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == (
                "orders",
                0,
                6,
            )
            assert "repair" in str(caught.value)
        assert consumer.position(("orders", 0)) == 6


@pytest.mark.parametrize("kind", ["a checksum that is wrong", "a foreign version"])
def test_skipping_goes_past_the_whole_batch(broker: BrokerProcess, kind: str) -> None:
    damage(broker, kind)
    with ottla.Consumer(broker.bootstrap, on_error="skip") as consumer:
        consumer.assign("orders", "earliest")
        seen = [record.offset for record in consumer.records(limit=12)]
    assert seen == [*range(6), *range(9, 15)]


def lose_offset_5(broker: BrokerProcess) -> None:
    """Make of the second batch, offsets 3 to 5, what compaction leaves of it without the last."""
    [log] = Path(broker.data_dir, "orders-0").glob("*.log")
    place, header = list(batches(log.read_bytes()))[1]
    size = 0
    for padding in range(400):
        records = [(header.base_timestamp, None, b"x" * 50, ())] * 2
        records[1] = (header.base_timestamp, None, b"x" * padding, ())
        batch = bytearray(build_batch(records, base_offset=3, leader_epoch=header.leader_epoch))
        size = len(batch)
        if size == header.size:
            break
    assert size == header.size
    struct.pack_into(">i", batch, 23, 2)  # the last offset's delta
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    with log.open("r+b") as file:
        file.seek(place)
        file.write(batch)


@pytest.mark.parametrize("codec", ["none"], indirect=True)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_behind_offsets_that_compaction_removed(
    broker: BrokerProcess, kind: str
) -> None:
    lose_offset_5(broker)
    damage(broker, kind)
    with ottla.Consumer(broker.bootstrap) as consumer:
        consumer.assign("orders", "earliest")
        assert [record.offset for record in consumer.records(limit=5)] == list(range(5))
        with pytest.raises(ottla.DamagedRecordsError) as caught:
            consumer.poll(60)
        assert caught.value.next_offset == 9
    with ottla.Consumer(broker.bootstrap, on_error="skip") as consumer:
        consumer.assign("orders", "earliest")
        seen = [record.offset for record in consumer.records(limit=11)]
    assert seen == [*range(5), *range(9, 15)]


async def test_the_asynchronous_consumer_stops_and_skips_too(broker: BrokerProcess) -> None:
    damage(broker, "a checksum that is wrong")
    async with ottla.AsyncConsumer(broker.bootstrap) as strict:
        await strict.assign("orders", "earliest")
        assert len([record async for record in strict.records(limit=6)]) == 6
        with pytest.raises(ottla.DamagedRecordsError) as caught:
            await strict.poll(60)
        assert caught.value.next_offset == 9
        await strict.seek(("orders", 0), caught.value.next_offset)
        assert [record.offset async for record in strict.records(limit=6)] == list(range(9, 15))
    async with ottla.AsyncConsumer(broker.bootstrap, on_error="skip") as careless:
        await careless.assign("orders", "earliest")
        assert len([record async for record in careless.records(limit=12)]) == 12


def test_a_group_that_starts_at_damaged_records_is_told(broker: BrokerProcess) -> None:
    damage(broker, "a length too small")
    options: Any = {"group": "g", "reset": "earliest"}
    with ottla.Consumer(broker.bootstrap, **options) as consumer:
        consumer.subscribe("orders")
        assert len(list(consumer.records(limit=6))) == 6
    with ottla.Consumer(broker.bootstrap, **options) as consumer:
        consumer.subscribe("orders")
        with pytest.raises(ottla.DamagedRecordsError, match="at offset 6"):
            consumer.poll(60)


def test_the_command_prints_what_is_whole_and_says_what_is_not(broker: BrokerProcess) -> None:
    damage(broker, "a checksum that is wrong")
    command = [sys.executable, "-m", "ottla", "consume", "orders", "--from-beginning"]
    result = subprocess.run(
        [*command, "--bootstrap", broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == 6
    assert "orders-0 is damaged at offset 6" in result.stderr
