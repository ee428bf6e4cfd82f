"""How Spark's Python processes are started, and what a session sets where nobody has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ottla.pipelines import interpreters
from ottla.pipelines.launchers import launcher


@pytest.fixture
def python(tmp_path):
    """`python("/a:/b")`: the path that a process finds which Spark gives this one."""
    text = interpreters._PYTHON.format(python=sys.executable)
    program = launcher("python", text, {"XDG_CACHE_HOME": str(tmp_path)})

    def start(path: str) -> str:
        ask = "import os; print(os.environ['PYTHONPATH'])"
        done = subprocess.run(
            [program, "-S", "-c", ask],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.removesuffix("\n")

    return start


def test_what_spark_brings_is_left_out_and_what_people_bring_is_kept(python):
    home = "/opt/spark-4.3 with blanks"
    brought = [
        f"{home}/python/lib/pyspark.zip",
        f"{home}/python/lib/py4j-0.10.9.9-src.zip",
        f"{home}/jars/spark-core_2.13-4.3.0.jar",
    ]
    kept = ["/srv/jobs", "/srv/more jobs/lib.zip", "/srv/connector-1.0.jar"]
    assert python(":".join([kept[0], *brought, *kept[1:]])) == ":".join(kept)
    assert python(":".join(brought)) == ""
