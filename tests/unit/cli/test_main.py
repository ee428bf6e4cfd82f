from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import ottla as package
from ottla.cli.main import COMMANDS, load, run

Run = Callable[..., Result]

HEAVY = {"confluent_kafka", "rich", "asyncio", "ottla.broker", "ottla.storage", "cramjam"}


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command line has loaded when it is over."""
    code = (
        "import sys; from ottla.cli.main import run\n"
        f"try: run({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        "print('MODULES', *sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nonsense"]])
def test_help_and_version_load_no_library(arguments: list[str]) -> None:
    assert not loaded_by(*arguments) & HEAVY


def test_a_command_loads_only_what_it_needs() -> None:
    loaded = loaded_by("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert not loaded & (HEAVY - {"asyncio", "confluent_kafka"})
    assert "ottla.cli.topic" in loaded
    assert "ottla.cli.consume" not in loaded


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


def test_version(ottla: Run) -> None:
    assert ottla("--version").output == f"ottla {package.__version__}\n"


def test_a_misspelt_command_is_refused_with_the_right_one(ottla: Run) -> None:
    result = ottla("topics")
    assert result.exit_code == 2
    assert "no command 'topics'; did you mean `ottla topic`?" in result.stderr
    assert "there are server, topic, produce" in ottla("xyzzy").stderr


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


def test_no_command_shows_the_help(ottla: Run) -> None:
    result = ottla()
    assert result.exit_code == 2
    assert "Commands:" in result.output


def test_exit_codes_are_returned(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert run(["topic", "list", "--bootstrap", "127.0.0.1:1"]) == 1
    assert run(["topic", "list", "--nonsense"]) == 2
    assert run(["topic", "list", "--bootstrap", "a:b:c"]) == 2
    capsys.readouterr()


def test_python_m_ottla_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ottla", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"ottla {package.__version__}\n"


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    # The reader is gone before the first byte: the write fails for certain.
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "ottla", "completion", "zsh"],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("ottla", ["tools", "list"], "Error: not everything could be written: "),
        ("ottla", ["log", "dump", "--verify", "."], "Error: not everything could be written: "),
        ("ottla.cli.kafka_compat", ["kafka-storage", "random-uuid"], "not everything could be "),
    ],
)
def test_a_full_disk_under_the_output_is_one_line(
    module: str, arguments: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / f"{0:020}.log").touch()
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_traceback(closed: str) -> None:
    code = (
        "import sys; from ottla.cli.main import main\n"
        "sys.argv[1:] = ['tools', 'list']\n"
        "try: main()\n"
        "finally: print(sys.stdin.buffer.read(), file=sys.stderr)"
    )
    result = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert result.stderr.endswith("" if "2>&-" in closed else "b''\n")
    assert "Traceback" not in result.stderr
