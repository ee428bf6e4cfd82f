"""What a session has when it is started in the ways in which people start Spark."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "session_program.py"
TIMEOUT = 300.0
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>org.example</groupId><artifactId>shapes</artifactId><version>1.0</version></project>"""


@pytest.fixture
def started(tmp_path: Path, bare_environment: dict[str, str]) -> Callable[..., dict[str, Any]]:
    """`started(asked, …)`: what the program prints; what went to stderr is under `stderr`."""

    def start(
        asked: dict[str, Any] | None = None,
        *,
        submit: tuple[str, ...] = (),
        terminal: bool = False,
        **environ: str,
    ) -> dict[str, Any]:
        bin_dir = Path(sys.executable).parent
        command = [str(bin_dir / "spark-submit"), *submit] if submit else [sys.executable]
        kept = bare_environment | {"PATH": f"{bin_dir}:{bare_environment['PATH']}"}
        stderr = tmp_path / "stderr"
        ours, theirs = pty.openpty() if terminal else (-1, -1)
        with stderr.open("w") as file:
            done = subprocess.run(
                [*command, str(PROGRAM), json.dumps(asked or {})],
                check=False,
                env=kept | environ,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=theirs if terminal else file,
                timeout=TIMEOUT,
            )
        if terminal:
            os.close(ours)
            os.close(theirs)
        assert done.returncode == 0, stderr.read_text()
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found | {"stderr": stderr.read_text()}

    return start


def test_where_nobody_says_anything_a_session_is_small_and_local(started):
    found = started()
    assert found["spark.master"] == "local[*]"
    assert found["spark.app.name"] == "ottla"
    assert found["shuffle"] == str(os.cpu_count())
    assert found["spark.driver.host"] == "127.0.0.1"
    assert found["spark.ui.showConsoleProgress"] == "false"


def test_a_terminal_gets_sparks_progress_bar_and_arguments_win(started):
    found = started({"name": "clicks", "master": "local[3]"}, terminal=True)
    assert found["spark.ui.showConsoleProgress"] == "true"
    assert found["spark.app.name"] == "clicks"
    assert found["spark.master"] == "local[3]"
    assert found["shuffle"] == "3"


def test_what_spark_submit_says_wins(started):
    words = ("--master", "local[1]", "--name", "nightly", "--conf", "spark.driver.host=localhost")
    found = started(submit=(*words, "--conf", "spark.sql.shuffle.partitions=7"))
    assert found["spark.master"] == "local[1]"
    assert found["spark.app.name"] == "nightly"
    assert found["spark.driver.host"] == "localhost"
    assert found["shuffle"] == "7"


def test_what_spark_defaults_conf_says_wins(started, tmp_path):
    lines = [
        "# for all",
        "spark.master                   local[1]",
        "spark.app.name=from-the-file",
        "spark.sql.shuffle.partitions   7",
        "spark.ui.showConsoleProgress   true",
    ]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    found = started(SPARK_CONF_DIR=str(tmp_path))
    assert found["spark.master"] == "local[1]"
    assert found["spark.app.name"] == "from-the-file"
    assert found["shuffle"] == "7"
    assert found["spark.ui.showConsoleProgress"] == "true"


def test_a_session_that_runs_is_left_as_it_is(started):
    plain = {"spark.master": "local[1]", "spark.app.name": "theirs"}
    asked = {"name": "ours", "master": "local[2]", "config": {"spark.sql.ansi.enabled": "false"}}
    found = started({"plain": plain | {"spark.sql.shuffle.partitions": "9"}, **asked})
    assert found["spark.app.name"] == "theirs"
    assert found["spark.master"] == "local[1]"
    assert found["shuffle"] == "9"
    assert "Spark runs already, on local[1]: master has no effect." in found["stderr"]
    assert "no Ottla in it" not in found["stderr"]


def test_packages_are_fetched_when_spark_starts(started, tmp_path):
    place = tmp_path / "repository" / "org" / "example" / "shapes" / "1.0"
    place.mkdir(parents=True)
    (place / "shapes-1.0.pom").write_text(POM)
    with zipfile.ZipFile(place / "shapes-1.0.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    config = {
        "spark.jars.repositories": (tmp_path / "repository").as_uri(),
        "spark.jars.ivy": str(tmp_path / "ivy"),
        "spark.master": "local[1]",
    }
    found = started({"packages": ["org.example:shapes:1.0"], "config": config})
    assert "shapes-1.0.jar" in found["spark.jars"]


def test_a_spark_that_looks_in_a_python_without_ottla_says_so(started, tmp_path):
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')
    bare.chmod(0o755)
    asked = {"plain": {"spark.master": "local[1]"}, "read": {"subscribe": "orders"}}
    found = started(asked, PYSPARK_PYTHON=str(bare))
    sentence = (
        f'Spark looks for format("ottla") in {bare}, which is what PYSPARK_PYTHON says, and there '
        "is no Ottla in it"
    )
    assert sentence in found["stderr"]
    assert "DATA_SOURCE_NOT_FOUND" in found["error"]
    assert sentence in found["error"]


# Whatever listens on every address answers at any of loopback's, and what listens on 127.0.0.1
# does not answer at 127.0.0.2.
PORTS = """
import socket
from urllib.parse import urlsplit

from ottla.pipelines import spark_session

spark = spark_session("ports", master="local[1]", config={"spark.ui.port": "0"})
context = spark.sparkContext
pages = urlsplit(context.uiWebUrl).port
for port in (pages, int(context.getConf().get("spark.driver.port"))):
    for host in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as client:
            print(client.connect_ex((host, port)) == 0)
spark.stop()
"""


def test_a_local_session_listens_on_loopback_only_its_pages_too() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    done = subprocess.run(
        [sys.executable, "-c", PORTS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["True", "False"] * 2, done.stderr
