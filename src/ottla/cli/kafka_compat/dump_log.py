"""kafka-dump-log: what is in segments, indexes, producer snapshots, and in the logs of
coordinators (`__consumer_offsets`, `__transaction_state`).

The files are read as for `ottla log dump`, by `log_files`; here they are printed in Kafka's lines.
Nothing is written (Kafka's tool creates an index that is not there).

Not done   The decoders of share groups, remote log and cluster metadata, and decoder classes
           other than the String, Integer and Long ones.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.cli import log_files
from ottla.cli.kafka_compat.options import Failure, Option, Options, Parser
from ottla.cli.log_files import UNREADABLE, base_offset, compression_name, mapped
from ottla.records.batch import BatchHeader, InvalidBatch, batches, checksum_ok
from ottla.records.control import read_end_marker
from ottla.records.reader import Record, iter_records
from ottla.storage.producers import SnapshotError

MAX_BYTES = 2147483647
_DELETE_HORIZON = 0x40
_UNSERVED = (
    "cluster-metadata-decoder",
    "remote-log-metadata-decoder",
    "share-group-state-decoder",
)

PARSER = Parser(
    "kafka-dump-log",
    "Print what is in files of a broker's data folder.",
    [
        Option("files", "The files (required).", "file1,file2,..."),
        Option("print-data-log", "Also print keys and values."),
        Option("deep-iteration", "Print the records of each batch."),
        Option("verify-index-only", "Check indexes without printing them."),
        Option("index-sanity-check", "Check indexes as a broker does when it starts."),
        Option("max-message-size", "Accepted for old scripts.", "size", int, default="5242880"),
        Option(
            "max-bytes", "Read no more than this of a segment.", "size", int, default=str(MAX_BYTES)
        ),
        Option("key-decoder-class", "What keys are.", "class", optional=True),
        Option("value-decoder-class", "What values are.", "class", optional=True),
        Option("offsets-decoder", "Read records as those of __consumer_offsets."),
        Option("transaction-log-decoder", "Read records as those of __transaction_state."),
        Option("skip-record-metadata", "Print keys and values only."),
        *(Option(name, "Not served here.") for name in _UNSERVED),
    ],
)


class Decoded(NamedTuple):
    """A record's key and value in words; None is not printed."""

    key: str | None
    value: str | None


Decoder = Callable[[Record], Decoded]


def main(arguments: Sequence[str]) -> int:
    """kafka-dump-log."""
    if not arguments:
        sys.stderr.write(PARSER.help())
        return 1
    options = PARSER.parse(arguments)
    files = [path for path in options.required("files").split(",") if path]
    for name in _UNSERVED:
        if options.has(name):
            raise Failure(f"--{name} is not served by this tool; leave it out")
    decode = _decoder(options)
    complaints: list[str] = []
    for path in files:
        print(f"Dumping {path}")
        _dump(path, options, decode, complaints)
    sys.stdout.flush()
    for line in complaints:
        print(line, file=sys.stderr)
    return 0


def _dump(path: str, options: Options, decode: Decoder | None, complaints: list[str]) -> None:
    suffix = os.path.splitext(path)[1]
    try:
        if suffix == ".log":
            _dump_segment(path, options, decode, complaints)
        elif suffix == ".index":
            _dump_offset_index(path, options, complaints)
        elif suffix == ".timeindex":
            _dump_time_index(path, options, complaints)
        elif suffix == ".txnindex":
            _dump_transactions(path)
        elif suffix == ".snapshot":
            _dump_producers(path)
        else:
            print(f"Ignoring unknown file {path}", file=sys.stderr)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; check the path") from None
    except (ValueError, *UNREADABLE) as error:
        raise Failure(f"{path}: {error}") from None


# -- segments


