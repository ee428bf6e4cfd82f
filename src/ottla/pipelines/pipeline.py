"""A pipeline said in Python instead of a file.

    from ottla.pipelines import Pipeline

    Pipeline(
        name="orders",
        source={"topic": {"name": "orders", "format": "json"}},
        transform=lambda rows: rows.where("amount > 0"),
        sink={"files": {"path": "orders", "format": "parquet"}},
    ).run(once=True)

The arguments are the parts of the file under their names, with the same checks and defaults. A
transform may be SQL or any function from DataFrame to DataFrame. Nothing is replaced in texts: a
program has its own ways to a secret. `Pipeline.from_file` takes a file as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.pipelines.connectors.spec.check import read_file, read_tree
from ottla.pipelines.connectors.spec.tree import tree_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.pipelines.connectors.process import Outcome


class Pipeline:
    """One pipeline; making it connects to nothing. `ValueError` names everything that is wrong.

    spec   what was said, with all defaults
    """

    def __init__(  # noqa: PLR0913 - the parts of a pipeline's file
        self,
        *,
        name: str,
        source: str | Mapping[str, Any],
        sink: str | Mapping[str, Any],
        transform: str | Callable[[DataFrame], DataFrame] | None = None,
        bootstrap: str | None = None,
        on_error: Mapping[str, Any] | None = None,
        trigger: str | None = None,
        checkpoint: str | None = None,
        kafka: Mapping[str, str] | None = None,
        spark: Mapping[str, str] | None = None,
        tests: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        said = {
            "name": name,
            "bootstrap": bootstrap,
            "source": source,
            "transform": transform,
            "sink": sink,
            "on_error": on_error,
            "trigger": trigger,
            "checkpoint": checkpoint,
            "kafka": kafka,
            "spark": spark,
            "tests": tests,
        }
        given = {key: value for key, value in said.items() if value is not None}
        self.spec = read_tree(tree_of(given), os.environ)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], environment: Mapping[str, str] | None = None
    ) -> Pipeline:
        """The pipeline of a YAML file.

        environment  where its variables are looked up; without it, in the process's own
        """
        made = cls.__new__(cls)
        made.spec = read_file(Path(path), os.environ if environment is None else environment)
        return made

    def run(
        self,
        *,
        once: bool = False,
        state_dir: str | None = None,
        session: SparkSession | None = None,
        shared_path: bool = False,
    ) -> Outcome:
        """Run it as `ottla pipeline run` does, until it is stopped; returns what it has done.

        once         read what is there now, and end
        state_dir    where its checkpoint is kept; without it, where the command keeps it
        session      a session to run in, on its master, which is left running
        shared_path  the folders of this machine are there for all machines of the master
        """
        from ottla.pipelines.connectors.assemble import way_of
        from ottla.pipelines.driver.home import Home, state_folder
        from ottla.pipelines.driver.run import Driver
        from ottla.pipelines.driver.start import Choices

        home = Home(state_folder(state_dir), self.spec.name)
        choices = Choices(once=once, shared_path=shared_path)
        return Driver(self.spec, way_of(self.spec), home, choices, session=session).run()

    def preview(self, spark: SparkSession, rows: int = 10) -> list[dict[str, Any]]:
        """Real rows as they would reach the sink; nothing is touched."""
        from ottla.pipelines.connectors.assemble import way_of
        from ottla.pipelines.connectors.trial import preview

        return preview(self.spec, way_of(self.spec), spark, rows).rows
