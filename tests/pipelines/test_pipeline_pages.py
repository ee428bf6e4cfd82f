"""The commands of the pages about running pipelines, typed, in the order of a reader.

The reader has no Java, so that it is the one that the pages promise to come along.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[2] / "docs" / "pipelines"
ORDER = ("run.md", "status.md", "offsets.md", "reset.md")
BROKER = "127.0.0.1:9092"
_TYPED = re.compile(r"<!-- typed: begin \S+ -->\n(.*?)<!-- typed: end -->", re.DOTALL)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of what a page has typed."""
    text = (PAGES / page).read_text()
    return [block for typed in _TYPED.findall(text) for block in _BLOCK.findall(typed)]


def without_java(folder: Path) -> str:
    """The programs of the PATH in one folder, all but Java."""
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for program in Path(place).glob("*"):
            if not program.name.startswith("java"):
                link = folder / program.name
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    return str(folder)


def test_the_pages_are_typed_and_say_what_is_printed(
    start_broker: Any, tmp_path: Path, bare_environment: dict[str, str]
) -> None:
    broker = start_broker()
    bare_environment.pop("JAVA_HOME", None)
    environment = {
        **bare_environment,
        "PATH": f"{Path(sys.executable).parent}:{without_java(tmp_path / 'bin')}",
        "OTTLA_BOOTSTRAP": broker.bootstrap,
        "OTTLA_PIPELINES": str(tmp_path / "state"),
    }
    printed = ""
    for page in ORDER:
        for language, text in blocks(page):
            script = text.replace(BROKER, broker.bootstrap)
            if language == "yaml":
                [name] = re.findall(r"^name: (\S+)$", text, re.MULTILINE)
                (tmp_path / f"{name}.yaml").write_text(script)
            elif language == "text":
                assert script.strip() in printed, f"docs/pipelines/{page}"
            else:
                done = subprocess.run(
                    ["sh", "-ec", script],
                    cwd=tmp_path,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                )
                printed = done.stdout
                assert done.returncode == 0, f"docs/pipelines/{page}: {script}\n{printed}"
