"""Every command has examples that it understands, and letters that mean one thing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ottla.cli.command import ALIASES, Command, Noun
from ottla.cli.examples import EXAMPLES
from ottla.cli.main import cli
from ottla.cli.short_options import LETTERS, OTHERWISE

Run = Callable[..., Result]


def walk(context: click.Context, path: str = "") -> Iterator[tuple[str, click.Context]]:
    yield path, context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            child = context.command.get_command(context, name)
            assert child is not None
            below = click.Context(child, info_name=name, parent=context)
            yield from walk(below, f"{path} {name}".strip())


TREE = dict(walk(click.Context(cli, info_name="ottla", **cli.context_settings)))
LINES = [(path, line) for path, lines in EXAMPLES.items() for line in lines]


def ours(line: str) -> list[list[str]]:
    """The arguments of each `ottla` in a line for a shell, without what the shell keeps."""
    tokens = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
    tokens.whitespace_split = True
    words = list(tokens)
    found: list[list[str]] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "ottla":
            found.append([])
        elif word in ("<", ">", ">>"):
            position += 1
        elif word == "|":
            pass
        elif found:
            found[-1].append(word)
        position += 1
    return found


# -- lists of commands


@pytest.mark.parametrize(
    "path", [item for item, about in TREE.items() if isinstance(about.command, Noun)]
)
def test_what_a_command_does_is_not_cut_off_in_the_list(path: str) -> None:
    listed = TREE[path].get_help().partition("Commands:\n")[2].partition("Examples:")[0]
    assert listed
    assert "..." not in listed


# -- examples


@pytest.mark.parametrize("path", TREE)
def test_every_help_ends_with_examples(path: str) -> None:
    help_text = TREE[path].command.get_help(TREE[path])
    section = help_text.partition("\nExamples:\n")[2].splitlines()
    assert section == [f"  {line}" for line in EXAMPLES.get(path, ())]
    assert 2 <= len(section) <= 4, "give the command two to four lines in ottla/cli/examples.py"


def test_there_are_no_examples_of_what_does_not_exist() -> None:
    assert EXAMPLES.keys() == TREE.keys()


@pytest.mark.parametrize(("path", "line"), LINES)
def test_an_example_is_of_its_command(path: str, line: str) -> None:
    assert len(line) <= 96
    names = [word for word in path.split() if word]
    short = {name: alias for alias, name in ALIASES.items()}
    for arguments in ours(line):
        said = arguments[: len(names)]
        assert all(word in (name, short.get(name)) for word, name in zip(said, names, strict=True))
    assert ours(line)


@pytest.mark.parametrize(("path", "line"), LINES)
def test_an_example_is_understood(
    path: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("orders.txt", "server.properties", "backup.json", "run.history.gz", "orders.yaml"):
        Path(name).touch()
    called: list[str] = []
    for below in TREE.values():
        if not isinstance(below.command, click.Group):
            monkeypatch.setattr(below.command, "callback", lambda **_given: called.append("done"))
    for arguments in ours(line):
        result = CliRunner().invoke(cli, arguments, prog_name="ottla")
        assert (result.exit_code, result.output) == (0, ""), result.output
    assert len(called) == len(ours(line)), "it ran, and did not show a help"


def test_an_example_with_a_wrong_option_would_be_noticed() -> None:
    result = CliRunner().invoke(cli, ours("ottla topic create orders -x 3")[0])
    assert result.exit_code == 2


def test_a_line_for_the_shell_is_taken_apart() -> None:
    line = "echo a | ottla produce t -K : -f '{a} {b}' < in.txt > out.txt"
    assert ours(line) == [["produce", "t", "-K", ":", "-f", "{a} {b}"]]


# -- letters


def options() -> Iterator[tuple[str, click.Option]]:
    for path, context in TREE.items():
        for parameter in context.command.get_params(context):
            if isinstance(parameter, click.Option):
                yield path, parameter


def test_a_letter_means_one_thing_everywhere() -> None:
    for path, option in options():
        for name in option.opts:
            if re.fullmatch("-.", name):
                long = [other for other in option.opts if other.startswith("--")]
                assert set(long) & set(LETTERS[name]), f"ottla {path} {name} {long}"
                assert (path, long[0]) not in OTHERWISE


def test_an_option_that_has_a_letter_has_it_everywhere() -> None:
    letters = {option: letter for letter, longs in LETTERS.items() for option in longs}
    for path, option in options():
        for name in option.opts:
            if name in letters and (path, name) not in OTHERWISE:
                assert letters[name] in option.opts, f"ottla {path} {name}"


def test_the_tables_name_only_what_exists() -> None:
    exist = {(path, name) for path, option in options() for name in option.opts}
    assert exist >= OTHERWISE
    assert {name for _, name in exist} >= {name for longs in LETTERS.values() for name in longs}


@pytest.mark.parametrize("path", TREE)
def test_no_letter_is_given_twice_in_one_command(path: str) -> None:
    context = TREE[path]
    names = [name for each in context.command.get_params(context) for name in each.opts]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("consume -t orders", "a topic is named without -t: ottla consume orders"),
        ("consume --from-beginning --topic orders", "without --topic: ottla consume orders"),
        ("consume --topic=orders", "without --topic: ottla consume orders"),
        ("consume -torders", "without -t: ottla consume orders"),
        ("consume -et orders", "without -t: ottla consume NAME"),
        ("produce -t orders", "a topic is named without -t: ottla produce orders"),
        ("topic desc --topic orders", "without --topic: ottla topic describe orders"),
        ("topic create -t", "a topic is named without -t: ottla topic create NAME"),
        ("group desc -g billing", "a group is named without -g: ottla group describe billing"),
        ("topic list -t orders", "No such option"),
        ("group list -t orders", "No such option"),
        ("consume orders -x", "No such option"),
    ],
)
def test_a_name_that_needs_no_option_is_told_so(ottla: Run, typed: str, told: str) -> None:
    result = ottla(*typed.split())
    assert result.exit_code == 2
    assert told in result.stderr


# -- verbs


def test_list_describe_and_delete_have_short_names(ottla: Run) -> None:
    for path, context in TREE.items():
        command = context.command
        if not isinstance(command, click.Group):
            assert isinstance(command, Command)
            continue
        assert isinstance(command, Noun)
        shown = ottla(*path.split(), "--help").output
        for alias, name in ALIASES.items():
            there = name in command.list_commands(context)
            assert (f"  {name}, {alias} " in shown) is there, path
            if there:
                assert ottla(*path.split(), alias, "-h").output == (
                    ottla(*path.split(), name, "-h").output
                )


def test_a_misspelt_verb_is_refused_with_the_right_one(ottla: Run) -> None:
    result = ottla("topic", "creat", "orders")
    assert result.exit_code == 2
    assert "no command 'creat'; did you mean `ottla topic create`?" in result.stderr
    assert "there are delete, describe, list" in ottla("group", "xyzzy").stderr


def test_who_wants_to_start_a_cluster_is_told_how(ottla: Run) -> None:
    result = ottla("cluster", "start")
    assert result.exit_code == 2
    assert "no command 'start'; did you mean `ottla cluster up`?" in result.stderr


@pytest.mark.parametrize("word", ["stop", "down"])
def test_who_wants_to_stop_a_cluster_is_told_how(
    ottla: Run, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = ottla("cluster", word)
    assert result.exit_code == 2
    assert f"no command {word!r}; Ctrl-C in the terminal of `ottla cluster up` stops" in (
        result.stderr
    )
    assert "In trial no cluster runs" in ottla("cluster", word, "--data-dir", "trial").stderr
    assert "Ctrl-C" in ottla("server", word).stderr
    assert "zookeeper-server-stop" in ottla("zookeeper", word).stderr
    assert "there are" in ottla("topic", word).stderr
