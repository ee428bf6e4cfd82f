"""Damaged files and failing folders: said clearly, and everything else is served."""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

KAFKA_STORAGE_ERROR = 56
SEGMENT = "00000000000000000000"
# An hour ago: older records would be retention's to delete whenever its turn comes.
THEN = int(time.time() * 1000) - 3_600_000


@pytest.fixture
def filled(start_broker, wire, raw, batch):
    """A broker that was killed: topics `hurt` and `well` hold 20 batches of one record each."""
    broker = start_broker()
    connection = wire(broker.bootstrap)
    for name in ("hurt", "well"):
        raw.create_topic(connection, name)
        for i in range(20):
            records = batch([b"%d" % i * 500], timestamps=[THEN + i])
            assert raw.produce(connection, name, records).error_code == 0
    broker.kill()
    return broker


def end_offset(connection, topic):
    asked = [{"partition_index": 0, "timestamp": -1}]
    (found,) = connection.ask(
        "list_offsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": asked}]
    ).topics
    return found.partitions[0].error_code, found.partitions[0].offset


def position_of(path: Path, number: int) -> int:
    """Where the n-th batch of a segment begins."""
    data, position = path.read_bytes(), 0
    for _ in range(number):
        position += 12 + struct.unpack_from(">i", data, position + 8)[0]
    return position


def served(connection, raw, batch, topic="well", offset=20):
    written = raw.produce(connection, topic, batch([b"still here"]))
    assert (written.error_code, written.base_offset) == (0, offset)
    assert raw.fetch(connection, topic, offset).error_code == 0


def test_a_torn_tail_is_cut_off_and_said(filled, wire, raw, batch):
    log = filled.data_dir / "hurt-0" / f"{SEGMENT}.log"
    whole = log.read_bytes()
    log.write_bytes(whole + batch([b"never acknowledged" * 10])[:100])
    position = filled.log_size()
    filled.start()
    connection = wire(filled.bootstrap)
    assert end_offset(connection, "hurt") == (0, 20)
    assert log.read_bytes()[: len(whole)] == whole
    assert str(log) in filled.log_since(position)
    served(connection, raw, batch, "hurt")
    served(connection, raw, batch)


def test_a_record_that_was_torn_itself_is_cut_off(filled, wire, raw, batch):
    log = filled.data_dir / "hurt-0" / f"{SEGMENT}.log"
    os.truncate(log, log.stat().st_size - 7)
    filled.start()
    connection = wire(filled.bootstrap)
    assert end_offset(connection, "hurt") == (0, 19)
    served(connection, raw, batch, "hurt", offset=19)


def test_a_damaged_middle_takes_that_partition_offline_and_no_other(filled, wire, raw, batch):
    log = filled.data_dir / "hurt-0" / f"{SEGMENT}.log"
    with log.open("r+b") as file:
        file.seek(position_of(log, 7) + 100)
        file.write(b"\xde\xad\xbe\xef")
    damaged = log.read_bytes()
    position = filled.log_size()
    filled.start()
    connection = wire(filled.bootstrap)
    assert raw.produce(connection, "hurt", batch([b"x"])).error_code == KAFKA_STORAGE_ERROR
    assert raw.fetch(connection, "hurt").error_code == KAFKA_STORAGE_ERROR
    assert end_offset(connection, "hurt")[0] == KAFKA_STORAGE_ERROR
    said = filled.log_since(position)
    assert str(log) in said
    assert "Traceback" not in said
    # nothing is dropped behind the operator's back
    assert log.read_bytes() == damaged
    served(connection, raw, batch)
    assert filled.terminate() == 0
    # nor does a clean stop make the damage look healthy at the next start
    filled.start()
    connection = wire(filled.bootstrap)
    assert raw.fetch(connection, "hurt").error_code == KAFKA_STORAGE_ERROR
    served(connection, raw, batch, offset=21)
    assert filled.terminate() == 0


@pytest.mark.parametrize("byte", [8, 16])
@pytest.mark.parametrize("ends", ["terminate", "kill"])
def test_a_damaged_header_near_a_producer_snapshot_stops_no_one_else(
    ends, byte, start_broker, wire, raw, batch
):
    """What was flushed is not checked again, but the batches before a snapshot are looked at, for
    the producers' sake: also what they come across there concerns one partition only."""
    broker = start_broker()
    connection = wire(broker.bootstrap)
    producer = connection.ask("init_producer_id", 4, transaction_timeout=60_000).producer_id
    for name in ("hurt", "well"):
        raw.create_topic(connection, name, internal_segment_bytes="15000")
        for i in range(20):
            records = batch(
                [b"%d" % i * 500], producer_id=producer, producer_epoch=0, base_sequence=i
            )
            assert raw.produce(connection, name, records).error_code == 0
    broker.terminate()  # flushes everything, and says so in the checkpoint
    if ends == "kill":
        broker.start()
        broker.kill()
    log = broker.data_dir / "hurt-0" / f"{SEGMENT}.log"
    data = bytearray(log.read_bytes())
    data[position_of(log, 2) + byte] ^= 0x80  # the length, or the magic byte
    log.write_bytes(data)
    position = broker.log_size()
    broker.start()
    connection = wire(broker.bootstrap)
    assert end_offset(connection, "hurt")[0] == 56  # KAFKA_STORAGE_ERROR
    said = broker.log_since(position)
    assert f"{log} is damaged at position" in said
    assert "Traceback" not in said
    served(connection, raw, batch)
    assert log.read_bytes() == bytes(data)


