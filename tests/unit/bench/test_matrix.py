from __future__ import annotations

from pathlib import Path

import pytest
from bench import matrix
from bench.matrix import Interpreter

REPORT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="1240" time="60.0">
</testsuite></testsuites>"""


def interpreter(folder: Path, name: str, answer: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


def test_interpreters_are_found_on_the_path_and_among_those_of_pyenv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = interpreter(tmp_path, "bin/python3.11", "exit 0")
    interpreter(tmp_path, "bin/python3.10", "exit 0")
    of_pyenv = interpreter(tmp_path, "pyenv/versions/3.13.0/bin/python3.13", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert matrix.candidates() == [on_path, of_pyenv]


def test_errors_count_as_failures_and_skipped_tests_do_not_count_as_passed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    outcome = matrix.read(Interpreter(Path("python3.13"), (3, 13, 0)), report)
    assert outcome.row == "| 3.13.0 | 1,234 | 3 | 3 | 3 failed |"


def test_the_page_has_the_table_and_names_what_was_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- matrix: begin -->\nold\n<!-- matrix: end -->\nbelow\n")
    monkeypatch.setattr(matrix, "PAGE", page)
    matrix.record([matrix.Outcome(Interpreter(Path("python3.11"), (3, 11, 7)), 7413, 0, 0)])
    text = page.read_text()
    assert "| 3.11.7 | 7,413 | 0 | 0 | all passed |" in text
    assert "since the machine had none: 3.12, 3.13, 3.14." in text
    assert "old" not in text
    assert text.startswith("above\n")
    assert text.endswith("below\n")
