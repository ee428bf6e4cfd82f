"""The text files of a data folder."""

from __future__ import annotations

import pickle

import pytest

from ottla.model.ids import TopicId, TopicPartition, parse_topic_id
from ottla.storage.checkpoints import (
    CheckpointError,
    MetaProperties,
    OffsetCheckpoint,
    read_meta_properties,
    read_partition_metadata,
    write_meta_properties,
    write_partition_metadata,
)
from ottla.testing.files import Crashed, MemoryFileSystem

TOPIC_ID = parse_topic_id("4L6g3nShT-eMCtK--X86sw")


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.makedirs("/d")
    return system


def test_the_error_survives_the_way_out_of_a_child_process() -> None:
    error = pickle.loads(pickle.dumps(CheckpointError("/d/c", 3, "bad")))
    assert (error.path, error.line, str(error)) == ("/d/c", 3, "/d/c, line 3: bad")


class TestOffsetCheckpoint:
    def test_offsets_are_read_back(self, fs: MemoryFileSystem) -> None:
        checkpoint = OffsetCheckpoint(fs, "/d/c")
        offsets = {TopicPartition("a-b", 0): 5, TopicPartition("c", 12): 2**40}
        checkpoint.write(offsets)
        assert checkpoint.read() == offsets

    def test_the_format_is_kafkas(self, fs: MemoryFileSystem) -> None:
        OffsetCheckpoint(fs, "/d/c").write(
            {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 7}
        )
        assert fs.read_bytes("/d/c") == b"0\n2\norders 0 5\norders 1 7\n"

    def test_a_missing_or_empty_file_has_no_offsets(self, fs: MemoryFileSystem) -> None:
        checkpoint = OffsetCheckpoint(fs, "/d/c")
        assert checkpoint.read() == {}
        for content in (b"", b"0\n", b"0\n0\n"):
            fs.write_atomic("/d/c", content)
            assert checkpoint.read() == {}

    @pytest.mark.parametrize(
        ("content", "line", "problem"),
        [
            (b"x\n", 1, "not a number: 'x'"),
            (b"1\n0\n", 1, "version 1"),
            (b"0\nmany\n", 2, "not a number"),
            (b"0\n2\na 0 5\n", 2, "2 entries announced, 1 found"),
            (b"0\n1\na 0 5\nb 0 5\n", 2, "1 entries announced, 2 found"),
            (b"0\n2\na 0 5\nb 0\n", 4, "topic partition offset"),
            (b"0\n1\na 0 5 6\n", 3, "topic partition offset"),
            (b"0\n1\na 0 five\n", 3, "not a number: 'five'"),
            (b"0\n1\na zero 5\n", 3, "not a number: 'zero'"),
            (b"\xff\xfe\x00", 1, "not text"),
        ],
    )
    def test_a_malformed_file_is_named_with_its_line(
        self, fs: MemoryFileSystem, content: bytes, line: int, problem: str
    ) -> None:
        fs.write_atomic("/d/c", content)
        with pytest.raises(CheckpointError, match=problem) as caught:
            OffsetCheckpoint(fs, "/d/c").read()
        assert caught.value.path == "/d/c"
        assert caught.value.line == line
        assert str(caught.value).startswith(f"/d/c, line {line}: ")

    def test_a_crash_leaves_the_old_or_the_new_offsets(self, fs: MemoryFileSystem) -> None:
        partition = TopicPartition("a", 0)
        OffsetCheckpoint(fs, "/d/c").write({partition: 1})
        seen = set()
        for operation in range(20):
            disk = fs.killed()
            disk.crash_at(operation, torn=5)
            try:
                OffsetCheckpoint(disk, "/d/c").write({partition: 2})
            except Crashed:
                seen.add(OffsetCheckpoint(disk.killed(), "/d/c").read()[partition])
        assert seen == {1, 2}


