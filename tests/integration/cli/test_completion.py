from __future__ import annotations

import os
import subprocess
import sys


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
