from __future__ import annotations

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