def _dump_segment(
    path: str, options: Options, decode: Decoder | None, complaints: list[str]
) -> None:
    print(f"Log starting offset: {base_offset(path)}")
    most = options.integer("max-bytes") or MAX_BYTES
    deep = decode is not None or options.has("deep-iteration")
    bare = options.has("skip-record-metadata")
    gaps: list[str] = []
    last = -1
    with mapped(path) as whole:
        view = whole[:most]
        end = 0
        try:
            for position, header in batches(view):
                print(batch_line(view, position, header))
                end = position + header.size
                if not deep:
                    continue
                for record in iter_records(view[position:end], header):
                    if last not in (-1, record.offset - 1):
                        gaps.append(f"  {last} is followed by {record.offset}")
                    last = record.offset
                    print(_record_line(view[position:end], header, record, decode, bare))
        except InvalidBatch as error:
            if end and deep:
                complaints.append(f"{path}, byte {end}: {error}")
        if end < len(view) and most == MAX_BYTES:
            print(f"Found {len(view) - end} invalid bytes at the end of {os.path.basename(path)}")
    if gaps:
        complaints += [f"Non-consecutive offsets in {os.path.abspath(path)}", *reversed(gaps)]


def batch_line(view: memoryview, position: int, header: BatchHeader) -> str:
    """A batch as Kafka prints it."""
    horizon = "OptionalLong.empty"
    if header.attributes & _DELETE_HORIZON:
        horizon = f"OptionalLong[{header.base_timestamp}]"
    kind = "LogAppendTime" if header.timestamp_type else "CreateTime"
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} "
        f"count: {header.record_count} baseSequence: {header.base_sequence} "
        f"lastSequence: {header.last_sequence} producerId: {header.producer_id} "
        f"producerEpoch: {header.producer_epoch} partitionLeaderEpoch: {header.leader_epoch} "
        f"isTransactional: {_java(header.is_transactional)} isControl: {_java(header.is_control)} "
        f"deleteHorizonMs: {horizon} position: {position} {kind}: {header.max_timestamp} "
        f"size: {header.size} magic: {header.magic} "
        f"compresscodec: {compression_name(header) or 'unknown'} crc: {header.crc} "
        f"isvalid: {_java(checksum_ok(view, position, header))}"
    )


def _record_line(
    batch: memoryview, header: BatchHeader, record: Record, decode: Decoder | None, bare: bool
) -> str:
    line = ""
    prefix = "| "
    if not bare:
        kind = "LogAppendTime" if header.timestamp_type else "CreateTime"
        sequence = -1
        if header.base_sequence >= 0:
            # Sequences start again at 0 after the greatest int.
            sequence = (header.base_sequence + record.offset - header.base_offset) % 2**31
        names = ",".join(name for name, _ in record.headers)
        line = (
            f"| offset: {record.offset} {kind}: {record.timestamp} "
            f"keySize: {_size(record.key)} valueSize: {_size(record.value)} "
            f"sequence: {sequence} headerKeys: [{names}]"
        )
        prefix = " "
        if header.is_control:
            marker = read_end_marker(batch, header)
            if marker is not None:
                line += (
                    f" endTxnMarker: {marker.type.name} coordinatorEpoch: "
                    f"{marker.coordinator_epoch}"
                )
    if decode is not None and not header.is_control:
        key, value = decode(record)
        if key is not None:
            line += f"{prefix}key: {key}"
        if value is not None:
            line += f" payload: {value}"
    return line


def _decoder(options: Options) -> Decoder | None:
    """How keys and values are read; None when they are not to be printed."""
    if options.has("offsets-decoder"):
        from ottla.cli.kafka_compat.offset_records import decode

        return lambda record: Decoded(*decode(record.key, record.value))
    if options.has("transaction-log-decoder"):
        from ottla.cli.kafka_compat.transaction_records import decode as decode_transaction

        return lambda record: Decoded(*decode_transaction(record.key, record.value, record.offset))
    chosen = [options.has("key-decoder-class"), options.has("value-decoder-class")]
    if not options.has("print-data-log") and not any(chosen):
        return None
    key = _by_class((options.values("key-decoder-class") or [""])[0])
    value = _by_class((options.values("value-decoder-class") or [""])[0])
    return lambda record: Decoded(
        None if record.key is None else key(record.key),
        None if record.value is None else value(record.value),
    )


