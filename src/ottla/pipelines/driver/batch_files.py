"""Whether the files of a batch are still there.

Spark notes which files a batch reads, and lists them again when it reads them. One that is gone by
then it leaves out without a word, and never reads under its name: its rows would be missing in
whatever the pipeline writes. So they are looked for before the batch is begun. On another file
system than this machine's that is a request for each of them, and is done where much time may have
passed: for a batch that is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.driver.home import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN: Final = 3


class FilesGone(Exception):
    """Files of a batch are not there any more; the text names them."""


def check_files(files: Sequence[str], batch: int, spark: SparkSession, *, replayed: bool) -> None:
    """`FilesGone` if one of them is not there; each is a URI."""
    gone = [each for each in files if not _is_there(each, spark, replayed)]
    if gone:
        more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
        raise FilesGone(
            f"batch {batch} reads files that are not there any more, {', '.join(gone[:_SHOWN])}"
            f"{more}: put them back under their names, and run the pipeline again"
        )


def _is_there(file: str, spark: SparkSession, replayed: bool) -> bool:
    here = local_path(file)
    if here is not None:
        return here.exists()
    if not replayed:
        return True
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(file))
    return bool(path.getFileSystem(spark._jsc.hadoopConfiguration()).exists(path))
