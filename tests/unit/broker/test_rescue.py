"""Metadata from partition folders: what is found, what is odd, what is left to a person."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ottla.broker.metadata_home import remember
from ottla.broker.rescue import (
    LEADER_EPOCH_GAP,
    PRODUCER_ID_GAP,
    Plan,
    RescueRefused,
    carry_out,
    plan,
    scan,
)
from ottla.cluster import journal, layout
from ottla.cluster.backup import Backup, BadBackup, dump, parse
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.registry import Registry
from ottla.config.broker import BrokerConfig
from ottla.config.load import load
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.key_hash import key_hash
from ottla.coordinator.transaction.state import TRANSACTIONS_TOPIC
from ottla.model.ids import TopicId, topic_id_text
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.storage.paths import MOVED, MOVING
from ottla.testing.files import MemoryFileSystem

A, B = "/a", "/b"
ONE, TWO = TopicId(b"1" * 16), TopicId(b"2" * 16)
FRESH = TopicId(b"f" * 16)


class Data:
    """Data folders, made by hand."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        for folder in (A, B):
            self.fs.makedirs(folder)
            self.write(f"{folder}/meta.properties", b"version=1\nnode.id=7\ncluster.id=c\n")

    def write(self, path: str, data: bytes) -> None:
        self.fs.write_atomic(path, data)

    def partition(
        self, folder: str, name: str, *batches: bytes, topic_id: TopicId | None = ONE
    ) -> str:
        path = f"{folder}/{name}"
        self.fs.makedirs(path)
        if topic_id is not None:
            text = f"version: 0\ntopic_id: {topic_id_text(topic_id)}"
            self.write(f"{path}/partition.metadata", text.encode())
        self.write(f"{path}/{'0' * 20}.log", b"".join(batches))
        return path

    def plan(self, folders: tuple[str, ...] = (A, B), **options: object) -> Plan:
        return plan(self.fs, scan(self.fs, folders), config(), lambda: FRESH, **options)


def config(**settings: str) -> BrokerConfig:
    return load(None, {"node.id": "1", **settings}).config


def batch(offset: int, epoch: int = 0, producer_id: int = -1, key: bytes | None = None) -> bytes:
    return build_batch(
        [(1, key, b"value", ())],
        base_offset=offset,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else 0,
        base_sequence=-1 if producer_id < 0 else 0,
    )


@pytest.fixture
def data() -> Data:
    return Data()


def test_topics_ids_epochs_and_producer_ids_come_back(data: Data) -> None:
    data.partition(A, "orders-0", batch(0), batch(1, epoch=3, producer_id=41))
    data.partition(B, "orders-1", batch(0, epoch=1))
    data.write(f"{B}/orders-1/leader-epoch-checkpoint", b"0\n2\n0 0\n9 4\n")
    made = data.plan()
    assert made.conflicts == []
    assert (made.cluster_id, made.node_id) == ("c", 7)
    (topic,) = made.topics
    assert (topic.name, topic.id, topic.made) == ("orders", ONE, ())
    assert [state.leader_epoch for state in topic.partitions] == [
        3 + LEADER_EPOCH_GAP,
        9 + LEADER_EPOCH_GAP,
    ]
    assert {state.leader for state in topic.partitions} == {7}
    assert made.next_producer_id == 42 + PRODUCER_ID_GAP


async def test_a_broker_reads_what_was_made(data: Data) -> None:
    for index in range(70):
        data.partition(B, f"wide-{index}", batch(0, epoch=index))
    made = data.plan()
    assert carry_out(data.fs, made, (A, B), "x") is None
    store = await EmbeddedStore.open(data.fs, f"{A}/metadata")
    registry = Registry(store)
    image = await registry.load()
    assert image.cluster_id == "c"
    epochs = [each.leader_epoch - LEADER_EPOCH_GAP for each in image.topics["wide"].partitions]
    assert epochs == list(range(70))
    assert (await registry.allocate_producer_ids()).start >= PRODUCER_ID_GAP
    await store.close()


