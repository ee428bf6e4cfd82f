from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ottla as package
from ottla.cli.main import run

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
