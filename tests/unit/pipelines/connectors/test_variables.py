"""Variables are replaced in scalars, after parsing, and their values are not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.connectors.spec.tree import parse
from ottla.pipelines.connectors.spec.variables import Variables, scrubbed, secrets_in


def replaced(
    text: str, environment: dict[str, str] | None = None, folder: Path = Path()
) -> tuple[object, Variables]:
    variables = Variables(environment or {}, folder)
    return variables.replaced(parse(text)).plain(), variables


def test_a_variable_is_replaced_inside_its_scalar_only() -> None:
    value, _ = replaced('a: "x ${B} y"\n${B}: 1', {"B": "evil: [1, 2]\nc: 3"})
    assert value == {"a": "x evil: [1, 2]\nc: 3 y", "${B}": 1}


def test_a_value_that_looks_like_a_variable_is_not_replaced_again() -> None:
    assert replaced("a: ${B}", {"B": "${C}", "C": "no"})[0] == {"a": "${C}"}


def test_a_file_is_read_without_its_last_newline(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("pass word\n")
    value, variables = replaced("a: ${file:secret}", folder=tmp_path)
    assert value == {"a": "pass word"}
    assert variables.secrets == {"pass word"}


def test_a_default_is_used_when_there_is_no_such_variable() -> None:
    assert replaced("a: ${B:-127.0.0.1:9092}")[0] == {"a": "127.0.0.1:9092"}
    assert replaced("a: ${B:-x}", {"B": "y"})[0] == {"a": "y"}


def test_two_dollars_stand_for_the_characters_themselves() -> None:
    value, variables = replaced("a: $${B}")
    assert value == {"a": "${B}"}
    assert not variables.problems


def test_numbers_and_flags_are_left_alone() -> None:
    assert replaced("[1, true, null, 1.5]")[0] == [1, True, None, 1.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: ${MISSING}", "no variable MISSING"),
        ("a: ${not a name}", "is no variable"),
        ("a: '${open'", "not closed"),
        ("a: ${file:missing}", "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_replaced_is_a_problem_with_its_place(text: str, words: str) -> None:
    _, variables = replaced(text)
    [problem] = variables.problems
    assert (problem.line, problem.column, problem.path) == (1, 4, "a")
    assert words in problem.sentence


def test_a_password_inside_a_value_is_a_secret_of_its_own() -> None:
    assert secrets_in("postgresql://me:p%40ss-word@host/db") >= {"p%40ss-word", "p@ss-word"}
    assert "pass#w?o/rd" in secrets_in("postgresql://me:pass#w?o/rd@host/db")
    assert "hunter22" in secrets_in("host=a password='hunter22' dbname=b")


def test_scrubbing_removes_the_longest_first() -> None:
    assert scrubbed("failed: tok-12345678!", {"tok-1234", "tok-12345678"}) == "failed: ***!"


def test_a_value_of_three_characters_is_no_secret() -> None:
    assert secrets_in("eu1") == set()


def test_a_secret_with_a_line_break_is_found_where_python_shows_it() -> None:
    secrets = secrets_in("open-sesame\r\n")
    assert "open-sesame" not in scrubbed(f"bad value {b'open-sesame' + bytes([13])!r}", secrets)
