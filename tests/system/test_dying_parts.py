"""A part of the broker that dies takes the broker with it, and the reason is said in one line.

A broker that went on without its metadata store, or without a task that keeps something current,
would look alive and answer for ever from a state that does not move any more.
"""

from __future__ import annotations

import asyncio
import errno
import time

import pytest

from ottla.broker import app
from ottla.broker.app import Broker, StartFailed
from ottla.cli.serve import EXIT_FAILED, serve
from ottla.cluster.registry import Registry
from ottla.config.load import load
from ottla.controller.topics import DeleteTopic, NewTopic
from ottla.errors import KafkaError
from ottla.storage.schedule import Schedule
from ottla.testing.files import MemoryFileSystem

SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data", "node.id": "1"}
LIMIT = 120
JOURNAL = "/data/metadata/journal-*"


@pytest.fixture
def disk() -> MemoryFileSystem:
    return MemoryFileSystem()


def test_a_failed_fsync_of_the_metadata_ends_the_broker(disk):
    async def scenario() -> str:
        broker = Broker(load(None, SETTINGS).config, fs=disk)
        await broker.start()
        disk.fail(JOURNAL, error=errno.EIO, operations={"sync"})
        with pytest.raises(KafkaError):
            await broker.services.controller.create_topics([NewTopic("t", 1, 1)])
        reason = await asyncio.wait_for(broker.wait_failed(), LIMIT)
        await broker.stop()
        return reason

    reason = asyncio.run(scenario())
    assert "metadata store was lost" in reason
    assert "/data/metadata/journal-" in reason
    assert "restart the broker" in reason


def test_a_server_whose_metadata_fails_exits_with_an_error(disk, monkeypatch, capsys):
    made: list[Broker] = []

    def broker_on_disk(config, **given):
        made.append(Broker(config, fs=disk, **given))
        return made[0]

    monkeypatch.setattr(app, "Broker", broker_on_disk)

    async def scenario() -> int:
        server = asyncio.create_task(serve(load(None, SETTINGS), time.perf_counter(), quiet=True))
        while not (made and made[0].listening and made[0].services.controller.active):
            assert not server.done()
            await asyncio.sleep(0)
        disk.fail(JOURNAL, error=errno.EIO, operations={"sync"})
        with pytest.raises(KafkaError):
            await made[0].services.controller.create_topics([NewTopic("t", 1, 1)])
        return await asyncio.wait_for(server, LIMIT)

    assert asyncio.run(scenario()) == EXIT_FAILED
    said = capsys.readouterr().err
    assert said.count("Error: the metadata store was lost") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize("after", range(6))
def test_a_failed_fsync_of_the_metadata_during_the_start_is_no_hang(disk, after):
    disk.fail(JOURNAL, error=errno.EIO, operations={"sync"}, after=after)

    async def scenario() -> str:
        broker = Broker(load(None, SETTINGS).config, fs=disk)
        try:
            await asyncio.wait_for(broker.start(), LIMIT)
        except StartFailed as error:
            return str(error)
        reason = "started"
        await broker.stop()
        return reason

    reason = asyncio.run(scenario())
    assert reason == "started" or "metadata" in reason


def test_a_start_that_cannot_raise_the_leader_epochs_leaves_that_to_the_next(disk):
    async def start(*, create: bool = False) -> int:
        broker = Broker(load(None, SETTINGS).config, fs=disk)
        await asyncio.wait_for(broker.start(), LIMIT)
        services = broker.services
        if create:
            await services.controller.create_topics([NewTopic("t", 1, 1)])
            services.replicas.by_name("t", 0)
        epoch = services.registry.image.topics["t"].partitions[0].leader_epoch
        await broker.stop()
        return epoch

    assert asyncio.run(start(create=True)) == 0
    disk.remove("/data/.kafka_cleanshutdown")
    disk.fail(JOURNAL, error=errno.EIO, operations={"append", "pwrite"})
    with pytest.raises(StartFailed):
        asyncio.run(start())
    disk.heal()
    assert asyncio.run(start()) == 1
    assert asyncio.run(start()) == 1


def test_a_start_that_loses_its_last_folder_fails(disk):
    """Setting a stray log aside fails after all logs were loaded, and before anything is served."""

    async def start() -> None:
        broker = Broker(load(None, SETTINGS | {"log.dirs": "/data,/more"}).config, fs=disk)
        await asyncio.wait_for(broker.start(), LIMIT)
        await broker.stop()

    asyncio.run(start())
    disk.makedirs("/data/stray-0")
    disk.makedirs("/more/stray-1")
    disk.fail("*/stray-?", error=errno.EIO, operations={"rename"})
    with pytest.raises(StartFailed, match="no data folder can be used: setting stray-0 aside"):
        asyncio.run(start())
    disk.heal()
    asyncio.run(start())


def test_a_topic_is_deleted_in_the_other_folders_when_one_fails(disk):
    config = load(None, SETTINGS | {"log.dirs": "/data,/more"}).config

    async def delete_and_make_again() -> None:
        broker = Broker(config, fs=disk)
        await broker.start()
        services = broker.services
        await services.controller.create_topics([NewTopic("t", 2, 1)])
        failing, healthy = (services.replicas.by_name("t", index).log.folder for index in (0, 1))
        assert failing.rpartition("/")[0] != healthy.rpartition("/")[0]
        disk.fail(failing, error=errno.EIO, operations={"rename"})
        await services.controller.delete_topics([DeleteTopic("t")])
        assert len(services.logs.offline_folders) == 1
        assert not disk.exists(healthy)
        await services.controller.create_topics([NewTopic("t", 2, 1), NewTopic("u", 1, 1)])
        assert services.replicas.by_name("t", 1).log.is_pristine
        assert services.replicas.by_name("u", 0).log.is_pristine
        again = services.replicas.by_name("t", 0).log
        assert again.folder != failing, "what is on the failed disk is of the topic before"
        assert again.is_pristine
        await broker.stop()

    async def start() -> None:
        broker = Broker(config, fs=disk)
        await broker.start()
        assert all(broker.services.replicas.by_name("t", index) for index in (0, 1))
        await broker.stop()

    asyncio.run(delete_and_make_again())
    disk.heal()
    asyncio.run(start())


@pytest.mark.parametrize(
    ("owner", "method", "said"),
    [
        (Registry, "follow", "following the metadata has ended: ValueError: a bug"),
        (Schedule, "_flush_old", "background work on the logs has ended: ValueError: a bug"),
    ],
)
def test_a_task_that_dies_ends_the_broker(disk, monkeypatch, caplog, owner, method, said):
    async def die(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("a bug")

    monkeypatch.setattr(owner, method, die)

    async def scenario() -> str:
        broker = Broker(load(None, SETTINGS).config, fs=disk)
        try:
            await broker.start()
        except StartFailed as error:
            return str(error)
        reason = await asyncio.wait_for(broker.wait_failed(), LIMIT)
        await broker.stop()
        return reason

    assert said in asyncio.run(scenario())
    assert any(record.exc_info for record in caplog.records), "where it happened is in the log"


def test_a_clean_stop_is_nobodys_death(disk, caplog):
    async def scenario() -> None:
        broker = Broker(load(None, SETTINGS).config, fs=disk)
        await broker.start()
        await broker.stop()

    asyncio.run(scenario())
    assert not [record for record in caplog.records if "has ended" in record.message]