def test_a_gap_in_the_partitions_is_said_and_filled(data: Data) -> None:
    for index in (0, 3, 4, 7):
        data.partition(A, f"orders-{index}", batch(0))
    made = data.plan()
    assert made.topics[0].made == (1, 2, 5, 6)
    assert any("partition(s) 1-2, 5-6" in note for note in made.notes)


def test_a_partition_without_a_folder_may_have_had_any_epoch(data: Data) -> None:
    data.partition(A, "orders-1", batch(0, epoch=5))
    data.partition(A, "payments-0", batch(0, epoch=7))
    epochs = [state.leader_epoch for state in data.plan().topics[0].partitions]
    assert epochs == [7 + LEADER_EPOCH_GAP, 5 + LEADER_EPOCH_GAP]


def test_numbers_that_nothing_could_follow_are_not_believed(data: Data) -> None:
    data.partition(A, "orders-0", batch(0, epoch=2, producer_id=2**63 - 1), batch(1, 3, 41))
    data.write(f"{A}/orders-0/leader-epoch-checkpoint", b"0\n1\n99999999999 4\n")
    made = data.plan()
    assert made.topics[0].partitions[0].leader_epoch == 3 + LEADER_EPOCH_GAP
    assert made.next_producer_id == 42 + PRODUCER_ID_GAP


def test_a_folder_that_only_has_the_name_of_a_partition_is_left_out(data: Data) -> None:
    data.partition(A, "orders-0", batch(0))
    data.fs.makedirs(f"{A}/backup-20261116/orders-0")
    made = data.plan()
    assert [topic.name for topic in made.topics] == ["orders"]
    assert made.conflicts == []
    assert any("backup-20261116" in note for note in made.notes)


def test_a_partition_far_from_all_others_is_for_a_person_to_settle(data: Data) -> None:
    data.partition(A, "orders-0", batch(0))
    data.partition(A, "orders-20261116", batch(0))
    (conflict,) = data.plan().conflicts
    assert "orders-20261116" in conflict


def test_a_topic_with_two_ids_is_for_a_person_to_settle(data: Data) -> None:
    data.partition(A, "orders-0", batch(0))
    data.partition(B, "orders-1", batch(0), topic_id=TWO)
    (conflict,) = data.plan().conflicts
    assert f"{A}/orders-0" in conflict
    assert f"{B}/orders-1" in conflict


def test_a_partition_in_two_folders_is_for_a_person_to_settle(data: Data) -> None:
    data.partition(A, "orders-0", batch(0))
    data.partition(B, "orders-0", batch(0))
    (conflict,) = data.plan().conflicts
    assert "orders-0 is in /a/orders-0 and in /b/orders-0" in conflict


def test_a_copy_that_was_being_moved_is_none(data: Data) -> None:
    data.partition(A, "orders-0", batch(0))
    data.partition(B, "orders-0", batch(0))
    data.fs.open(f"{B}/orders-0/{MOVING}", create=True).close()
    assert data.plan().conflicts == []
    assert [each.folder for each in scan(data.fs, (A, B)).found.values()] == [f"{A}/orders-0"]


@pytest.mark.parametrize("arrived", [A, B])
def test_of_a_partition_that_was_moved_the_new_folder_counts(data: Data, arrived: str) -> None:
    data.partition(A, "orders-0", batch(0))
    data.partition(B, "orders-0", batch(0))
    data.fs.open(f"{arrived}/orders-0/{MOVED}", create=True).close()
    assert data.plan().conflicts == []
    assert [each.folder for each in scan(data.fs, (A, B)).found.values()] == [f"{arrived}/orders-0"]


def test_an_id_that_is_missing_is_the_one_of_the_other_partitions(data: Data) -> None:
    data.partition(A, "orders-0", batch(0), topic_id=None)
    data.partition(B, "orders-1", batch(0))
    data.partition(B, "alone-0", batch(0), topic_id=None)
    data.write(f"{data.partition(B, 'orders-2', batch(0))}/partition.metadata", b"rubbish")
    made = data.plan()
    assert {each.name: each.id for each in made.topics} == {"orders": ONE, "alone": FRESH}
    assert any("/a/orders-0: partition.metadata is missing" in note for note in made.notes)
    assert any("alone: no folder of it says its topic id" in note for note in made.notes)


