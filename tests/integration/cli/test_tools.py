"""`ottla tools`: Kafka's command names in a folder of somebody's choice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from ottla.cli.tools import NAMES, wrapper

Run = Callable[..., Result]


@pytest.fixture
def link(ottla: Run, tmp_path: Path) -> Callable[..., Result]:
    """`ottla tools link` of a folder "bin"."""
    return lambda *more: ottla("tools", "link", str(tmp_path / "bin"), *more)


def test_linked_names_start_their_tools(link: Run, tmp_path: Path) -> None:
    result = link()
    assert result.exit_code == 0
    folder = tmp_path / "bin"
    assert result.output.splitlines() == [
        f"linked {len(NAMES)} names in {folder}, from {NAMES[0]} to {NAMES[-1]}",
        f'{folder} is not on the PATH; for this shell: export PATH={folder}:"$PATH"',
    ]
    assert sorted(each.name for each in folder.iterdir()) == sorted(NAMES)
    for name in ("kafka-topics", "kafka-configs.sh"):
        done = subprocess.run(
            [folder / name, "--version"], capture_output=True, text=True, check=False
        )
        assert done.stdout.startswith("4.2"), done.stderr


@pytest.mark.parametrize("name", ["a b", "long" * 40])
def test_a_python_that_no_first_line_can_name_is_started_too(tmp_path: Path, name: str) -> None:
    python = tmp_path / name
    python.symlink_to(sys.executable)
    script = tmp_path / "kafka-topics"
    script.write_bytes(wrapper(str(python)))
    script.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [script, "--version"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.startswith("4.2"), done.stderr
