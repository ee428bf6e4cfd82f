from array import array
from typing import Any

from _typeshed import ReadableBuffer, WriteableBuffer

from ottla.records.plain_cleaning import KeyOffsets as KeyOffsets

INTERFACE: int

def summarize(data: ReadableBuffer, record_count: int, /) -> tuple[int, int, bool, int]: ...
def find_offenders(
    data: ReadableBuffer,
    record_count: int,
    keyed: bool,
    oldest_delta: int,
    newest_delta: int,
    has_exempt: bool,
    exempt_delta: int,
    limit: int,
    /,
) -> tuple[int, int, list[tuple[int, int, int, bool]]]: ...
def first_at_or_after(
    data: ReadableBuffer,
    record_count: int,
    base_offset: int,
    base_timestamp: int,
    timestamp: int,
    min_offset: int,
    /,
) -> tuple[int, int] | None: ...
def renumber(data: ReadableBuffer, record_count: int, same_time: bool, /) -> bytes: ...
def index_chunk(
    keys: KeyOffsets,
    chunk: ReadableBuffer,
    position: int,
    first_offset: int,
    stop_offset: int,
    /,
) -> tuple[int, int, int]: ...
def index_records(
    keys: KeyOffsets,
    data: ReadableBuffer,
    base_offset: int,
    last_offset_delta: int,
    record_count: int,
    first_offset: int,
    stop_offset: int,
    /,
) -> bool: ...
def filter_chunk(
    keys: KeyOffsets,
    chunk: ReadableBuffer,
    position: int,
    out: WriteableBuffer,
    filled: int,
    now_ms: int,
    horizon_ms: int,
    must_stay: array[int],
    /,
) -> tuple[int, int, int, bytes, int, int]: ...
def filter_records(
    keys: KeyOffsets,
    data: ReadableBuffer,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    record_count: int,
    now_ms: int,
    horizon_ms: int,
    /,
) -> tuple[bytes, int, bool, bool, int, int]: ...
def outline(data: ReadableBuffer, table: Any, found: Any, /) -> int: ...
def fill_columns(
    data: ReadableBuffer,
    table: Any,
    cursor: Any,
    first: int,
    limit: int,
    with_headers: bool,
    /,
    *columns: Any,
) -> int: ...
def crc32c(data: ReadableBuffer, /) -> int: ...
def siphash128(secret: ReadableBuffer, data: ReadableBuffer, /) -> tuple[int, int]: ...