@pytest.mark.parametrize("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")])
def test_missing_indexes_are_built_again(suffixes, filled, wire, raw, batch):
    files = [filled.data_dir / "hurt-0" / f"{SEGMENT}{suffix}" for suffix in suffixes]
    filled.start()
    # a clean end writes the indexes out, so that nothing but the missing file is amiss
    assert filled.terminate() == 0
    for file in files:
        file.unlink()
    filled.start()
    connection = wire(filled.bootstrap)
    asked = [{"partition_index": 0, "timestamp": THEN + 13}]
    (found,) = connection.ask(
        "list_offsets", 7, replica_id=-1, topics=[{"name": "hurt", "partitions": asked}]
    ).topics
    assert found.partitions[0].offset == 13
    assert b"13" * 500 in raw.fetch(connection, "hurt", 13).records
    served(connection, raw, batch, "hurt")
    assert filled.terminate() == 0
    assert all(file.stat().st_size for file in files)


def test_a_missing_log_file_is_no_reason_to_stop_the_others(filled, wire, raw, batch):
    (filled.data_dir / "hurt-0" / f"{SEGMENT}.log").unlink()
    filled.start()
    served(wire(filled.bootstrap), raw, batch)
    assert "Traceback" not in filled.log()


def test_strange_things_in_the_folder_are_left_alone(filled, wire, raw, batch):
    (filled.data_dir / "notes.txt").write_text("do not delete")
    (filled.data_dir / "lost+found").mkdir()
    filled.start()
    served(wire(filled.bootstrap), raw, batch)
    assert (filled.data_dir / "notes.txt").read_text() == "do not delete"
    assert (filled.data_dir / "lost+found").exists()


# -- failing folders -------------------------------------------------------------------------


def mounted(script: str) -> list[str]:
    """A wrapper that runs a shell script in a mount namespace of its own before the broker."""
    flags = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    probe = subprocess.run(
        ["unshare", *flags, "sh", "-c", "mount -t tmpfs tmpfs /mnt"],
        check=False,
        capture_output=True,
    )
    if probe.returncode:
        pytest.skip("this machine allows no mount namespaces")
    return ["unshare", *flags, "sh", "-c", f'{script} && exec "$0" "$@"']


def topics_by_folder(connection):
    answer = connection.ask("describe_log_dirs", 4, topics=None)
    return {
        folder.log_dir: (folder.error_code, sorted(t.name for t in folder.topics))
        for folder in answer.results
    }


@pytest.fixture
def folders(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    return good, bad


def test_a_full_disk_takes_its_folder_offline_and_no_other(folders, start_broker, wire, raw, batch):
    good, bad = folders
    broker = start_broker(
        data_dir=good,
        settings={"log.dirs": f"{good},{bad}"},
        wrapper=mounted(f"mount -t tmpfs -o size=6m tmpfs {shlex.quote(str(bad))}"),
    )
    connection = wire(broker.bootstrap)
    for i in range(4):
        raw.create_topic(connection, f"t{i}")
    where = topics_by_folder(connection)
    (on_good, *_), (on_bad, *_) = where[str(good)][1], where[str(bad)][1]
    records = batch([bytes(500_000)])
    position, codes = broker.log_size(), []
    while len(codes) < 40 and 0 in (codes or [0])[-1:]:
        codes.append(int(raw.produce(connection, on_bad, records).error_code))
    assert codes[-1] == KAFKA_STORAGE_ERROR
    assert len(codes) < 15
    for _ in range(5):
        assert raw.produce(connection, on_good, records).error_code == 0
        assert raw.produce(connection, on_bad, records).error_code != 0
    said = broker.log_since(position)
    assert str(bad) in said
    assert "No space left" in said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 5
    codes_by_folder = {path: code for path, (code, _) in topics_by_folder(connection).items()}
    assert codes_by_folder == {str(good): 0, str(bad): KAFKA_STORAGE_ERROR}
    assert broker.terminate() == 0


def test_a_read_only_folder_is_offline_from_the_start(folders, start_broker, wire, raw, batch):
    good, bad = folders
    quoted = shlex.quote(str(bad))
    broker = start_broker(
        data_dir=good,
        settings={"log.dirs": f"{good},{bad}"},
        wrapper=mounted(f"mount -t tmpfs -o ro tmpfs {quoted}"),
    )
    connection = wire(broker.bootstrap)
    for i in range(4):
        raw.create_topic(connection, f"t{i}")
        assert raw.produce(connection, f"t{i}", batch([b"x"])).error_code == 0
    assert str(bad) in broker.log()
    assert "Read-only file system" in broker.log()
    assert "Traceback" not in broker.log()
    assert broker.terminate() == 0


def test_without_any_usable_folder_it_says_so_and_ends(folders, start_broker):
    _, bad = folders
    broker = start_broker(
        data_dir=bad,
        wrapper=mounted(f"mount -t tmpfs -o ro tmpfs {shlex.quote(str(bad))}"),
        launch=False,
    )
    broker.launch()
    assert broker.wait() != 0
    assert str(bad) in broker.log()
    assert "Traceback" not in broker.log()


def test_a_taken_port_leaves_no_folder_behind(start_broker):
    first = start_broker()
    data = first.folder / "other"
    line = [sys.executable, "-m", "ottla", "server", "start", "--data-dir", str(data)]
    done = subprocess.run(
        [*line, "--listen", first.bootstrap], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"cannot listen on {first.bootstrap}" in done.stderr
    assert not data.exists()
