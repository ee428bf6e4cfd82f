"""What is written down of other projects' suites, and how kcat's packages are chosen."""

from __future__ import annotations

from datetime import date
from typing import Any

from bench.checks import Line
from bench.interop import kcat_markdown
from bench.kcat import wanted
from bench.upstream import markdown, total

DAY = date(2025, 1, 2)
OUTCOME: dict[str, Any] = {
    "suite": "kafka-python",
    "version": "3.0",
    "passed": 47,
    "failed": ["test/a.py::test_bad"],
    "again": ["test/a.py::test_slow"],
    "skipped": {"test/a.py::test_old": "Requires < 0.10.1"},
    "left_out": {"needs TLS": ["test/b.py::test_tls[1]", "test/b.py::test_tls[2]"]},
}


def test_every_test_is_counted_whatever_became_of_it() -> None:
    assert total(OUTCOME) == 51
    assert "| kafka-python 3.0 | 51 | 47 | 1 | 1 | 2 |" in markdown([OUTCOME], DAY)


def test_tests_that_did_not_pass_are_named_with_the_reason() -> None:
    text = markdown([OUTCOME], DAY)
    assert "| kafka-python | needs TLS | 2: `test_tls[1]`, `test_tls[2]` |" in text
    assert "| kafka-python | skipped by the suite: Requires < 0.10.1 | 1: `test_old` |" in text
    assert "second try, on a busy machine | 1: `test_slow` |" in text
    assert "| kafka-python | **failed** | 1: `test_bad` |" in text


def test_kcat_is_unpacked_with_its_libraries_but_without_the_loader() -> None:
    depends = (
        "kcat\n  Depends: libc6\n  Depends: librdkafka1\nlibc6\n  Depends: libgcc-s1\n"
        "librdkafka1\n  Depends: zlib1g\nlibgcc-s1\ngcc-12-base\nzlib1g\n<virtual>\n"
    )
    assert wanted(depends) == ["kcat", "librdkafka1", "zlib1g"]


def test_kcat_table_shows_what_failed() -> None:
    lines = [Line("kcat", "headers", "passed", 1, ""), Line("kcat", "times", "failed", 1, "no")]
    text = kcat_markdown(lines, "1.7.1", DAY)
    assert "kcat 1.7.1: 1 passed, 1 failed." in text
    assert "| times | **failed**: no |" in text
