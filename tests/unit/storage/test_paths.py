"""Names in a data folder."""

from __future__ import annotations

import pytest

from ottla.model.ids import TopicPartition
from ottla.storage import paths

UNIQUE = "0123456789abcdef0123456789abcdef"


def test_segment_files_are_named_by_twenty_digits() -> None:
    assert paths.log_name(0) == "00000000000000000000.log"
    assert paths.index_name(5) == "00000000000000000005.index"
    assert paths.timeindex_name(2**63 - 1) == "09223372036854775807.timeindex"
    assert paths.txnindex_name(12) == "00000000000000000012.txnindex"
    assert paths.snapshot_name(12) == "00000000000000000012.snapshot"


def test_offsets_are_read_back_from_names() -> None:
    for name in (paths.log_name, paths.index_name, paths.timeindex_name, paths.txnindex_name):
        found = paths.parse_offset_file(name(77))
        assert found is not None
        assert found[0] == 77
        assert found[1] in paths.SEGMENT_SUFFIXES
    assert paths.parse_offset_file(paths.snapshot_name(9)) == (9, paths.SNAPSHOT_SUFFIX)


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000000.log.deleted",
        "00000000000000000000.log.swap",
        "0.log",
        "00000000000000000000.txt",
        "-0000000000000000001.log",
        "leader-epoch-checkpoint",
        "",
    ],
)
def test_other_names_are_no_segment_files(name: str) -> None:
    assert paths.parse_offset_file(name) is None


@pytest.mark.parametrize(
    "partition",
    [
        TopicPartition("orders", 0),
        TopicPartition("my-topic-7", 12),
        TopicPartition("a.b_c-", 3),
        TopicPartition("__cluster_metadata", 0),
        TopicPartition("x-delete", 1),
        TopicPartition("t", 2**31 - 1),
    ],
)
def test_a_partitions_folder_is_found_again(partition: TopicPartition) -> None:
    assert paths.parse_partition_dir(paths.partition_dir(partition)) == partition


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "-0",
        "orders-x",
        "orders-01",
        "orders--1-",
        "orders-2147483648",
        "orders-99999999999",
        "or ders-0",
        "lost+found",
        "meta.properties",
        f"orders-0.{UNIQUE}-delete",
        f"orders-0.{UNIQUE}-future",
        f"orders-0.{UNIQUE}-stray",
        "",
    ],
)
def test_other_folders_are_no_partitions(name: str) -> None:
    assert paths.parse_partition_dir(name) is None


def test_a_deleted_partitions_folder_has_a_unique_name() -> None:
    name = paths.delete_dir(TopicPartition("orders", 7), UNIQUE)
    assert name == f"orders-7.{UNIQUE}-delete"
    assert paths.is_delete_dir(name)
    assert not paths.is_delete_dir("orders-7")
    assert not paths.is_delete_dir("orders-delete")
    assert not paths.is_delete_dir(f"orders-7.{UNIQUE}-stray")


def test_a_stray_partitions_folder_has_a_unique_name() -> None:
    name = paths.stray_dir(TopicPartition("orders", 7), UNIQUE)
    assert name == f"orders-7.{UNIQUE}-stray"
    assert paths.is_marked_dir(name)
    assert not paths.is_delete_dir(name)


def test_a_long_topic_name_is_cut_to_what_file_systems_allow() -> None:
    long = TopicPartition("t" * 249, 123)
    assert len(paths.partition_dir(long)) <= 255
    name = paths.delete_dir(long, UNIQUE)
    assert len(name) == 255
    assert name.endswith(f"t-123.{UNIQUE}-delete")
    assert paths.is_delete_dir(name)
