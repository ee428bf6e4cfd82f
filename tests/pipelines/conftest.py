"""One Spark a worker: a session takes seconds to start, a query in a warm one about one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes Spark a second here may take it a minute on a machine that others use, too."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`local[2]`; a failed task is tried once more, as on a cluster."""
    from ottla.pipelines.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    made = spark_session(
        "tests",
        master="local[2,2]",
        config={
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
        },
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()
