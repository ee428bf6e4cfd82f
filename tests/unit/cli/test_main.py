from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from click.testing import Result

import ottla as package
from ottla.cli.main import COMMANDS, load, run

Run = Callable[..., Result]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_help_is_the_commands_own(name: str) -> None:
    command = load(COMMANDS[name], name)
    assert command.name == name
    assert COMMANDS[name].help == command.get_short_help_str(limit=200)


def test_the_help_lists_every_command(ottla: Run) -> None:
    result = ottla("--help")
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert f"  {name} " in result.output
        assert entry.help in result.output


def test_files_of_another_user_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("ottla.runtime.pid_file.holder", refuse)
    for words in (["add"], ["stop"]):
        assert run(["cluster", *words, "--data-dir", "theirs"]) == 1
        assert capsys.readouterr().err == "Error: theirs/supervisor.pid: Permission denied\n"


def test_version(ottla: Run) -> None:
    assert ottla("--version").output == f"ottla {package.__version__}\n"


def test_a_misspelt_command_is_refused_with_the_right_one(ottla: Run) -> None:
    result = ottla("topics")
    assert result.exit_code == 2
    assert "no command 'topics'; did you mean `ottla topic`?" in result.stderr
    assert "there are server, cluster, topic, produce" in ottla("xyzzy").stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("start", "server start"), ("list", "topic list"), ("reset", "group reset")],
)
def test_what_is_under_another_command_is_named(ottla: Run, typed: str, meant: str) -> None:
    result = ottla(typed, "--listen", "127.0.0.1:9092")
    assert result.exit_code == 2
    assert f"no command {typed!r}; did you mean `ottla {meant}`?" in result.stderr
    assert ottla(*meant.split(), "--help").exit_code == 0


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("version", "--version"),
        ("help", "--help"),
        ("help topic", "topic --help"),
        ("help topic create", "topic create --help"),
    ],
)
def test_a_word_that_is_an_option_here_is_answered_with_it(
    ottla: Run, typed: str, meant: str
) -> None:
    result = ottla(*typed.split())
    assert result.exit_code == 2
    assert f"did you mean `ottla {meant}`?" in result.stderr
    assert ottla(*meant.split()).exit_code == 0


@pytest.mark.parametrize("typed", ["stop", "down", "kill"])
def test_whoever_wants_to_end_something_is_told_how(ottla: Run, typed: str) -> None:
    result = ottla(typed)
    assert result.exit_code == 2
    assert f"no command {typed!r}; Ctrl-C in its terminal stops a broker" in result.stderr
    assert "did you mean" not in result.stderr


def test_no_command_shows_the_help(ottla: Run) -> None:
    result = ottla()
    assert result.exit_code == 2
    assert "Commands:" in result.output