class TestPartitionMetadata:
    def test_the_topic_id_is_read_back(self, fs: MemoryFileSystem) -> None:
        write_partition_metadata(fs, "/d", TOPIC_ID)
        assert read_partition_metadata(fs, "/d") == TOPIC_ID

    def test_the_file_is_byte_for_byte_kafkas(self, fs: MemoryFileSystem) -> None:
        write_partition_metadata(fs, "/d", TOPIC_ID)
        written = fs.read_bytes("/d/partition.metadata")
        assert written == b"version: 0\ntopic_id: 4L6g3nShT-eMCtK--X86sw"

    def test_a_folder_without_the_file_has_no_topic_id(self, fs: MemoryFileSystem) -> None:
        assert read_partition_metadata(fs, "/d") is None

    @pytest.mark.parametrize(
        ("content", "line", "problem"),
        [
            (b"", 1, "version is missing"),
            (b"version: 0\n", 1, "topic_id is missing"),
            (b"version: 1\ntopic_id: 4L6g3nShT-eMCtK--X86sw", 1, "version 1"),
            (b"version: 0\ntopic_id: short", 2, "not a topic id: 'short'"),
            (b"version: 0\ntopic_id: c2hvcnQ", 2, "not a topic id: 'c2hvcnQ'"),
            (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 2, "all zero"),
            (b"version: 0\ntopic_id 4L6g3nShT-eMCtK--X86sw", 2, "name: value"),
            (b"\xff", 1, "not text"),
        ],
    )
    def test_a_malformed_file_is_named_with_its_line(
        self, fs: MemoryFileSystem, content: bytes, line: int, problem: str
    ) -> None:
        fs.write_atomic("/d/partition.metadata", content)
        with pytest.raises(CheckpointError, match=problem) as caught:
            read_partition_metadata(fs, "/d")
        assert (caught.value.path, caught.value.line) == ("/d/partition.metadata", line)

    def test_ids_with_every_byte_survive(self, fs: MemoryFileSystem) -> None:
        for start in range(0, 256, 16):
            topic_id = TopicId(bytes(range(start, start + 16)))
            write_partition_metadata(fs, "/d", topic_id)
            assert read_partition_metadata(fs, "/d") == topic_id


class TestMetaProperties:
    def test_properties_are_read_back(self, fs: MemoryFileSystem) -> None:
        for properties in (
            MetaProperties(3, "MkU3OEVBNTcwNTJENDM2Qk", "4L6g3nShT-eMCtK--X86sw"),
            MetaProperties(0, "c"),
            MetaProperties(0, r"a:b=c d#!\x"),
            MetaProperties(7, "c", version=0),
            MetaProperties(None, None, version=0),
        ):
            write_meta_properties(fs, "/d", properties)
            assert read_meta_properties(fs, "/d") == properties

    def test_a_file_of_apache_kafka_is_read(self, fs: MemoryFileSystem) -> None:
        content = (
            b"#\n#Sun Nov 15 09:58:21 UTC 2026\nnode.id=3\n"
            b"directory.id=4L6g3nShT-eMCtK--X86sw\nversion=1\n"
            b"cluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
        )
        fs.write_atomic("/d/meta.properties", content)
        assert read_meta_properties(fs, "/d") == MetaProperties(
            3, "MkU3OEVBNTcwNTJENDM2Qk", "4L6g3nShT-eMCtK--X86sw"
        )

    def test_javas_escapes_are_understood(self, fs: MemoryFileSystem) -> None:
        content = "version=1\nnode.id=3\ncluster.id=a\\:b\\=c d\\#é\\\\x\n"
        fs.write_atomic("/d/meta.properties", content.encode())
        found = read_meta_properties(fs, "/d")
        assert found is not None
        assert found.cluster_id == r"a:b=c d#é\x"

    def test_a_file_of_a_broker_with_zookeeper_is_read(self, fs: MemoryFileSystem) -> None:
        fs.write_atomic("/d/meta.properties", b"version=0\nbroker.id=5\ncluster.id=abc\n")
        assert read_meta_properties(fs, "/d") == MetaProperties(5, "abc", version=0)

    def test_a_new_folder_has_none(self, fs: MemoryFileSystem) -> None:
        assert read_meta_properties(fs, "/d") is None

    @pytest.mark.parametrize(
        ("content", "line", "problem"),
        [
            (b"version=2\nnode.id=1\ncluster.id=x\n", 1, "version 2"),
            (b"version=1\ncluster.id=x\n", 1, "node.id is missing"),
            (b"version=1\nnode.id=1\n", 1, "cluster.id is missing"),
            (b"version=1\nnode.id=one\ncluster.id=x\n", 2, "not a number: 'one'"),
            (b"version=1\nnode.id=1\ncluster.id\n", 3, "name=value"),
        ],
    )
    def test_a_malformed_file_is_named_with_its_line(
        self, fs: MemoryFileSystem, content: bytes, line: int, problem: str
    ) -> None:
        fs.write_atomic("/d/meta.properties", content)
        with pytest.raises(CheckpointError, match=problem) as caught:
            read_meta_properties(fs, "/d")
        assert (caught.value.path, caught.value.line) == ("/d/meta.properties", line)
