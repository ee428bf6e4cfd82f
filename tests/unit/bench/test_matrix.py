from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from bench import matrix
from bench.matrix import Counts, Interpreter, Result

REPORT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4" time="60.0">
<testcase classname="tests.unit.a" name="test_right" time="0.1"/>
<testcase classname="tests.unit.a" name="test_wrong" time="0.1"><failure message="no"/></testcase>
<testcase classname="tests.unit.a" name="test_broken" time="0.1"><error message="no"/></testcase>
<testcase classname="tests.unit.a" name="test_left" time="0.1"><skipped message="no"/></testcase>
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
    counts = matrix.read(report)
    assert counts == Counts(1, 1, ("tests.unit.a::test_wrong", "tests.unit.a::test_broken"))
    assert Result(counts, earlier=False).cell == "1, 2 failed, 1 skipped"


@pytest.mark.parametrize("text", [None, "", REPORT[:200]])
def test_a_report_that_is_not_whole_is_none(tmp_path: Path, text: str | None) -> None:
    report = tmp_path / "report.xml"
    if text is not None:
        report.write_text(text)
    assert matrix.read(report) is None


class Tried(matrix.Runner):
    """Notes which parts are run, and writes what pytest would have written."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parts: list[str] = []

    def _build(self) -> bool:
        return True

    def _test(self, part: str, report: Path) -> Counts:
        self.parts.append(part)
        report.write_text(REPORT)
        return matrix.read(report) or Counts()


def test_a_run_that_was_stopped_goes_on_unless_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "ENVIRONMENTS", tmp_path)
    python = Interpreter(Path("python3.13"), (3, 13, 0))
    first = Tried(python, "a-state", "2")
    first.run(["unit"])
    second = Tried(python, "a-state", "2")
    counts = second.run(["unit", "contract"])
    assert second.parts == ["contract"]
    assert (counts.passed, counts.skipped, len(counts.failures)) == (2, 2, 4)
    for runner in (Tried(python, "another", "2"), Tried(python, "a-state", "2", again=True)):
        runner.run(["unit", "contract"])
        assert runner.parts == ["unit", "contract"]


def test_every_folder_of_tests_is_a_part() -> None:
    tests = Path(__file__).parents[2]
    folders = {path.name for path in tests.iterdir() if any(path.rglob("test_*.py"))}
    assert set(matrix.PARTS) == folders


def page_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- matrix: begin -->\nbefore\n<!-- matrix: end -->\nbelow\n")
    monkeypatch.setattr(matrix, "PAGE", page)
    return page


def test_the_page_has_the_table_and_names_what_was_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = page_of(tmp_path, monkeypatch)
    old, new = Interpreter(Path("a"), (3, 11, 7)), Interpreter(Path("b"), (3, 13, 0))
    failed = Result(Counts(7413, 0, ("tests.unit.a::test_wrong",)), earlier=False)
    passed = Result(Counts(12, 0), earlier=False)
    matrix.record({old: {"unit": failed, "fuzz": passed}, new: {"unit": passed}})
    text = page.read_text()
    assert "| tests passed in | 3.11.7 | 3.13.0 |\n|---|---:|---:|\n" in text
    assert "| `unit` | 7,413, 1 failed | 12 |" in text
    assert "| `fuzz` | 12 | not run |" in text
    assert "Failed on 3.11.7:\n\n- `tests.unit.a::test_wrong`" in text
    assert "since the machine had none: 3.12, 3.14." in text
    assert "¹" not in text
    assert "before" not in text
    assert text.startswith("above\n")
    assert text.endswith("below\n")


def test_the_newest_result_of_each_part_counts_and_one_of_other_files_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "ENVIRONMENTS", tmp_path)
    page = page_of(tmp_path, monkeypatch)
    python = Interpreter(Path("python3.13"), (3, 13, 0))
    Tried(python, "before", "2").run(["unit", "contract"])
    for path in tmp_path.rglob("*.xml"):
        os.utime(path, (1, 1))
    Tried(python, "now", "2").run(["contract"])
    results = matrix.results_of(python, "now")
    assert {part: result.earlier for part, result in results.items()} == {
        "unit": True,
        "contract": False,
    }
    matrix.record({python: results})
    assert "| `unit` | 1, 2 failed, 1 skipped ¹ |" in page.read_text()
    assert "¹ run before the last change to the files" in page.read_text()
