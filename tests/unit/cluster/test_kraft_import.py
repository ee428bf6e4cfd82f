"""The folders under `data/` were written by Apache Kafka 4.2: `stopped` was stopped with SIGTERM,
`killed` with SIGKILL, and there snapshots of the metadata and small segments had been configured.
In both, node 7 had been asked for topics `orders` (3 partitions, grown to 5, settings changed),
`gone` (deleted) and `reborn` (deleted and created anew), dynamic broker settings, a producer id,
and for a quota, a SCRAM credential and a group setting, which cannot be taken over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.kraft_import import (
    FOLDER,
    ImportRefused,
    KafkaCluster,
    find_kafka_metadata,
    open_store,
    read_kafka_metadata,
)
from ottla.cluster.registry import Registry
from ottla.model.features import FORMATS, SUPPORTED, TRANSACTIONS, initial
from ottla.model.ids import parse_topic_id
from ottla.model.topic import PartitionState, Topic
from ottla.records.batch import batches
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.runtime.files import OsFileSystem
from ottla.testing.files import Crashed, MemoryFileSystem

DATA = Path(__file__).parent / "data"
LOG = f"/kafka/{FOLDER}/00000000000000000000.log"
STORE = "/kafka/metadata"


def recorded(name: str) -> MemoryFileSystem:
    """A copy of a recorded folder, as `/kafka`."""
    files = MemoryFileSystem()
    for path in sorted((DATA / name).rglob("*")):
        target = f"/kafka/{path.relative_to(DATA / name)}"
        if path.is_dir():
            files.makedirs(target)
        else:
            files.makedirs(target.rpartition("/")[0])
            files.write_atomic(target, path.read_bytes())
    files.sync_dir("/")
    return files


def led_by_seven(epoch: int, count: int) -> tuple[PartitionState, ...]:
    return (PartitionState(7, epoch, epoch, (7,), (7,)),) * count


EXPECTED = {
    "stopped": {
        # Stopping took the leader away (epoch 1); taking over is the election of epoch 2.
        "orders": Topic(
            "orders",
            parse_topic_id("z3lN1cVNSECD76tiXvCu1A"),
            led_by_seven(2, 5),
            {"retention.ms": "86400000", "max.message.bytes": "2000000"},
        ),
        "reborn": Topic("reborn", parse_topic_id("igCq19O2T6G-lt4_4-xwmQ"), led_by_seven(2, 1)),
    },
    "killed": {
        "orders": Topic(
            "orders",
            parse_topic_id("rsIK7iwAQMOHnG8lELG2_g"),
            led_by_seven(0, 5),
            {"retention.ms": "86400000", "max.message.bytes": "2000000"},
        ),
        "reborn": Topic("reborn", parse_topic_id("aOlKELk1TaeEaJ6qaiLcYg"), led_by_seven(0, 1)),
    },
}

GROUP_CONFIGS = {"grp": {"consumer.session.timeout.ms": "50000"}}


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_a_recorded_folder_is_read_as_kafka_meant_it(name: str) -> None:
    cluster = read_kafka_metadata(OsFileSystem(), str(DATA / name))
    assert {topic.name: topic for topic in cluster.topics} == EXPECTED[name]
    assert cluster.cluster_id == "MkU3OEVBNTcwNTJENDM2Qg"
    assert cluster.node_id == 7
    assert cluster.next_producer_id == 1000
    assert cluster.broker_configs == {
        "": {"min.insync.replicas": "1", "log.cleaner.threads": "2"},
        "7": {"log.cleaner.backoff.ms": "20000"},
    }
    assert cluster.features["metadata.version"] == 29
    assert cluster.group_configs == GROUP_CONFIGS
    assert cluster.left_out == {"client quotas": 1, "SCRAM credentials": 1}


@pytest.mark.parametrize("dropped", [1, 2])
def test_snapshots_and_the_log_before_them_say_the_same(dropped: int) -> None:
    files = recorded("killed")
    whole = read_kafka_metadata(files, "/kafka")
    checkpoints = [n for n in files.listdir(f"/kafka/{FOLDER}") if n.endswith(".checkpoint")]
    assert len(checkpoints) == 2
    for name in checkpoints[-dropped:]:
        files.remove(f"/kafka/{FOLDER}/{name}")
    assert read_kafka_metadata(files, "/kafka") == whole


def test_segments_before_the_snapshot_are_not_needed() -> None:
    files = recorded("killed")
    whole = read_kafka_metadata(files, "/kafka")
    files.write_atomic(LOG, b"damaged, but nobody needs it")
    assert read_kafka_metadata(files, "/kafka") == whole
    files.remove(LOG)
    assert read_kafka_metadata(files, "/kafka") == whole
    for name in files.listdir(f"/kafka/{FOLDER}"):
        if name.endswith(".checkpoint"):
            files.remove(f"/kafka/{FOLDER}/{name}")
    with pytest.raises(ImportRefused, match="records from 0 to 25 are missing"):
        read_kafka_metadata(files, "/kafka")


@pytest.mark.parametrize("name", ["stopped", "killed"])
async def test_a_store_opened_on_a_kafka_folder_begins_with_its_metadata(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = recorded(name)
    before = {path: files.read_bytes(f"/kafka/{FOLDER}/{path}") for path in listing(files)}
    store, imported = await open_store(files, STORE, ["/other", "/kafka"])
    assert imported is not None
    assert imported.node_id == 7
    registry = Registry(store)
    image = await registry.load()
    assert image.topics == EXPECTED[name]
    assert image.cluster_id == "MkU3OEVBNTcwNTJENDM2Qg"
    assert image.broker_configs == imported.broker_configs
    assert image.group_configs == GROUP_CONFIGS
    assert (await registry.allocate_producer_ids()).start == 1000, "beyond Kafka's last block"
    assert registry.features == initial({}), "of Kafka 4.2: transaction version 2"
    await store.close()
    assert "2 topics with 6 partitions" in caplog.text
    assert "1 SCRAM credentials, 1 client quotas" in caplog.text
    after = {path: files.read_bytes(f"/kafka/{FOLDER}/{path}") for path in listing(files)}
    assert after == before, "Kafka's files are only read"


async def test_the_import_happens_once() -> None:
    files = recorded("stopped")
    store, imported = await open_store(files, STORE, ["/kafka"])
    assert imported is not None
    registry = Registry(store)
    await registry.load()
    await registry.delete_topic(EXPECTED["stopped"]["orders"].id)
    await store.close()
    store, imported = await open_store(files, STORE, ["/kafka"])
    assert imported is None
    assert sorted((await Registry(store).load()).topics) == ["reborn"]
    await store.close()


async def test_a_folder_without_kafka_begins_empty() -> None:
    files = MemoryFileSystem()
    assert find_kafka_metadata(files, ["/data"]) is None
    store, imported = await open_store(files, "/data/metadata", ["/data"])
    assert imported is None
    assert (await Registry(store).load()).topics == {}
    await store.close()


async def test_a_crash_during_the_import_leaves_all_or_nothing() -> None:
    rehearsal = recorded("stopped")
    first = rehearsal.operations
    store, _ = await open_store(rehearsal, STORE, ["/kafka"])
    await store.close()
    outcomes = set()
    for crash_at in range(first, rehearsal.operations):
        for torn in (0, 100):
            files = recorded("stopped")
            files.crash_at(crash_at, torn=torn)
            with pytest.raises(Crashed):
                await open_store(files, STORE, ["/kafka"])
            for disk in (files.killed(), files.power_lost(), files.power_lost(names=True)):
                outcomes.add(EmbeddedStore.exists(disk, STORE))
                store, _ = await open_store(disk, STORE, ["/kafka"])
                assert (await Registry(store).load()).topics == EXPECTED["stopped"]
                await store.close()
    assert outcomes == {True, False}


def listing(files: MemoryFileSystem) -> list[str]:
    return files.listdir(f"/kafka/{FOLDER}")


# --- unfinished and damaged files -----------------------------------------------------------------


def last_batch(data: bytes) -> int:
    return [position for position, _ in batches(data)][-1]


@pytest.mark.parametrize("cut", [1, 40, 61, 70])
def test_an_unfinished_last_batch_is_skipped_and_logged(
    cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = recorded("stopped")
    data = files.read_bytes(LOG)
    files.write_atomic(LOG, data[:-cut])
    cluster = read_kafka_metadata(files, "/kafka")
    assert [topic.name for topic in cluster.topics] == ["orders", "reborn"]
    assert (
        f"skipped {len(data) - cut - last_batch(data)} bytes of an unfinished write" in caplog.text
    )


def test_zeros_after_the_last_batch_are_skipped() -> None:
    files = recorded("stopped")
    whole = read_kafka_metadata(files, "/kafka")
    files.write_atomic(LOG, files.read_bytes(LOG) + bytes(500))
    assert read_kafka_metadata(files, "/kafka") == whole


def test_anything_else_after_the_last_batch_is_refused() -> None:
    files = recorded("stopped")
    files.write_atomic(LOG, files.read_bytes(LOG) + bytes(100) + b"what is this?")
    with pytest.raises(ImportRefused, match=LOG):
        read_kafka_metadata(files, "/kafka")


def test_a_last_batch_that_was_not_filled_is_skipped() -> None:
    files = recorded("stopped")
    data = bytearray(files.read_bytes(LOG))
    position = last_batch(bytes(data))
    data[-5:] = bytes(5)
    files.write_atomic(LOG, bytes(data))
    part = read_kafka_metadata(files, "/kafka")
    files.write_atomic(LOG, bytes(data[:position]))
    assert read_kafka_metadata(files, "/kafka") == part


def test_damage_in_the_middle_of_the_log_is_refused() -> None:
    files = recorded("stopped")
    data = bytearray(files.read_bytes(LOG))
    data[len(data) // 2] ^= 0xFF
    files.write_atomic(LOG, bytes(data))
    with pytest.raises(ImportRefused, match=LOG):
        read_kafka_metadata(files, "/kafka")


def test_an_unfinished_segment_that_is_not_the_last_is_refused() -> None:
    files = recorded("killed")
    for name in listing(files):
        if name.endswith(".checkpoint"):
            files.remove(f"/kafka/{FOLDER}/{name}")
    files.write_atomic(LOG, files.read_bytes(LOG)[:-10])
    with pytest.raises(ImportRefused, match=LOG):
        read_kafka_metadata(files, "/kafka")


@pytest.mark.parametrize("part", [0.3, 0.7, 0.99])
def test_a_damaged_snapshot_is_refused(part: float) -> None:
    files = recorded("killed")
    newest = max(name for name in listing(files) if name.endswith(".checkpoint"))
    path = f"/kafka/{FOLDER}/{newest}"
    data = files.read_bytes(path)
    files.write_atomic(path, data[: int(part * len(data))])
    with pytest.raises(ImportRefused, match=newest):
        read_kafka_metadata(files, "/kafka")
    positions = [position for position, _ in batches(data)]
    files.write_atomic(path, data[: positions[-1]])  # whole batches, but not its end
    with pytest.raises(ImportRefused, match="does not end as a snapshot does"):
        read_kafka_metadata(files, "/kafka")


async def test_a_refused_import_creates_no_store() -> None:
    files = recorded("stopped")
    files.remove("/kafka/meta.properties")
    with pytest.raises(ImportRefused, match=r"meta\.properties is missing"):
        await open_store(files, STORE, ["/kafka"])
    assert not files.exists(STORE)


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ("version=0\ncluster.id=x\nbroker.id=7\n", "version 0"),
        ("version=1\nnode.id=7\n", "no cluster.id"),
        ("version=1\ncluster.id=x\n", "no node.id"),
        ("version=1\ncluster.id=x\nnode.id=-1\n", "no node.id"),
    ],
)
def test_properties_that_say_too_little_are_refused(properties: str, problem: str) -> None:
    files = recorded("stopped")
    files.write_atomic("/kafka/meta.properties", properties.encode())
    with pytest.raises(ImportRefused, match=problem):
        read_kafka_metadata(files, "/kafka")


# --- records made here ----------------------------------------------------------------------------

ID = bytes(range(16))


def string(text: str) -> bytes:
    return bytes((len(text) + 1,)) + text.encode()


def frame(kind: int, fields: bytes, version: int = 0) -> bytes:
    return bytes((1, kind, version)) + fields


def topic_record(name: str = "t") -> bytes:
    return frame(2, string(name) + ID + b"\x00")


def partition_record(replicas: bytes, number: int = 0) -> bytes:
    nodes = bytes((len(replicas) + 1,)) + b"".join(bytes((0, 0, 0, node)) for node in replicas)
    epochs = (5).to_bytes(4, "big") + (9).to_bytes(4, "big")
    return frame(
        3,
        number.to_bytes(4, "big") + ID + nodes + nodes + b"\x01\x01" + bytes((0, 0, 0, 7)) + epochs
        + b"\x00",
    )  # fmt: skip


def replayed(*batches_of_records: list[bytes], compression: Compression = Compression.NONE) -> (
    KafkaCluster
):  # fmt: skip
    files = MemoryFileSystem()
    files.makedirs(f"/kafka/{FOLDER}")
    files.write_atomic("/kafka/meta.properties", b"version=1\ncluster.id=c\nnode.id=7\n")
    data = b""
    offset = 0
    for values in batches_of_records:
        records = [(0, None, value, ()) for value in values]
        data += build_batch(records, base_offset=offset, compression=compression)
        offset += len(values)
    files.write_atomic(LOG, data)
    return read_kafka_metadata(files, "/kafka")


@pytest.mark.parametrize("compression", list(Compression))
def test_compressed_batches_are_read(compression: Compression) -> None:
    cluster = replayed([topic_record(), partition_record(b"\x07")], compression=compression)
    (topic,) = cluster.topics
    assert topic.partitions == (PartitionState(7, 5, 9, (7,), (7,)),)


BEGIN, END, ABORT = frame(23, b"\x00"), frame(24, b"\x00"), frame(25, b"\x00")


def test_a_metadata_transaction_counts_when_it_ends_and_not_when_it_is_aborted() -> None:
    whole = [topic_record(), partition_record(b"\x07")]
    assert replayed([BEGIN], whole, [END]).topics
    assert not replayed([BEGIN], whole, [ABORT]).topics
    assert not replayed([BEGIN], whole).topics, "unfinished: Kafka aborts it at its next start"
    assert replayed([BEGIN], [ABORT], whole).topics


@pytest.mark.parametrize("replicas", [b"\x08", b"\x07\x08", b""])
def test_partitions_of_other_nodes_are_refused(replicas: bytes) -> None:
    with pytest.raises(ImportRefused, match="single-node"):
        replayed([topic_record(), partition_record(replicas)])


def test_a_cluster_of_several_brokers_is_refused() -> None:
    endpoint = string("PLAINTEXT") + string("host") + b"\x23\x84" + b"\x00\x00" + b"\x00"
    fields = bytes((0, 0, 0, 8)) + b"\x00" + ID + bytes(8) + b"\x02" + endpoint + b"\x01"
    registered = frame(0, fields + b"\x00" + b"\x01" + b"\x00" + b"\x00", version=3)
    unregistered = frame(1, bytes((0, 0, 0, 8)) + bytes(8) + b"\x00")
    with pytest.raises(ImportRefused, match=r"other brokers than 7, namely \[8\]"):
        replayed([registered])
    replayed([registered, unregistered])


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x02\x02\x00",
        frame(99, b""),
        frame(2, b"", version=1),
        topic_record()[:-3],
        topic_record() + b"\x00",
        frame(2, b"\xff\xff\xff\xff\x0f"),
        frame(2, b"\x00" + ID + b"\x00"),
        frame(3, bytes(20) + b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_record_that_is_not_understood_stops_the_import(record: bytes) -> None:
    with pytest.raises(ImportRefused, match=r"up to 4\.2"):
        replayed([topic_record("first")[:-17] + b"\xee" * 16 + b"\x00", record])


def test_a_change_to_something_that_never_was_is_refused() -> None:
    with pytest.raises(ImportRefused, match="never created"):
        replayed([partition_record(b"\x07")])


def test_a_gap_between_partitions_is_refused() -> None:
    with pytest.raises(ImportRefused, match="gaps"):
        replayed([topic_record(), partition_record(b"\x07", number=1)])


def test_producer_ids_never_go_back() -> None:
    taken = [frame(15, bytes(12) + number.to_bytes(8, "big") + b"\x00") for number in (3000, 2000)]
    assert replayed(taken).next_producer_id == 3000


def feature_record(name: str, level: int) -> bytes:
    return frame(12, string(name) + level.to_bytes(2, "big") + b"\x00")


@pytest.mark.parametrize(
    ("records", "level"),
    [
        ([], 0),
        ([feature_record(TRANSACTIONS, 1)], 1),
        ([feature_record(TRANSACTIONS, 2)], 2),
        ([feature_record(TRANSACTIONS, 2), feature_record(TRANSACTIONS, 0)], 0),
    ],
)
def test_the_transaction_version_is_kafkas_and_other_levels_are_not(
    records: list[bytes], level: int
) -> None:
    contents = replayed([feature_record("metadata.version", 21), *records]).contents()
    levels = layout.decode_features(contents[layout.FEATURES])
    assert levels[TRANSACTIONS] == level
    assert levels["metadata.version"] == SUPPORTED["metadata.version"][-1]
    assert levels[FORMATS] == SUPPORTED[FORMATS][-1]


def test_a_transaction_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(ImportRefused, match=r"transaction\.version at 3: the newest .* is 2"):
        replayed([feature_record(TRANSACTIONS, 3)])


def test_records_that_a_snapshot_covers_are_not_replayed_again() -> None:
    files = MemoryFileSystem()
    files.makedirs(f"/kafka/{FOLDER}")
    files.write_atomic("/kafka/meta.properties", b"version=1\ncluster.id=c\nnode.id=7\n")
    snapshot = build_batch([(0, None, topic_record(), ())])
    footer = build_batch([(0, b"\x00\x00\x00\x04", b"", ())], control=True)
    name = f"{2:020d}-{1:010d}.checkpoint"
    files.write_atomic(f"/kafka/{FOLDER}/{name}", snapshot + footer)
    # Records 0 and 1 created and lost another topic; of this batch only the last one is news.
    values = [b"not even", b"a record", partition_record(b"\x07")]
    files.write_atomic(LOG, build_batch([(0, None, value, ()) for value in values]))
    (topic,) = read_kafka_metadata(files, "/kafka").topics
    assert len(topic.partitions) == 1


def test_settings_of_a_removed_topic_go_with_it() -> None:
    config = frame(4, b"\x02" + string("t") + string("retention.ms") + string("1") + b"\x00")
    removed = frame(9, ID + b"\x00")
    again = [topic_record(), partition_record(b"\x07")]
    (topic,) = replayed([*again, config]).topics
    assert topic.config == {"retention.ms": "1"}
    (topic,) = replayed([*again, config, removed], again).topics
    assert topic.config == {}


def test_settings_of_groups_are_taken_over_as_long_as_there_are_any() -> None:
    def config(group: str, text: bytes) -> bytes:
        name = string("consumer.session.timeout.ms")
        return frame(4, b"\x20" + string(group) + name + text + b"\x00")

    cluster = replayed(
        [config("a/b", string("50000")), config("gone", string("50000"))], [config("gone", b"\x00")]
    )
    assert cluster.group_configs == {"a/b": {"consumer.session.timeout.ms": "50000"}}
    key = layout.group_config_key("a/b")
    assert layout.decode_config(key, cluster.contents()[key]) == cluster.group_configs["a/b"]


def test_subscriptions_to_clients_metrics_are_taken_over() -> None:
    record = frame(4, b"\x10" + string("s") + string("metrics") + string("*") + b"\x00")
    cluster = replayed([record])
    assert cluster.client_metrics == {"s": {"metrics": "*"}}
    key = layout.client_metrics_key("s")
    assert layout.decode_config(key, cluster.contents()[key]) == {"metrics": "*"}
    assert cluster.left_out == {}


def test_things_left_out_are_counted_as_long_as_they_exist() -> None:
    fields = b"\x02" + string("t") + b"\x03" + string("User:a") + string("*") + b"\x02\x03"
    acl, no_acl = frame(18, ID + fields + b"\x00"), frame(19, ID + b"\x00")
    token = frame(10, string("o") + string("r") + b"\x01" + bytes(24) + string("id") + b"\x00")
    no_token = frame(26, string("id") + b"\x00")
    user = string("alice") + b"\x01"
    scram = frame(11, user + string("salt") + string("key") * 2 + bytes(4) + b"\x00")
    no_scram = frame(22, user + b"\x00")
    entity = b"\x02" + string("user") + b"\x00" + b"\x00"  # of the default user
    quota = frame(14, entity + string("producer_byte_rate") + bytes(8) + b"\x00" + b"\x00")
    no_quota = frame(14, entity + string("producer_byte_rate") + bytes(8) + b"\x01" + b"\x00")
    assert replayed([acl, token, scram, quota]).left_out == {
        "ACLs": 1,
        "SCRAM credentials": 1,
        "client quotas": 1,
        "delegation tokens": 1,
    }
    there = [acl, acl, token, scram, quota]
    assert replayed([*there, no_acl, no_token, no_scram, no_quota]).left_out == {}


def test_the_contents_have_a_key_per_64_partitions() -> None:
    state = PartitionState(7, 0, 0, (7,), (7,))
    topic = Topic("big", parse_topic_id("z3lN1cVNSECD76tiXvCu1A"), (state,) * 65)
    contents = KafkaCluster("c", 7, (topic,), {}, 0, {}, {}).contents()
    keys = [layout.partitions_key(topic.id, chunk) for chunk in (0, 1)]
    assert [len(layout.decode_partitions(key, contents[key])) for key in keys] == [64, 1]
