"""What goes into the archive for Spark's workers, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import textwrap

from ottla.pipelines import pack
from ottla.records import walker


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