def test_strays_and_deleted_folders_are_left_alone(data: Data) -> None:
    data.partition(A, f"gone-0.{'a' * 32}-delete", batch(0))
    data.partition(A, f"stray-0.{'b' * 32}-stray", batch(0))
    made = data.plan()
    assert made.topics == []
    assert any("2 folder(s) of deleted or set-aside partitions" in note for note in made.notes)


def test_damage_hides_nothing_behind_it(data: Data) -> None:
    whole = batch(0)
    damaged = bytearray(batch(1))
    damaged[16] = 7  # the magic byte
    data.partition(A, "orders-0", whole, bytes(damaged), batch(2, epoch=5, producer_id=9))
    made = data.plan()
    assert made.topics[0].partitions[0].leader_epoch == 5 + LEADER_EPOCH_GAP
    assert made.next_producer_id == 10 + PRODUCER_ID_GAP
    assert any(f"damaged at position {len(whole)}" in note for note in made.notes)


def test_a_flipped_bit_raises_no_number(data: Data) -> None:
    damaged = bytearray(batch(0, producer_id=3))
    damaged[43] ^= 0x20  # the highest byte of the producer id
    data.partition(A, "orders-0", bytes(damaged), batch(1, producer_id=4))
    assert data.plan().next_producer_id == 5 + PRODUCER_ID_GAP


def test_a_torn_end_is_no_damage(data: Data) -> None:
    data.partition(A, "orders-0", batch(0), batch(1)[:40])
    assert not any("damaged" in note for note in data.plan().notes)


def test_folders_of_two_brokers_are_refused(data: Data) -> None:
    data.write(f"{B}/meta.properties", b"version=1\nnode.id=8\ncluster.id=c\n")
    with pytest.raises(RescueRefused, match="belongs to node 8"):
        data.plan()


def test_a_folder_that_is_not_there_is_refused(data: Data) -> None:
    with pytest.raises(RescueRefused, match="/gone is not there"):
        data.plan((A, "/gone"))


def test_a_folder_that_had_the_metadata_and_is_not_named_is_asked_for(data: Data) -> None:
    data.partition(B, "t-0")
    remember(data.fs, [A, B], A)
    assert not any("last in" in note for note in data.plan().notes)
    (note,) = data.plan((B,)).notes
    assert note.startswith(f"the metadata was last in {A}/metadata, and {A} is not among these")


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_a_coordinators_topic_gets_its_settings_back(data: Data, name: str) -> None:
    data.partition(A, f"{name}-0", batch(0))
    (topic,) = data.plan().topics
    assert topic.config["cleanup.policy"] == "compact"
    assert len(topic.partitions) == 50


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
@pytest.mark.parametrize("count", [1, 3, 7, 50, 64])
def test_the_groups_say_how_many_partitions_there_were(data: Data, name: str, count: int) -> None:
    for number in range(40):
        group = f"group {number}"
        key = b"\x00\x01" + len(group).to_bytes(2, "big") + group.encode() + b"rest"
        index = key_hash(group) % count
        path = data.partition(A, f"{name}-{index}")
        file = data.fs.open(f"{path}/{number:020d}.log", create=True)
        file.append(batch(number, key=key))
        file.close()
    (topic,) = data.plan().topics
    assert len(topic.partitions) == count


# --- backups ----------------------------------------------------------------------------------


def backup_of(topic_id: TopicId = ONE, partitions: int = 2, **settings: str) -> Backup:
    states = [PartitionState(7, 20, 0, (7,), (7,))] * partitions
    entries = {
        layout.CLUSTER: layout.encode_cluster("c"),
        layout.topic_key("orders"): layout.encode_topic(topic_id, settings),
        layout.partitions_key(topic_id, 0): layout.encode_partitions(states),
        layout.broker_config_key(""): layout.encode_config({"message.max.bytes": "5"}),
        "controller/epoch": layout.encode_holder(7),
    }
    contents = journal.Contents({key: journal.Entry(each, 3) for key, each in entries.items()}, 99)
    return Backup("c", 7, contents)


