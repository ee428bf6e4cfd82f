"""The Spark of one pipeline: a session on the master that was chosen.

Executors of a cluster have no Ottla. They get this environment, packed in the pipeline's folder
into one archive, which Spark sends to each of them and unpacks there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.pipelines import masters
from ottla.pipelines.connectors.assemble import SESSION
from ottla.pipelines.connectors.spec.values import PipelineSpec
from ottla.pipelines.driver import failures
from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.jvm import undisturbed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[*,4]"
"""All cores of this machine; a task that fails is tried again, as on a cluster."""

_STOP: Final = "spark.sql.streaming.stopTimeout"
_SESSION: Final = {
    **SESSION,
    "spark.ui.enabled": "false",
    "spark.sql.streaming.pollingDelay": "100ms",
    _STOP: "60s",
}
_ON_A_CLUSTER: Final = {
    # A pipeline shuffles next to nothing (which fields are new), and a sink that spreads its rows
    # says over how many tasks. Each of Spark's 200 would be a task of every batch.
    "spark.sql.shuffle.partitions": "4",
}
_ARCHIVES: Final = "spark.archives"
_PATH: Final = "spark.executorEnv.PYTHONPATH"
_UNPACKED: Final = "ottla"
"""The folder, beside every executor, into which the archive is unpacked."""


class NotStarted(Exception):
    """Spark could not be started; the text says where, why, and what may say more."""


def start_session(spec: PipelineSpec, home: Home, master: str) -> SparkSession:
    """A session of this pipeline's own.

    `JavaError` and `ImportError` for what this machine lacks, `Refused` for want of space.
    """
    from ottla.pipelines.java import JavaError
    from ottla.pipelines.session import spark_session

    settings = _SESSION | dict(spec.spark)
    if masters.is_remote(master):
        settings = _ON_A_CLUSTER | settings | _packed(spec, home)
    settings.pop("spark.master", None)
    try:
        with undisturbed():
            spark = spark_session(spec.name, master=master, config=settings)
    except (JavaError, ImportError):
        raise
    except Exception as error:
        raise NotStarted(
            f"could not start Spark on {master}: {failures.sentence(error).rstrip('.')}. "
            f"{home.spark_log} may say more"
        ) from error
    spark.sparkContext.setLogLevel("WARN")
    return spark


@contextmanager
def lend(spark: SparkSession, spec: PipelineSpec) -> Iterator[None]:
    """Somebody's session has a pipeline's settings for as long as this lasts."""
    wanted = {**SESSION, _STOP: _SESSION[_STOP], **spec.spark}
    # The others are those of its JVM.
    names = [name for name in wanted if name.startswith("spark.sql.")]
    before = {name: spark.conf.get(name, None) for name in names}
    try:
        for name in names:
            spark.conf.set(name, wanted[name])
        yield
    finally:
        with suppress(Exception):  # its JVM may be gone, which is said elsewhere
            for name, value in before.items():
                if value is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, value)


def _packed(spec: PipelineSpec, home: Home) -> dict[str, str]:
    from ottla.pipelines.pack import pack

    settings = archived(spec.spark, home.archive)
    if settings:
        try:
            pack(home.archive)
        except OSError as error:
            raise Refused(
                spec.name,
                f"cannot pack what executors need into {home.archive}: {error.strerror}",
            ) from error
    return settings


def archived(given: Mapping[str, str], archive: Path) -> dict[str, str]:
    """The settings that let executors have the archive, beside those that a file has for them;
    nothing if it has an archive of that name."""
    archives, path = given.get(_ARCHIVES), given.get(_PATH)
    if archives and any(each.endswith(f"#{_UNPACKED}") for each in archives.split(",")):
        return {}
    ours = f"{archive}#{_UNPACKED}"
    return {
        _ARCHIVES: f"{archives},{ours}" if archives else ours,
        _PATH: f"{_UNPACKED}:{path}" if path else _UNPACKED,
    }