def _by_class(name: str) -> Callable[[bytes], str]:
    short = name.rpartition(".")[2]
    if short in ("", "StringDecoder", "DefaultDecoder"):
        return lambda data: bytes(data).decode("utf-8", "replace")
    layout = {"IntegerDecoder": ">i", "LongDecoder": ">q"}.get(short)
    if layout is None:
        raise Failure(
            f"there is no decoder {name}; there are StringDecoder, IntegerDecoder and LongDecoder"
        )
    unpack = struct.Struct(layout).unpack

    def number(data: bytes) -> str:
        try:
            return str(unpack(data)[0])
        except struct.error as error:
            raise ValueError(f"{name}: {error}") from None

    return number


# -- indexes


def _dump_offset_index(path: str, options: Options, complaints: list[str]) -> None:
    entries = list(log_files.offset_entries(path))
    if not entries:
        print(f"{path} is empty.")
        return
    if options.has("index-sanity-check"):
        if entries[-1][0] < base_offset(path):
            raise ValueError(
                "the last entry is before the first offset; delete the file, and the "
                "broker builds it anew"
            )
        print(f"{path} passed sanity check.")
        return
    wrong: list[str] = []
    heads, _ = log_files.heads(log_files.segment_of(path))
    for offset, position in entries:
        head = heads.get(position)
        if head is None or head.last_offset != offset:
            actual = -1 if head is None else head.last_offset
            wrong.append(f"  Index offset: {offset}, log offset: {actual}")
        if not options.has("verify-index-only"):
            print(f"offset: {offset} position: {position}")
    if wrong:
        complaints += [f"Mismatches in :{os.path.abspath(path)}", *reversed(wrong)]


def _dump_time_index(path: str, options: Options, complaints: list[str]) -> None:
    entries = list(log_files.time_entries(path))
    if options.has("index-sanity-check"):
        print(f"{path} passed sanity check.")
        return
    wrong: list[str] = []
    disorder: list[str] = []
    missing: list[str] = []
    previous = -1
    heads = list(log_files.heads(log_files.segment_of(path))[0].values())
    for timestamp, offset in entries:
        head = next((each for each in heads if each.last_offset >= offset), None)
        if head is None or not head.base_offset <= offset <= head.last_offset:
            found = -1 if head is None else head.last_offset
            missing.append(f"  Indexed offset: {offset}, found log offset: {found}")
        elif head.max_timestamp != timestamp:
            wrong.append(f"  Index timestamp: {timestamp}, log timestamp: {head.max_timestamp}")
        if previous >= timestamp:
            disorder.append(
                f"  Index timestamp: {timestamp}, Previously indexed timestamp: {previous}"
            )
        if not options.has("verify-index-only"):
            print(f"timestamp: {timestamp} offset: {offset}")
        previous = timestamp
    where = os.path.abspath(path)
    if wrong:
        complaints += [f"Found timestamp mismatch in :{where}", *wrong]
    if disorder:
        complaints += [f"Found out of order timestamp in :{where}", *disorder]
    if missing:
        complaints += ["The following indexed offsets are not found in the log.", *missing]


# -- the other files


def _dump_transactions(path: str) -> None:
    for each in log_files.aborted_transactions(path):
        print(
            f"version: 0 producerId: {each.producer_id} firstOffset: {each.first_offset} "
            f"lastOffset: {each.last_offset} lastStableOffset: {each.last_stable_offset}"
        )


def _dump_producers(path: str) -> None:
    try:
        states = log_files.producers(path)
    except SnapshotError as error:
        print(str(error), file=sys.stderr)
        return
    for state in states:
        line = (
            f"producerId: {state.producer_id} producerEpoch: {state.producer_epoch} "
            f"coordinatorEpoch: {state.coordinator_epoch} "
            f"currentTxnFirstOffset: {_optional(state.txn_start_offset)} "
            f"lastTimestamp: {state.last_timestamp} "
        )
        if state.last_offset >= 0:
            first = (state.last_sequence - state.offset_delta) % 2**31
            line += (
                f"firstSequence: {first} lastSequence: {state.last_sequence} "
                f"lastOffset: {state.last_offset} offsetDelta: {state.offset_delta} "
                f"timestamp: {state.last_timestamp}"
            )
        print(line)


def _optional(number: int | None) -> str:
    return "OptionalLong.empty" if number is None or number < 0 else f"OptionalLong[{number}]"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _java(flag: bool) -> str:
    return "true" if flag else "false"
