"""Fifteen kills of `make kills` (`kill_run.py`), and three planted mistakes that it finds."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "kill_run.py"
PATIENCE = 1500.0


def run(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code and all that was printed."""
    with (folder / "printed").open("w+") as printed:
        program = subprocess.Popen(
            [sys.executable, str(RUN), str(folder / "run"), *words], stdout=printed, stderr=printed
        )
        try:
            code = program.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGTERM)  # it ends what it has started
            program.wait()
            raise
        finally:
            printed.seek(0)
            text = printed.read()
    return code, text


@pytest.mark.timeout(2 * PATIENCE)
def test_whatever_is_killed_nothing_is_missing_and_nothing_is_twice(tmp_path: Path) -> None:
    words = ("--kills", "15", "--records", "900", "--batch", "60", "--poison", "25", "--quick")
    code, printed = run(tmp_path, "--seed", "15", *words)
    assert code == 0, printed
    kills = [
        json.loads(each)
        for each in (tmp_path / "run" / "kills.jsonl").read_text().split("\n")
        if each
    ]
    victims = Counter(each["victim"] for each in kills)
    assert len(kills) == 15
    assert victims.keys() == {"task", "executor", "driver", "broker", "database"}
    [copies] = re.findall(r"(\d+) copies of tasks were run", printed)
    assert int(copies) > 0, "speculation was on, and nothing was copied"


@pytest.mark.timeout(2 * PATIENCE)
def test_mistakes_that_only_a_kill_brings_to_light_are_found(tmp_path: Path) -> None:
    words = ("--records", "300", "--batch", "100", "--poison", "25", "--quick", "--local")
    mistakes = {"map": "finished-first", "letters": "letters-twice", "upsert": "slot-apart"}
    kills = ("map:driver:after-commit-log", "letters:driver:after-letters",
             "upsert:task:after-commit")  # fmt: skip
    plants = [word for each in mistakes.items() for word in ("--plant", "=".join(each))]
    code, printed = run(tmp_path, *words, *plants, *(w for k in kills for w in ("--kill", k)))
    assert code == 1, printed
    [found] = re.findall(r"FAILED.*?the last kills", printed, re.DOTALL)
    assert re.search(r"\d+ records of map-in are missing in map-out: \d+ \(partition", found)
    assert re.search(r"\d+ records of letters-in are letters more than once", found)
    assert re.search(r"\d+ keys were written more often than there are records", found)
    assert len(re.findall(r"^ *[\d.]+ s    ", found, re.MULTILINE)) == 3, printed
