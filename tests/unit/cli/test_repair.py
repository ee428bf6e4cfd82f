from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from ottla.cli.dump import verify
from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicPartition
from ottla.records.batch import batches
from ottla.records.builder import build_batch
from ottla.records.reader import iter_records
from ottla.runtime.files import OsFileSystem
from ottla.storage.log import Log
from ottla.storage.open_log import open_log
from ottla.storage.recovery import LogCorrupted
from ottla.testing.logs import log_context

Run = Callable[..., Result]

FIRST, SECOND = "0" * 20, f"{6:020d}"
EVERYTHING = 2**31 - 1


def batch(offset: int) -> bytes:
    return build_batch(
        [(1_700_000_000_000 + offset, None, b"value %d" % offset, ())], base_offset=offset
    )


SIZE = len(batch(0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition in a stopped broker's data folder: offsets 0 to 5 and 6 to 8 in two segments."""
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{FIRST}.log").write_bytes(b"".join(map(batch, range(6))))
    (folder / f"{SECOND}.log").write_bytes(b"".join(map(batch, range(6, 9))))
    open_partition(folder).close_files()  # makes the indexes
    return folder


def damage(folder: Path, offset: int) -> None:
    """Flip a bit in the batch with that offset."""
    name, first = (SECOND, 6) if offset >= 6 else (FIRST, 0)
    path = folder / f"{name}.log"
    data = bytearray(path.read_bytes())
    data[(offset - first) * SIZE + SIZE - 3] ^= 1
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def open_partition(folder: Path) -> Log:
    context = log_context(OsFileSystem())
    return open_log(context, str(folder), TopicPartition("t", 0), TopicConfig())


def offsets(folder: Path) -> list[int]:
    """What a consumer would get."""
    log = open_partition(folder)
    found: list[int] = []
    while (at := found[-1] + 1 if found else 0) < log.log_end_offset:
        region = log.read(at, EVERYTHING, upper=log.log_end_offset).region
        assert region is not None
        data = memoryview(region.read())
        for position, header in batches(data):
            whole = data[position : position + header.size]
            found += [record.offset for record in iter_records(whole, header)]
    log.close_files()
    return found


def test_by_default_it_shows_the_loss_and_changes_nothing(ottla: Run, folder: Path) -> None:
    damage(folder, 2)
    before = contents(folder)
    result = ottla("log", "repair", str(folder))
    assert result.exit_code == 0
    assert contents(folder) == before
    assert result.stdout.splitlines() == [
        f"{folder}/{FIRST}.log",
        f"  {SIZE} bytes from position {2 * SIZE} on: the checksum is wrong",
        "  lost: offset 2; what follows stays where it is",
        f"{SIZE} bytes and at most 1 record would be removed",
        "nothing was changed: restore the file from a copy if you have one, or accept the loss "
        f"with: ottla log repair --yes {folder}",
    ]


def test_with_yes_only_the_damage_goes(ottla: Run, folder: Path) -> None:
    damage(folder, 2)
    damage(folder, 3)
    with pytest.raises(LogCorrupted):
        open_partition(folder)
    result = ottla("log", "repair", "--yes", str(folder))
    assert result.exit_code == 0
    assert "lost: offsets 2 to 3; what follows stays where it is" in result.stdout
    assert f"{2 * SIZE} bytes and at most 2 records were removed" in result.stdout
    assert verify(str(folder / f"{FIRST}.log"))[1] == []
    assert offsets(folder) == [0, 1, 4, 5, 6, 7, 8]


def test_with_truncate_the_log_ends_at_the_damage(ottla: Run, folder: Path) -> None:
    damage(folder, 2)
    shown = ottla("log", "repair", "--truncate", str(folder))
    assert f"accept the loss with: ottla log repair --yes --truncate {folder}" in shown.stdout
    assert "lost: offsets 2 to 5" in shown.stdout
    assert "lost: offsets 6 to 8" in shown.stdout
    assert ottla("log", "repair", "--truncate", "--yes", str(folder)).exit_code == 0
    assert not (folder / f"{SECOND}.log").exists()
    assert offsets(folder) == [0, 1]


def test_an_empty_last_segment_counts_for_nothing(ottla: Run, folder: Path) -> None:
    damage(folder, 2)
    (folder / f"{SECOND}.log").write_bytes(b"")
    result = ottla("log", "repair", "--truncate", "--json", str(folder))
    assert json.loads(result.stdout)["records"] == 4


def test_at_the_very_end_the_number_of_records_is_not_known(ottla: Run, folder: Path) -> None:
    damage(folder, 8)
    result = ottla("log", "repair", str(folder))
    assert "the log ends at offset 8: no whole batch is found behind it" in result.stdout
    assert f"\n{SIZE} bytes would be removed\n" in result.stdout
    document = json.loads(ottla("log", "repair", "--json", str(folder)).stdout)
    assert (document["records"], document["losses"][0]["end_offset"]) == (None, None)


def test_json_has_what_its_help_says(ottla: Run, folder: Path) -> None:
    damage(folder, 4)
    documents = [
        json.loads(ottla("log", "repair", "--json", *flags, str(folder)).stdout)
        for flags in ([], ["--yes"], [])
    ]
    loss = {
        "file": f"{folder}/{FIRST}.log",
        "position": 4 * SIZE,
        "bytes": SIZE,
        "first_offset": 4,
        "end_offset": 5,
        "problem": "the checksum is wrong",
    }
    common = {"folder": str(folder), "bytes": SIZE, "records": 1, "losses": [loss]}
    assert documents == [
        {**common, "damaged": True, "repaired": False},
        {**common, "damaged": True, "repaired": True},
        {
            "folder": str(folder),
            "damaged": False,
            "repaired": False,
            "bytes": 0,
            "records": 0,
            "losses": [],
        },
    ]
    help_text = ottla("log", "repair", "--help").output
    for field in (*documents[0], *loss):
        assert f'"{field}"' in help_text


def test_a_sound_log_is_left_alone(ottla: Run, folder: Path) -> None:
    before = contents(folder)
    result = ottla("log", "repair", "--yes", f"{folder}/")
    assert (result.exit_code, result.stdout) == (0, f"{folder}: no damage in 2 segments\n")
    assert contents(folder) == before


@pytest.mark.parametrize("flags", [[], ["--yes"]])
def test_a_folder_of_a_running_broker_is_refused(
    ottla: Run, folder: Path, flags: list[str]
) -> None:
    damage(folder, 2)
    before = contents(folder)
    lock = OsFileSystem().lock(str(folder.parent / ".lock"))
    try:
        result = ottla("log", "repair", *flags, str(folder))
    finally:
        lock.release()
    assert result.exit_code == 1
    assert "a broker is running on the data folder" in result.stderr
    assert str(folder.parent) in result.stderr
    assert contents(folder) == before
    assert ottla("log", "repair", *flags, str(folder)).exit_code == 0


def test_a_copy_outside_of_a_data_folder_has_no_lock(
    ottla: Run, folder: Path, tmp_path: Path
) -> None:
    damage(folder, 2)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere / "t-0")
    assert ottla("log", "repair", "--yes", str(elsewhere / "t-0")).exit_code == 0
    assert [path.name for path in elsewhere.iterdir()] == ["t-0"]
    assert offsets(elsewhere / "t-0") == [0, 1, 3, 4, 5, 6, 7, 8]


def test_only_a_partitions_folder_is_taken(ottla: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, complaint in (
        (tmp_path, f"is a data folder; name the folder of one partition, such as {folder}"),
        (tmp_path / "empty", "there is no segment file (.log) in"),
        (tmp_path / "nowhere", "there is no folder"),
    ):
        result = ottla("log", "repair", str(path))
        assert result.exit_code == 1
        assert complaint in result.stderr


def test_a_file_that_cannot_be_opened_is_one_line(ottla: Run, folder: Path) -> None:
    (folder / f"{FIRST}.log").unlink()
    (folder / f"{FIRST}.log").mkdir()
    result = ottla("log", "repair", str(folder))
    assert result.exit_code == 1
    assert result.stderr == f"Error: {folder}/{FIRST}.log: Is a directory\n"


def test_the_command_that_the_broker_advises_is_this_one(ottla: Run, folder: Path) -> None:
    damage(folder, 2)
    with pytest.raises(LogCorrupted) as refused:
        open_partition(folder)
    advised = re.search(r"with: ottla (.*)$", str(refused.value))
    assert advised is not None
    result = ottla(*advised[1].split())
    assert result.exit_code == 0
    assert "lost: offset 2" in result.stdout
