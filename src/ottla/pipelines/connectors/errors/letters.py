"""The dead-letter topic: rows that failed, with their original bytes and the reason in headers.

A letter has the key, the value, the headers and the timestamp of the record that failed; a row that
was no record has its columns as JSON, and the time at which it failed. Headers tell the rest, under
the names that Kafka Connect gives them (`__connect.errors.topic`, …) and, for what Connect does not
know, under `ottla.errors.…`.

Each row is there once. Letters are sent by the driver, in one idempotent producer, and are durable
when `write` returns. When a batch is run again, or sending was interrupted, the topic itself is
asked which letters of this batch it has. A letter that is too large for its topic goes without its
largest parts (value, key, headers), as many as do not fit, and says how large they were: the
position tells where the original is. The reason is cut where it is long, since a database may
repeat the whole value in it, and holds no secret of the pipeline's file: whoever may read the topic
need not know them.

A letter that has been sent through the pipeline again is crossed off by a record of its own, with
no value and the header `ottla.errors.redriven`; so letters can be redriven in any order, and never
twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.pipelines.connectors.contract import Batch
from ottla.pipelines.connectors.spec.variables import scrubbed
from ottla.pipelines.points import Point, reach
from ottla.pipelines.sink.failures import WriteFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONNECT: Final = "__connect.errors."
OURS: Final = "ottla.errors."
PIPELINE: Final = OURS + "pipeline"
POSITION: Final = OURS + "position"
FIRST: Final = OURS + "first.position"
TRIES: Final = OURS + "tries"
TIMESTAMP: Final = OURS + "timestamp"
RUN: Final = OURS + "run"
BATCH: Final = OURS + "batch"
LEFT_OUT: Final = {part: f"{OURS}{part}.left.out" for part in ("value", "key", "headers")}
"""How large a part of the record was that is not in the letter."""
REDRIVEN: Final = OURS + "redriven"
STAGES: Final = {"decode": "VALUE_CONVERTER", "transform": "TRANSFORMATION", "sink": "TASK_PUT"}
"""Where a row failed, as Kafka Connect calls it."""
_MOST_PLACES: Final = 1000
_LONGEST: Final = 4000
"""Characters of a reason."""
_SHORTEST: Final = 200
"""The same where a letter is too large by its reason."""
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row failed: where (decode, transform, sink), the class of the failure, a sentence."""

    stage: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A row that failed. `position` is that of `HIDDEN`, and tells it from all others."""

    position: str
    failure: Failure
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    """Of a record: milliseconds since 1970."""

    def parts(self) -> dict[str, int]:
        """How large each part of the record is that could be left out."""
        sizes = {
            "value": len(self.value or b""),
            "key": len(self.key or b""),
            "headers": _size(self.headers),
        }
        return {part: size for part, size in sizes.items() if size}

    def without(self, part: str) -> Letter:
        if part == "headers":
            return replace(self, headers=())
        return replace(self, value=None) if part == "value" else replace(self, key=None)


def letter_of(hidden: Mapping[str, Any], failure: Failure | None = None) -> Letter:
    """From the hidden column of a row, as Arrow gives it; its own error unless one is given."""
    error = hidden.get("error")
    if failure is None:
        if error is None:
            raise ValueError("this row has not failed")
        failure = Failure(error["stage"], error["kind"], error["message"])
    headers = tuple((each["key"], each["value"]) for each in hidden.get("headers") or ())
    return Letter(
        hidden["position"],
        failure,
        hidden.get("key"),
        hidden.get("value"),
        headers,
        hidden.get("timestamp"),
    )


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a letter that is redriven was before: where it came from first, and its tries."""

    first: str
    tries: int


Header = tuple[str, bytes | None]


