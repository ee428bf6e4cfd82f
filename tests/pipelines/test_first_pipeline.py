"""The pages of those who try a pipeline, typed: the first pipeline, and `validate`, `test`,
`preview` and `redrive` as commands.

Everything is typed into a shell, but the commands that start a Spark of their own share one process
and so one Java: four of them in four processes would take a minute. It is a process like that of
a shell's, in which nothing has been prepared.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.testing import Broker

PAGES = Path(__file__).parents[2] / "docs" / "pipelines"
TRIALS = ("validate", "test", "preview", "redrive")
PROGRAM = """
import json, sys
from ottla.cli.main import run
for line in sys.stdin:
    try:
        code = run(json.loads(line))
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    print(f"\\0{code}", flush=True)
"""
_TYPED = re.compile(
    r"<!-- typed: begin \S+/test_first_pipeline\.py -->\n(.*?)<!-- typed: end -->", re.DOTALL
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Terminal:
    """A folder with a broker to type into; `printed` is what the last block has printed."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.folder = folder
        self.printed = ""
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OTTLA_BOOTSTRAP": broker.bootstrap,
            "OTTLA_PIPELINES": str(folder / "state"),
            "COLUMNS": "200",
        }
        self._trials = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        self._trials.communicate(timeout=300)

    def page(self, name: str) -> None:
        """Type all blocks of a page that are for this test, and compare what they print."""
        text = (PAGES / name).read_text()
        for part in _TYPED.findall(text):
            for language, block in _BLOCK.findall(part):
                if language == "yaml":
                    [pipeline] = re.findall(r"^name: (\S+)$", block, re.MULTILINE)
                    (self.folder / f"{pipeline}.yaml").write_text(block)
                elif language == "sh":
                    self.printed = "".join(self.type(command)[1] for command in commands(block))
                else:
                    self.compare(block, name)

    def compare(self, block: str, name: str) -> None:
        """Lines of other commands may be between the lines of the page."""
        printed = iter(self.printed.splitlines())
        for line in block.splitlines():
            pattern = re.escape(line.rstrip()).replace("…", ".*")
            assert any(re.fullmatch(pattern, each.rstrip()) for each in printed), (
                f"docs/pipelines/{name}: {line!r} is not in, or not there in\n{self.printed}"
            )

    def type(self, command: str) -> tuple[int, str]:
        words = shlex.split(command)
        if words[:2] == ["ottla", "pipeline"] and words[2] in TRIALS:
            code, printed = self._try(words[1:])
        else:
            done = subprocess.run(
                ["sh", "-ec", command],
                cwd=self.folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            code, printed = done.returncode, done.stdout
        assert "Traceback" not in printed, f"{command}\n{printed}"
        assert code == (1 if "wrong.yaml" in command else 0), f"{command}\n{printed}"
        return code, printed

    def _try(self, words: list[str]) -> tuple[int, str]:
        assert self._trials.stdin is not None
        assert self._trials.stdout is not None
        self._trials.stdin.write(json.dumps(words) + "\n")
        self._trials.stdin.flush()
        printed = ""
        for line in self._trials.stdout:
            if line.startswith("\0"):
                return int(line[1:]), printed
            printed += line
        raise AssertionError(f"{words} ended the process\n{printed}")


def commands(block: str) -> Iterator[str]:
    """Those of a block, one after the other; a quote may go over several lines."""
    command = ""
    for line in block.splitlines(keepends=True):
        command += line
        try:
            shlex.split(command)
        except ValueError:
            continue
        yield command.strip()
        command = ""
    assert not command, f"a quote is not closed: {command}"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Broker() as broker:
        made = Terminal(broker, tmp_path)
        try:
            yield made
        finally:
            made.close()


def test_the_pages_of_those_who_try_are_typed(terminal: Terminal) -> None:
    terminal.page("validate.md")  # without a session: only the parser's Java is there
    terminal.page("index.md")
    terminal.page("preview.md")
    assert [
        json.loads(line)["row"]["customer"]
        for line in terminal.printed.splitlines()
        if line.startswith('{"row"')
    ] == ["ANN", "BOB", "DEE"]
    terminal.page("redrive.md")
    assert "0 letters" in terminal.printed
    terminal.page("test.md")
