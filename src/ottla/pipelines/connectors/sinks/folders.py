"""A folder on any file system that Spark's Hadoop knows, as a commit needs it.

Names are relative to the folder, with slashes. A file that is there is never replaced: `move` and
`put` say False instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Found(NamedTuple):
    """A file, by its name below the folder that was asked for."""

    name: str
    size: int


class Folder:
    """Through the JVM of the session; for the driver."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._hadoop = jvm.org.apache.hadoop.fs
        root = self._hadoop.Path(path)
        self._files = root.getFileSystem(conf)
        self._root = self._files.makeQualified(root)
        self._context = self._hadoop.FileContext.getFileContext(self._files.getUri(), conf)
        gateway: Any = spark.sparkContext._gateway
        self._replace_nothing = gateway.new_array(self._hadoop.Options.Rename, 0)

    def path(self, name: str) -> str:
        """As Spark takes it."""
        return str(self._at(name).toString())

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._at(name)))

    def files(self, name: str) -> Iterator[Found]:
        """All files below a folder, without those that Spark's readers leave out."""
        if not self.exists(name):
            return
        start = len(self.path(name)) + 1
        listed = self._files.listFiles(self._at(name), True)
        while listed.hasNext():
            status = listed.next()
            below = str(status.getPath().toString())[start:]
            if not any(_is_left_out(part) for part in below.split("/")):
                yield Found(below, int(status.getLen()))

    def names(self, name: str) -> list[str]:
        """What is in a folder, itself without a slash."""
        if not self.exists(name):
            return []
        return [str(each.getPath().getName()) for each in self._files.listStatus(self._at(name))]

    def move(self, source: str, target: str) -> bool:
        """Rename, in one step; False if the target is there."""
        if self.exists(target):
            return False
        self._files.mkdirs(self._at(target).getParent())
        self._context.rename(self._at(source), self._at(target), self._replace_nothing)
        return True

    def put(self, name: str, text: str) -> bool:
        """A small file, as a whole or not at all; False if it is there."""
        making = f"{name}.making"
        stream = self._files.create(self._at(making), True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        return self.move(making, name)

    def get(self, name: str) -> str | None:
        if not self.exists(name):
            return None
        stream = self._files.open(self._at(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def remove(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._hadoop.Path(self._root, name) if name else self._root


def _is_left_out(part: str) -> bool:
    """As Spark does: a folder of a partition counts, even if its column begins with `_`."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)
