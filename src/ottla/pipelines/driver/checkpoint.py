"""What Spark keeps of a query: which batches were planned, which are finished, where each ended.

    <checkpoint>/metadata     {"id": …}, made with the query; another one after a reset
    <checkpoint>/offsets/7    batch 7 was planned: three lines, the last with where it ends
    <checkpoint>/commits/7    batch 7 is finished
    <checkpoint>/sources/0/4  of files: those that Spark found with its fifth look, or with this and
                              all looks before it, if the name ends with .compact

A query that starts again replays the batch that was planned last, if it is not finished, and goes
on from its end.

A checkpoint is moved by planning one batch that reads nothing: it jumps from where the query stands
to where it is to go on. That is one file, there whole or not at all. A batch that was under way
gives its number to it, and its rows are left to whoever moved the checkpoint; no number is ever
used for other rows, since sinks know batches by their numbers.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.pipelines.driver.home import Refused, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VERSION: Final = "v1"
_MOVE: Final = ".move"
_LOOK: Final = "logOffset"
"""What Spark's own source of files counts: its looks that found something."""
_FIRST: Final = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


class Files(Protocol):
    """The file system of a checkpoint, as far as it is needed; paths are below the checkpoint."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing when it is not there."""

    def read(self, path: str) -> str | None:
        """The text of a file; None when it is not there."""

    def write(self, path: str, text: str) -> None:
        """Make or replace a file, whole or not at all."""

    def remove(self) -> None:
        """The checkpoint with all that is in it."""


