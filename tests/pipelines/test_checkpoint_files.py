"""The files of a checkpoint that only Spark's Hadoop can reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.driver.checkpoint import HadoopFiles


class Killed(Exception):
    pass


class Dies:
    """A file system whose user is killed at a call."""

    def __init__(self, system: Any, call: int) -> None:
        self._system = system
        self._left = call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._system, name)
        if name not in ("create", "delete", "rename"):
            return found

        def call(*given: Any) -> Any:
            self._left -= 1
            if not self._left:
                raise Killed
            return found(*given)

        return call


def test_a_kill_leaves_a_file_as_it_was_or_replaced_and_never_without(
    spark: Any, tmp_path: Path
) -> None:
    seen = []
    for number in range(1, 10):
        place = f"file:{tmp_path}/{number}"
        files = HadoopFiles(spark, place)
        files.write("offsets/7", "before")
        files._system = Dies(files._system, number)
        try:
            files.write("offsets/7", "after")
        except Killed:
            pass
        else:
            break
        after = HadoopFiles(spark, place)
        seen.append(after.read("offsets/7"))
        after.write("offsets/7", "once more")
        assert after.read("offsets/7") == "once more"
        assert "7.move" not in after.names("offsets")
    else:
        pytest.fail("it never came to its end")
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {"before", "after"}
