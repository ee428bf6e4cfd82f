from __future__ import annotations

from pathlib import Path

from bench import matrix
from bench.matrix import Interpreter


def interpreter(folder: Path, name: str, answer: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


def test_the_newest_of_each_version_is_taken_and_what_does_not_run_is_not(tmp_path: Path) -> None:
    paths = [
        interpreter(tmp_path, "a/python3.12", "echo 3.12.1 final"),
        interpreter(tmp_path, "b/python3.12", "echo 3.12.10 final"),
        interpreter(tmp_path, "b/python3.11", "echo 3.11.2 final"),
        interpreter(tmp_path, "b/python3.13", "echo command not found; exit 127"),
        interpreter(tmp_path, "b/python3.14", "echo 3.14.0 candidate"),
    ]
    found = matrix.newest(paths)
    assert found == [Interpreter(paths[2], (3, 11, 2)), Interpreter(paths[1], (3, 12, 10))]