def test_a_backup_survives_its_own_text() -> None:
    backup = backup_of()
    assert parse(dump(backup)) == backup
    assert parse(json.dumps(json.loads(dump(backup)))) == backup, "formatted anew"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text[: len(text) // 2], "not whole"),
        (lambda text: text.replace("orders", "0rders"), "checksum"),
        (lambda text: text.replace('"version": 1,', '"version": 2,', 1), "version 2"),
        (lambda text: "{}", "not an export"),
        (lambda text: "[]", "not an export"),
    ],
)
def test_a_bad_backup_is_refused_with_the_reason(spoil: Callable[[str], str], said: str) -> None:
    with pytest.raises(BadBackup, match=said):
        parse(spoil(dump(backup_of())))


def test_the_data_is_newer_than_the_backup(data: Data) -> None:
    data.partition(A, "orders-0", batch(0, epoch=25, producer_id=6))
    data.partition(B, "orders-2", batch(0))
    data.partition(B, "later-0", batch(0), topic_id=TWO)
    made = data.plan(base=backup_of(partitions=2, **{"retention.ms": "5"}).contents)
    topics = {each.name: each for each in made.topics}
    assert topics["orders"].config == {"retention.ms": "5"}
    epochs = [each.leader_epoch - LEADER_EPOCH_GAP for each in topics["orders"].partitions]
    assert epochs == [25, 25, 0]
    assert topics["later"].id == TWO
    assert made.next_producer_id == 7 + PRODUCER_ID_GAP
    entries = made.contents.entries
    assert entries["controller/epoch"].version == 3, "a term that was held is not held again"
    assert layout.broker_config_key("") in entries


def test_a_topic_made_anew_since_the_backup_keeps_its_new_id(data: Data) -> None:
    data.partition(A, "orders-0", batch(0), topic_id=TWO)
    made = data.plan(base=backup_of(ONE, partitions=5, **{"retention.ms": "5"}).contents)
    (topic,) = made.topics
    assert (topic.id, len(topic.partitions)) == (TWO, 1)
    assert layout.partitions_key(ONE, 0) not in made.contents.entries


def test_an_older_store_is_kept_beside(data: Data) -> None:
    data.partition(A, "orders-0", batch(0))
    carry_out(data.fs, data.plan(), (A, B), "1")
    again = data.plan()
    assert again.replaces == f"{A}/metadata"
    assert carry_out(data.fs, again, (A, B), "2") == f"{A}/metadata.2-old"
    assert journal.exists(data.fs, f"{A}/metadata.2-old")
    assert journal.exists(data.fs, f"{A}/metadata")


# --- reading beside a writer ------------------------------------------------------------------


async def test_a_store_in_use_is_read_without_being_touched() -> None:
    fs = MemoryFileSystem()
    store = await EmbeddedStore.open(fs, "/m", journal_limit=2_000)
    registry = Registry(store)
    await registry.load()
    for number in range(200):  # with rotations in between
        await registry.set_group_config(f"g{number}", {"a": "b"})
        assert len(journal.read(fs, "/m").entries) == number + 1
    await store.close()


def test_an_unfinished_frame_is_not_read_and_not_cut_off() -> None:
    fs = MemoryFileSystem()
    fs.makedirs("/m")
    journal.create(fs, "/m", {"a": b"1"})
    path = f"/m/journal-{0:020d}"
    frame = journal.encode_frame(
        journal.JOURNAL_MAGIC, 1, 2, [journal.Change("b", journal.Entry(b"2", 0))]
    )
    fs.write_atomic(path, frame[:-1])
    assert journal.read(fs, "/m").entries == {"a": journal.Entry(b"1", 0)}
    assert fs.size(path) == len(frame) - 1
    fs.write_atomic(path, frame)
    assert set(journal.read(fs, "/m").entries) == {"a", "b"}
