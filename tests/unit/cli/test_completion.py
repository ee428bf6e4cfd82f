from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("shell", "sign"),
    [("bash", "complete -o nosort"), ("zsh", "compdef"), ("fish", "complete --no-files")],
)
def test_a_script_calls_ottla_back(ottla: Run, shell: str, sign: str) -> None:
    result = ottla("completion", shell)
    assert result.exit_code == 0
    assert sign in result.output
    assert f"_OTTLA_COMPLETE={shell}_complete" in result.output


def test_an_unknown_shell_is_refused_with_those_that_are_known(ottla: Run) -> None:
    result = ottla("completion", "tcsh")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


def complete(line: str) -> list[str]:
    """What bash is told when TAB is pressed at the end of a line."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_OTTLA_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = subprocess.run(
        [sys.executable, "-m", "ottla"], env=environment, capture_output=True, text=True, check=True
    )
    return [item.partition(",")[2] for item in result.stdout.split()]


def test_commands_and_options_are_completed() -> None:
    assert complete("ottla pr") == ["produce"]
    assert complete("ottla topic de") == ["delete", "describe"]
    assert complete("ottla consume --from") == ["--from-beginning"]