def _size(headers: Iterable[Header]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


class Record(NamedTuple):
    """A letter on its way; `at` is milliseconds since 1970, None for now."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]
    at: int | None = None

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + _size(self.headers)


def said(failure: Failure, secrets: Collection[str]) -> Failure:
    """A failure as everybody may read it."""
    message = _cut(scrubbed(failure.message, secrets), _LONGEST)
    return replace(failure, kind=scrubbed(failure.kind, secrets), message=message)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def headers_of(
    letter: Letter,
    batch: Batch,
    earlier: Earlier | None = None,
    left_out: Mapping[str, int] | None = None,
) -> list[Header]:
    """All headers of a letter: those of the record first, as Connect has them.

    left_out   which parts of the record the letter does not have, and how large they were
    """
    kept = [each for each in letter.headers if not each[0].startswith((CONNECT, OURS))]
    place = _place(letter.position)
    tries = 1 if earlier is None else earlier.tries + 1
    said: list[tuple[str, str | None]] = [
        (CONNECT + "topic", place.get("topic")),
        (CONNECT + "partition", place.get("partition")),
        (CONNECT + "offset", place.get("offset")),
        (CONNECT + "connector.name", batch.pipeline),
        (CONNECT + "task.id", "0"),
        (CONNECT + "stage", STAGES.get(letter.failure.stage, letter.failure.stage.upper())),
        (CONNECT + "exception.class.name", letter.failure.kind),
        (CONNECT + "exception.message", letter.failure.message),
        (PIPELINE, batch.pipeline),
        (POSITION, letter.position),
        (FIRST, letter.position if earlier is None else earlier.first),
        (TRIES, str(tries)),
        (TIMESTAMP, None if letter.timestamp is None else str(letter.timestamp)),
        (RUN, batch.run),
        (BATCH, str(batch.number)),
    ]
    said += [(LEFT_OUT[part], str(size)) for part, size in (left_out or {}).items()]
    return [*kept, *((name, text.encode()) for name, text in said if text is not None)]


def _place(position: str) -> dict[str, str]:
    """topic, partition and offset, where the position of a row is one in a topic."""
    try:
        found = json.loads(position)
    except ValueError:
        return {}
    names = ("topic", "partition", "offset")
    if not isinstance(found, dict) or not all(name in found for name in names):
        return {}
    return {name: str(found[name]) for name in names}


class LetterTopic:
    """Writes letters and reads them; made for a run, in a process that has a Spark session.

    topic     the dead-letter topic
    earlier   what is known of rows, by position, that have been letters before
    secrets   what no reason may hold
    """

    def __init__(
        self,
        topic: str,
        bootstrap: str,
        settings: Mapping[str, str],
        earlier: Mapping[str, Earlier] | None = None,
        secrets: Collection[str] = (),
    ) -> None:
        self.topic = topic
        self._secrets = secrets
        self._options = {
            "kafka.bootstrap.servers": bootstrap,
            **{f"kafka.{name}": value for name, value in settings.items()},
        }
        self._earlier = earlier or {}
        self._unsure = False
        """Whether an attempt to write was interrupted, so that the topic has to be asked."""

    def known(self, batch: Batch) -> set[str]:
        """The positions of the letters of this batch that the topic has."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        def named(name: str) -> Any:
            return header(F.col("headers"), name)

        mine = (
            (named(PIPELINE) == batch.pipeline)
            & (named(RUN) == batch.run)
            & (named(BATCH) == str(batch.number))
        )
        found = self.read().where(mine).select(named(POSITION)).toArrow()
        return set(found.column(0).to_pylist())

    def read(self) -> DataFrame:
        """Everything in the topic, as a batch."""
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()  # the one that runs; active in this thread, too
        reader = spark.read.format("ottla").options(**self._options)
        return reader.option("subscribe", self.topic).option("includeHeaders", "true").load()

    def write(self, letters: Sequence[Letter], batch: Batch) -> int:
        """Write each once; returns how many there are, whoever has written them."""
        once = list({letter.position: letter for letter in letters}.values())
        if not once:
            return 0
        left = self._missing(once, batch) if batch.replayed or self._unsure else once
        too_large: int | None = None
        timed = True
        while left:
            self._unsure = True
            reach(Point.BEFORE_LETTERS)
            records = [self._record(letter, batch, too_large, timed) for letter in left]
            try:
                self._send(records)
                break
            except WriteFailed as failed:
                if failed.code is ErrorCode.INVALID_TIMESTAMP and timed:
                    timed = False  # the topic takes only times near now; a header has this one
                    left = self._missing(left, batch)
                    continue
                if failed.code not in _TOO_LARGE or failed.row is None:
                    raise
                size = records[failed.row].size
                if too_large is not None and size >= too_large:
                    raise
                too_large = size
                left = self._missing(left, batch)
        reach(Point.AFTER_LETTERS)
        self._unsure = False
        return len(once)

    def cross_off(self, places: Iterable[tuple[int, int]], pipeline: str) -> None:
        """Letters (partition and offset in the topic) that have gone through the pipeline again."""
        for part in _parts(sorted(places)):
            named = [[partition, offset] for partition, offset in part]
            headers: list[Header] = [
                (PIPELINE, pipeline.encode()),
                (REDRIVEN, json.dumps(named).encode()),
            ]
            self._send([Record(None, None, headers)])

    def _missing(self, letters: list[Letter], batch: Batch) -> list[Letter]:
        known = self.known(batch)
        return [letter for letter in letters if letter.position not in known]

    def _record(self, letter: Letter, batch: Batch, too_large: int | None, timed: bool) -> Record:
        """As much of a letter as makes a record below `too_large`, if that can be."""
        earlier = self._earlier.get(letter.position)
        letter = replace(letter, failure=said(letter.failure, self._secrets))
        # A record may have none, which is a negative one; nobody takes that from a producer.
        at = letter.timestamp if timed else None
        if at is not None and at < 0:
            at = None
        left_out: dict[str, int] = {}
        while True:
            headers = headers_of(letter, batch, earlier, left_out)
            record = Record(letter.key, letter.value, headers, at)
            if too_large is None or record.size < too_large:
                return record
            parts = letter.parts()
            reason = letter.failure.message
            largest = max(parts, key=parts.__getitem__, default=None)
            if len(reason) > max(_SHORTEST, parts.get(largest or "", 0)):
                letter = replace(
                    letter, failure=replace(letter.failure, message=_cut(reason, _SHORTEST))
                )
            elif largest is not None:
                left_out[largest] = parts[largest]
                letter = letter.without(largest)
            else:
                return record

    def _send(self, records: list[Record]) -> None:
        import pyarrow as pa

        from ottla.pipelines.sink.options import WriteOptions
        from ottla.pipelines.sink.writer import write_rows

        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        columns = {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(
                [
                    [{"key": name, "value": value} for name, value in record.headers]
                    for record in records
                ],
                pa.list_(pair),
            ),
            "timestamp": pa.array(
                [None if record.at is None else record.at * 1000 for record in records],
                pa.timestamp("us", "UTC"),
            ),
        }
        batch = pa.RecordBatch.from_pydict(columns)
        options = self._options | {"topic": self.topic, "keepTimestamps": "true"}
        write_rows(iter([batch]), WriteOptions.parse(options))


def header(headers: Any, name: str) -> Any:
    """The last header of this name as text: a column of a column of headers."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    found = F.filter(headers, lambda each: each["key"] == name)
    return F.try_element_at(found, F.lit(-1))["value"].cast("string")


def _parts(places: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    for start in range(0, len(places), _MOST_PLACES):
        yield places[start : start + _MOST_PLACES]
