from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import Result

from ottla.cli.dump import find, moment, rows, verify
from ottla.records.batch import read_header
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.records.control import ControlType, end_marker
from ottla.records.walker import empty_batch

Run = Callable[..., Result]

NAME = "00000000000000000100"
FIRST = build_batch(
    [(1_700_000_000_000, b"k", b"v", (("h", b"1"),)), (1_700_000_000_500, None, b"\xff", ())],
    base_offset=100,
    leader_epoch=3,
)
SECOND = build_batch(
    [(1_700_000_001_000, b"a", None, ())],
    base_offset=102,
    compression=Compression.ZSTD,
    producer_id=9,
    producer_epoch=1,
    base_sequence=4,
    transactional=True,
)
MARKER = end_marker(
    ControlType.ABORT,
    producer_id=9,
    producer_epoch=1,
    coordinator_epoch=0,
    timestamp=1_700_000_002_000,
    base_offset=103,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition's folder with a segment of three batches and everything that goes with it."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{NAME}.log").write_bytes(FIRST + SECOND + MARKER)
    index = struct.pack(">iiii", 2, len(FIRST), 3, len(FIRST) + len(SECOND))
    (folder / f"{NAME}.index").write_bytes(index)
    times = struct.pack(">qiqi", 1_700_000_001_000, 2, 1_700_000_002_000, 3)
    (folder / f"{NAME}.timeindex").write_bytes(times)
    (folder / f"{NAME}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 9, 102, 103, 104))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n3 100\n")
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    return folder


def of_kind(path: Path, kind: str, *, records: bool = False) -> list[dict[str, object]]:
    return [row for row in rows(str(path), records=records) if row["kind"] == kind]


def test_batches_are_decoded_without_their_records(folder: Path) -> None:
    first, second, marker = of_kind(folder / f"{NAME}.log", "batch")
    assert (first["base_offset"], first["last_offset"], first["record_count"]) == (100, 101, 2)
    assert (first["position"], first["size"], first["leader_epoch"]) == (0, len(FIRST), 3)
    assert first["crc_ok"] is True
    assert "records" not in first
    assert (second["compression"], second["transactional"], second["control"]) == (
        "zstd",
        True,
        None,
    )
    assert (second["producer_id"], second["producer_epoch"], second["base_sequence"]) == (9, 1, 4)
    assert marker["control"] == "abort"


def test_records_are_decoded_when_asked_for(folder: Path) -> None:
    first, second, _ = of_kind(folder / f"{NAME}.log", "batch", records=True)
    assert first["records"] == [
        {
            "offset": 100,
            "timestamp": 1_700_000_000_000,
            "key": "k",
            "value": "v",
            "headers": [["h", "1"]],
        },
        {
            "offset": 101,
            "timestamp": 1_700_000_000_500,
            "key": None,
            "value": None,
            "value_base64": "/w==",
            "headers": [],
        },
    ]
    assert second["records"] == [
        {"offset": 102, "timestamp": 1_700_000_001_000, "key": "a", "value": None, "headers": []}
    ]


def test_indexes_are_decoded_with_absolute_offsets(folder: Path) -> None:
    assert list(rows(str(folder / f"{NAME}.index"))) == [
        {"kind": "index", "offset": 102, "position": len(FIRST)},
        {"kind": "index", "offset": 103, "position": len(FIRST) + len(SECOND)},
    ]
    assert next(rows(str(folder / f"{NAME}.timeindex"))) == {
        "kind": "timeindex",
        "timestamp": 1_700_000_001_000,
        "offset": 102,
    }
    assert list(rows(str(folder / f"{NAME}.txnindex"))) == [
        {
            "kind": "txnindex",
            "producer_id": 9,
            "first_offset": 102,
            "last_offset": 103,
            "last_stable_offset": 104,
        }
    ]


def test_the_zeros_of_a_preallocated_index_are_no_entries(folder: Path) -> None:
    path = folder / f"{NAME}.index"
    path.write_bytes(path.read_bytes() + bytes(4_096))
    assert len(list(rows(str(path)))) == 2
    assert verify(str(path)) == ("2 entries", [])
    path.write_bytes(bytes(4_096))
    assert list(rows(str(path))) == []


def test_text_files_are_decoded(folder: Path) -> None:
    (folder.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 104\n")
    (folder.parent / "meta.properties").write_text(
        "version=1\nnode.id=1\ncluster.id=c\ndirectory.id=d\n"
    )
    assert list(rows(str(folder / "leader-epoch-checkpoint"))) == [
        {"kind": "epoch", "epoch": 3, "start_offset": 100}
    ]
    assert list(rows(str(folder / "partition.metadata"))) == [
        {"kind": "partition", "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"}
    ]
    assert list(rows(str(folder.parent / "recovery-point-offset-checkpoint"))) == [
        {"kind": "checkpoint", "topic": "t", "partition": 0, "offset": 104}
    ]
    assert list(rows(str(folder.parent / "meta.properties"))) == [
        {
            "kind": "folder",
            "version": 1,
            "node_id": 1,
            "cluster_id": "c",
            "directory_id": "d",
        }
    ]


def test_the_logs_of_coordinators_are_read(tmp_path: Path, ottla: Run) -> None:
    from ottla.coordinator.group import journal as groups
    from ottla.coordinator.group.group import CommittedOffset
    from ottla.coordinator.transaction import journal as transactions
    from ottla.coordinator.transaction.state import Transaction

    offset = CommittedOffset(7, 3, "note", 1_700_000_000_000, -1, bytes(16))
    written = {
        "__transaction_state-15": transactions.transaction(Transaction("payments", 7, 3), 2),
        "__consumer_offsets-1": groups.offset("billing", "orders", 2, offset),
    }
    for name, (key, value) in written.items():
        (tmp_path / name).mkdir()
        content = build_batch([(1, key, value, ()), (1, b"\x7f\x7f", b"", ())], base_offset=100)
        (tmp_path / name / f"{NAME}.log").write_bytes(content)
    [batch] = of_kind(tmp_path / "__transaction_state-15" / f"{NAME}.log", "batch", records=True)
    found, strange = cast(list[dict[str, Any]], batch["records"])
    assert found["decoded"]["key"] == {"type": "0", "data": {"transactionalId": "payments"}}
    assert found["decoded"]["value"]["data"]["producerEpoch"] == 3
    assert strange["decoded"]["key"] == "Unknown record type 32639 at offset 101, skipping."
    shown = " ".join(ottla("log", "dump", "--records", str(tmp_path)).output.split())
    assert 'transactionalId="payments" producerId=7 producerEpoch=3 ' in shown
    assert 'group="billing" topic="orders" partition=2 offset=7 leaderEpoch=3 ' in shown


def test_a_producer_snapshot_is_decoded_and_a_corrupt_one_is_damage(folder: Path) -> None:
    from ottla.model.ids import TopicPartition
    from ottla.storage.producers import ProducerStates

    path = folder / "00000000000000000104.snapshot"
    data = ProducerStates(TopicPartition("t", 0), 104).snapshot()
    path.write_bytes(data)
    assert list(rows(str(path))) == []
    path.write_bytes(data[:-1] + b"\x07")
    [row] = rows(str(path))
    assert row["kind"] == "damage"
    assert verify(str(path))[1]


def test_a_folder_is_all_its_files_and_a_data_folder_all_its_partitions(folder: Path) -> None:
    (folder / "unrelated.txt").write_text("x")
    (folder.parent / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    (folder.parent / "t-0.00000000000000000000000000000000-delete").mkdir()
    inner = find(str(folder))
    assert [Path(path).name for path in inner] == [
        f"{NAME}.index",
        f"{NAME}.log",
        f"{NAME}.timeindex",
        f"{NAME}.txnindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert find(str(folder.parent)) == [
        str(folder.parent / "recovery-point-offset-checkpoint"),
        *inner,
    ]


def test_a_torn_tail_is_a_row_of_its_own(folder: Path) -> None:
    path = folder / f"{NAME}.log"
    path.write_bytes(path.read_bytes() + SECOND[:-5])
    *batches, damage = rows(str(path))
    assert len(batches) == 3
    assert damage["kind"] == "damage"
    assert damage["position"] == len(FIRST + SECOND + MARKER)


def test_a_wrong_checksum_is_shown_and_what_follows_is_still_decoded(folder: Path) -> None:
    path = folder / f"{NAME}.log"
    data = bytearray(path.read_bytes())
    data[len(FIRST) - 1] ^= 1
    path.write_bytes(data)
    first, second, _ = of_kind(path, "batch")
    assert (first["crc_ok"], second["crc_ok"]) == (False, True)


def test_verify_finds_nothing_wrong_with_a_good_folder(ottla: Run, folder: Path) -> None:
    result = ottla("log", "dump", "--verify", str(folder))
    assert result.exit_code == 0
    assert f"{folder}/{NAME}.log  ok  3 batches, offsets 100 to 103\n" in result.output
    assert result.output.count("  ok  ") == 6
    assert result.output.endswith("all is well: 6 files checked, none damaged\n")


def test_a_batch_that_compaction_has_emptied_has_no_time(folder: Path) -> None:
    emptied = empty_batch(read_header(SECOND))
    last = build_batch([(1_700_000_000_700, b"a", b"2", ())], base_offset=103)
    (folder / f"{NAME}.log").write_bytes(FIRST + emptied + last)
    path = folder / f"{NAME}.timeindex"
    path.write_bytes(struct.pack(">qi", 1_700_000_000_700, 3))
    assert verify(str(path))[1] == []


@pytest.mark.parametrize(
    ("suffix", "content", "problem"),
    [
        (".index", struct.pack(">ii", 1, len(FIRST)), "offset 101 is not the last of the batch"),
        (".index", struct.pack(">ii", 2, 5), "offset 102 is not the last of the batch at byte 5"),
        (".index", b"\x01\x02\x03", "ends in the middle of an entry"),
        (".timeindex", struct.pack(">qi", 5, 3), "but there is 1700000002000"),
        (".txnindex", struct.pack(">hqqqq", 7, 0, 0, 0, 0), "version 7"),
        (".log", FIRST + b"junk", "only 4 bytes are left"),
        (".log", SECOND + FIRST, "offset 100 to 101 where 103 is next"),
    ],
)
def test_verify_finds_what_is_wrong(
    ottla: Run, folder: Path, suffix: str, content: bytes, problem: str
) -> None:
    (folder / f"{NAME}{suffix}").write_bytes(content)
    result = ottla("log", "dump", "--verify", str(folder / f"{NAME}{suffix}"))
    assert result.exit_code == 1
    assert problem in result.stdout
    assert "1 file of 1 damaged" in result.stderr


def test_verify_as_json(ottla: Run, folder: Path) -> None:
    path = str(folder / f"{NAME}.log")
    document = json.loads(ottla("log", "dump", "--verify", "--json", path).stdout)
    assert document == {
        "file": path,
        "kind": "verified",
        "ok": True,
        "summary": "3 batches, offsets 100 to 103",
        "problems": [],
    }


def test_the_table_has_a_line_per_batch_and_per_record(ottla: Run, folder: Path) -> None:
    result = ottla("log", "dump", "--records", str(folder / f"{NAME}.log"))
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == str(folder / f"{NAME}.log")
    assert lines[1].split() == [
        "OFFSETS", "POSITION", "SIZE", "RECORDS", "CODEC", "LATEST", "TIMESTAMP", "EPOCH",
        "PRODUCER", "FLAGS", "CRC",
    ]  # fmt: skip
    assert "100-101" in lines[2]
    assert "2023-11-14 22:13:20.500Z" in lines[2]
    assert "9:1 seq 4" in lines[3]
    assert "transactional control:abort" in lines[4]
    assert "h=1" in result.output


def test_thousands_are_separated_for_people_only(ottla: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000012000.log"
    path.write_bytes(
        build_batch([(1, None, b"v" * 2000, ())] * 2, base_offset=12_000, leader_epoch=1000)
    )
    size = f"{path.stat().st_size:,}"
    _, line = ottla("log", "dump", str(path)).output.splitlines()[1:]
    assert line.split()[:3] == ["12,000-12,001", "0", size]
    assert "  1000  " in line  # an epoch is a name
    assert (
        "1 batch, offsets 12,000 to 12,001\n" in ottla("log", "dump", "--verify", str(path)).output
    )
    found = json.loads(ottla("log", "dump", "--verify", "--json", str(path)).output)
    assert found["summary"] == "1 batch, offsets 12000 to 12001"


def test_json_is_an_object_per_line(ottla: Run, folder: Path) -> None:
    result = ottla("log", "dump", "--json", str(folder))
    documents = [json.loads(line) for line in result.output.splitlines()]
    assert {document["kind"] for document in documents} == {
        "batch", "index", "timeindex", "txnindex", "epoch", "partition",
    }  # fmt: skip
    assert all("file" in document for document in documents)


def test_control_characters_do_not_reach_the_terminal(ottla: Run, folder: Path) -> None:
    evil = build_batch([(0, b"\x1b[31m", b"a\nb" + b"x" * 200, ())])
    (folder / "00000000000000000000.log").write_bytes(evil)
    result = ottla("log", "dump", "--records", str(folder / "00000000000000000000.log"))
    assert "\x1b" not in result.output
    assert "a\\nb" in result.output
    assert "…" in result.output


def test_a_long_segment_is_shown_in_parts_before_all_of_it_is_read(
    ottla: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cli.log._LINES", 3)
    shown: list[int] = []
    monkeypatch.setattr(
        "ottla.cli.log.show_table", lambda columns, rows, title=None: shown.append(len(rows))
    )

    def endless(path: str, *, records: bool) -> Iterator[dict[str, object]]:
        for number in range(10):
            assert sum(shown) >= number - 3
            yield {"kind": "index", "offset": number, "position": 0}

    monkeypatch.setattr("ottla.cli.dump.rows", endless)
    assert ottla("log", "dump", str(folder / f"{NAME}.index")).exit_code == 0
    assert shown == [3, 3, 3, 1]


def test_bytes_that_are_no_text_are_marked_as_base64(ottla: Run, folder: Path) -> None:
    assert "base64:/w==" in ottla("log", "dump", "--records", str(folder / f"{NAME}.log")).output


def test_an_empty_segment_is_said_to_be_empty(ottla: Run, folder: Path) -> None:
    path = folder / f"{NAME}.log"
    path.write_bytes(b"")
    assert ottla("log", "dump", str(path)).output == f"{path}  (empty)\n"
    assert verify(str(path)) == ("0 batches, empty", [])


def test_what_is_not_there_or_not_kafkas_is_an_error(ottla: Run, tmp_path: Path) -> None:
    for path, complaint in (
        (tmp_path / "nosuch", "there is no file or folder"),
        (tmp_path, "there is none of Kafka's files in"),
        (Path(__file__), "is none of Kafka's files; give a segment (.log)"),
    ):
        result = ottla("log", "dump", str(path))
        assert result.exit_code == 1
        assert complaint in result.stderr


def test_moments_are_readable_and_absent_ones_stay_absent() -> None:
    assert moment(1_700_000_000_007) == "2023-11-14 22:13:20.007Z"
    assert moment(-1) is None
    assert moment(2**62) == str(2**62)