class Checkpoint:
    """One query's checkpoint. A pipeline has one source, so each batch has one end."""

    def __init__(self, pipeline: str, files: Files) -> None:
        self._pipeline = pipeline
        self._files = files

    @property
    def id(self) -> str | None:
        """The query's id; None before its first start."""
        text = self._files.read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    @property
    def planned(self) -> int | None:
        """The last batch that was planned."""
        return self._newest("offsets")

    @property
    def finished(self) -> int | None:
        """The last batch that is finished."""
        return self._newest("commits")

    @property
    def unfinished(self) -> int | None:
        """The batch that the next run replays."""
        planned, finished = self.planned, self.finished
        return None if planned == finished else planned

    def end(self, batch: int) -> dict[str, Any]:
        """Where a batch ends, as its source wrote it."""
        return self._document(self._lines(batch)[-1])

    def files_of(self, batch: int) -> list[str]:
        """The files that a batch reads, as URIs; none where Spark does not read files itself."""
        last = self.end(batch).get(_LOOK)
        if not isinstance(last, int):
            return []
        first = last
        if batch == 0:
            first = 0
        elif self._files.read(f"offsets/{batch - 1}") is not None:
            before = self.end(batch - 1).get(_LOOK)
            first = before + 1 if isinstance(before, int) else 0
        return [path for look in range(first, last + 1) for path in self._found(look)]

    def _found(self, look: int) -> list[str]:
        """What Spark found with one of its looks at the folder."""
        name = f"sources/0/{look}"
        text = self._files.read(name) or self._files.read(f"{name}.compact") or ""
        entries = [self._document(line) for line in text.split("\n")[1:] if line.strip()]
        return [str(each["path"]) for each in entries if each.get("batchId") == look]

    def position(self) -> dict[str, Any] | None:
        """Where the query stands: the end of its last finished batch; None before that."""
        finished = self.finished
        if finished is None or self._files.read(f"offsets/{finished}") is None:
            return None
        return self.end(finished)

    def jump(self, document: dict[str, Any]) -> int:
        """Go on from `document`; returns the number of the batch that jumps there."""
        planned, finished = self.planned, self.finished
        if planned is None:
            number, metadata = 0, _FIRST
        else:
            number = planned if planned != finished else planned + 1
            metadata = self._lines(planned)[1]
        text = json.dumps(document, separators=(",", ":"))
        self._files.write(f"offsets/{number}", "\n".join((_VERSION, metadata, text)))
        return number

    def remove(self) -> None:
        """Forget everything: the next run begins as the first."""
        self._files.remove()

    def _newest(self, folder: str) -> int | None:
        numbers = [int(name) for name in self._files.names(folder) if name.isdigit()]
        return max(numbers, default=None)

    def _lines(self, batch: int) -> list[str]:
        text = self._files.read(f"offsets/{batch}")
        lines = [] if text is None else text.split("\n")
        if len(lines) < 3 or lines[0] != _VERSION:
            raise Refused(
                self._pipeline,
                f"has a damaged checkpoint: offsets/{batch} is not what Spark writes there; "
                f"restore the checkpoint, or begin anew with `ottla pipeline reset "
                f"{self._pipeline}`",
            )
        if len(lines) > 3:
            raise Refused(
                self._pipeline,
                "has the checkpoint of a query with several sources: it is not a pipeline's; name "
                "another place",
            )
        return lines

    def _document(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {"offset": text}


def open_checkpoint(pipeline: str, place: str, spark: SparkSession | None = None) -> Checkpoint:
    """The checkpoint at a place; one that is not on this machine needs a session to be reached."""
    folder = local_path(place)
    if folder is not None:
        files = LocalFiles(folder)
        try:
            files.names("offsets")
        except OSError as error:
            raise Refused(
                pipeline,
                f"cannot read its checkpoint {place}: {error.strerror}. It must be a folder that "
                "this user may read and write",
            ) from None
        return Checkpoint(pipeline, files)
    if spark is None:
        raise Refused(
            pipeline,
            f"keeps its checkpoint at {place}, which only Spark can reach: this command works on "
            "checkpoints of this machine and of folders that are mounted here",
        )
    return Checkpoint(pipeline, HadoopFiles(spark, place))


class LocalFiles:
    """A folder of this machine, as Hadoop's local file system keeps it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._folder / folder)
        except FileNotFoundError:
            return []

    def read(self, path: str) -> str | None:
        try:
            return (self._folder / path).read_text()
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=".move-", delete=False
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Hadoop checks a file against the sum beside it, if there is one: that goes first.
        (target.parent / f".{target.name}.crc").unlink(missing_ok=True)
        os.chmod(file.name, 0o644)
        os.replace(file.name, target)
        _sync(target.parent)

    def remove(self) -> None:
        """In one step: what was left of it after a kill would be another query's, and under an id
        that sinks know."""
        import shutil

        folder = self._folder.resolve()
        aside = folder.with_name(f".{folder.name}.removed")
        if aside.exists():  # by a kill
            shutil.rmtree(aside)
        if not folder.exists():
            return
        try:
            os.rename(folder, aside)
        except OSError:  # a mount of its own: then the id goes first
            (folder / "metadata").unlink(missing_ok=True)
            aside = folder
        _sync(folder.parent)
        shutil.rmtree(aside)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles:
    """Any place that Spark's Hadoop knows, through the JVM of a session.

    Not every file system can replace a file in one step. A file that is replaced is gone for a
    moment, and a batch whose file is gone would be planned anew, with other rows under its number.
    So what replaces it is there first, whole, as `7.move`, and whoever comes next after a kill
    finishes what was begun.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._jvm: Any = spark._jvm
        self._place = place
        self._root = self._path("")
        self._system = self._root.getFileSystem(spark._jsc.hadoopConfiguration())
        self._finish()

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._system.exists(path):
            return []
        return [str(each.getPath().getName()) for each in self._system.listStatus(path)]

    def read(self, path: str) -> str | None:
        if not self._system.exists(self._path(path)):
            return None
        stream = self._system.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        target, whole, partial = (self._path(path + end) for end in ("", _MOVE, ".part"))
        stream = self._system.create(partial, True)
        try:
            self._jvm.org.apache.commons.io.IOUtils.write(text, stream, "UTF-8")
        finally:
            stream.close()
        self._rename(partial, whole)
        self._rename(whole, target)

    def remove(self) -> None:
        self._system.delete(self._root, True)

    def _finish(self) -> None:
        """What was begun before a kill: the old file is gone, or nothing has happened yet."""
        for name in self.names("offsets"):
            if name.endswith(_MOVE):
                whole = self._path(f"offsets/{name}")
                target = self._path(f"offsets/{name.removesuffix(_MOVE)}")
                if self._system.exists(target):
                    self._system.delete(whole, False)
                else:
                    self._rename(whole, target)

    def _rename(self, source: Any, target: Any) -> None:
        self._system.delete(target, False)
        if not self._system.rename(source, target):
            raise OSError(f"{target} cannot be written")

    def _path(self, path: str) -> Any:
        place = f"{self._place}/{path}" if path else self._place
        return self._jvm.org.apache.hadoop.fs.Path(place)
