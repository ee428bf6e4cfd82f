"""Where the metadata is, or what is concluded when it is not there."""

from __future__ import annotations

import pytest

from ottla.broker.metadata_home import NOTE, MetadataMissing, find_home, remember
from ottla.cluster import journal
from ottla.storage.checkpoints import MetaProperties, read_meta_properties
from ottla.testing.files import MemoryFileSystem

A, B = "/a", "/b"
META = b"version=1\nnode.id=1\ncluster.id=c\n"


@pytest.fixture
def disk() -> MemoryFileSystem:
    disk = MemoryFileSystem()
    for folder in (A, B):
        disk.makedirs(folder)
    return disk


def make_store(disk: MemoryFileSystem, folder: str) -> None:
    disk.makedirs(f"{folder}/metadata")
    journal.create(disk, f"{folder}/metadata", {})


def missed(disk: MemoryFileSystem, *folders: str, **offline: str) -> str:
    with pytest.raises(MetadataMissing) as caught:
        find_home(disk, folders, {f"/{name}": reason for name, reason in offline.items()})
    return str(caught.value)


def test_fresh_folders_begin_a_cluster_in_the_first(disk: MemoryFileSystem) -> None:
    home = find_home(disk, (A, B), {})
    assert (home.path, home.exists, home.kraft) == ("/a/metadata", False, False)


def test_a_folder_that_was_only_formatted_is_fresh(disk: MemoryFileSystem) -> None:
    disk.write_atomic(f"{A}/meta.properties", META)
    assert not find_home(disk, (A, B), {}).exists


def test_a_fresh_folder_beside_one_that_never_worked_begins_a_cluster(
    disk: MemoryFileSystem,
) -> None:
    assert not find_home(disk, (B,), {"/broken": "Input/output error"}).exists


def test_a_fresh_folder_beside_one_that_was_used_begins_nothing(disk: MemoryFileSystem) -> None:
    disk.write_atomic(f"{A}/meta.properties", META)
    said = missed(disk, B, a="Read-only file system")
    assert "/a: Read-only file system" in said


def test_the_store_is_found_wherever_it_is(disk: MemoryFileSystem) -> None:
    make_store(disk, B)
    disk.makedirs(f"{A}/__cluster_metadata-0")
    home = find_home(disk, (A, B), {})
    assert (home.data_folder, home.exists, home.kraft) == (B, True, False)


def test_kafkas_metadata_is_taken_over_where_there_is_no_note(disk: MemoryFileSystem) -> None:
    disk.makedirs(f"{B}/__cluster_metadata-0")
    disk.makedirs(f"{B}/orders-0")
    disk.write_atomic(f"{B}/meta.properties", META)
    assert find_home(disk, (A, B), {}).kraft
    remember(disk, (A, B), A)
    assert "was in /a/metadata" in missed(disk, A, B)


def test_the_folder_that_is_missed_is_named_with_what_became_of_it(disk: MemoryFileSystem) -> None:
    disk.write_atomic(f"{B}/meta.properties", META)
    remember(disk, (B,), A)
    assert "of cluster c was in /a/metadata, and /a is empty" in missed(disk, A, B)
    assert "/a is not in log.dirs" in missed(disk, B)
    assert "/a cannot be opened: no such device" in missed(disk, B, a="no such device")
    disk.makedirs(f"{A}/orders-0")
    assert "is not there any more" in missed(disk, A, B)


def test_partitions_are_not_left_without_metadata(disk: MemoryFileSystem) -> None:
    disk.makedirs(f"{B}/orders-0")
    assert "/b holds 1 partition(s)" in missed(disk, A, B)


def test_deleted_and_stray_folders_are_nobodys_partitions(disk: MemoryFileSystem) -> None:
    disk.makedirs(f"{B}/orders-0.{'a' * 32}-delete")
    disk.makedirs(f"{B}/orders-1.{'a' * 32}-stray")
    assert not find_home(disk, (A, B), {}).exists


def test_of_two_stores_the_notes_name_the_right_one(disk: MemoryFileSystem) -> None:
    make_store(disk, A)
    make_store(disk, B)
    assert "metadata in /a/metadata and in /b/metadata" in missed(disk, A, B)
    remember(disk, (A, B), B)
    assert find_home(disk, (A, B), {}).data_folder == B


def test_an_old_copy_does_not_stand_in_for_a_folder_that_failed(disk: MemoryFileSystem) -> None:
    make_store(disk, B)
    remember(disk, (B,), A)
    assert "may be an old copy" in missed(disk, B, a="Input/output error")
    assert find_home(disk, (B,), {}).data_folder == B, "moved, and its old place given up"


def test_a_damaged_note_still_says_that_there_was_a_store(disk: MemoryFileSystem) -> None:
    disk.write_atomic(f"{A}/{NOTE}", b"\xff\x00")
    assert "is not there any more" in missed(disk, A, B)


def test_a_note_is_written_once_and_where_it_can_be(disk: MemoryFileSystem) -> None:
    remember(disk, (A, B), A)
    before = disk.read_bytes(f"{B}/{NOTE}")
    disk.read_only(B)
    remember(disk, (A, B), A)
    remember(disk, (A, B), B)
    assert disk.read_bytes(f"{B}/{NOTE}") == before
    assert b"folder=/b" in disk.read_bytes(f"{A}/{NOTE}")


def test_the_note_leaves_kafkas_own_file_alone(disk: MemoryFileSystem) -> None:
    disk.write_atomic(f"{A}/meta.properties", META)
    remember(disk, (A,), A)
    assert disk.read_bytes(f"{A}/meta.properties") == META
    assert read_meta_properties(disk, A) == MetaProperties(1, "c")


def test_a_folder_that_was_in_use_and_is_empty_is_missed(disk: MemoryFileSystem) -> None:
    make_store(disk, A)
    for folder in (A, B):
        disk.write_atomic(f"{folder}/meta.properties", META)
    remember(disk, (A, B), A)
    disk.remove_tree(B)
    disk.makedirs(B)
    assert "/b was in use by this broker and is empty: is its disk mounted?" in missed(disk, A, B)
    remember(disk, (A,), A, offline=[B])
    assert "/b was in use" in missed(disk, A, B), "a folder that was offline is not forgotten"
    remember(disk, (A,), A)  # a start without it
    assert find_home(disk, (A, B), {}).exists


def test_a_new_folder_is_not_missed(disk: MemoryFileSystem) -> None:
    make_store(disk, A)
    disk.write_atomic(f"{A}/meta.properties", META)
    remember(disk, (A,), A)
    assert find_home(disk, (A, B), {}).exists
    remember(disk, (A, B), A)  # as `ottla metadata rescue` does, without making it anybody's
    assert find_home(disk, (A, B), {}).exists
