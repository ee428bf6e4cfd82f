"""The examples for Spark, their numbers checked against a computation without Spark."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def prints_what_its_page_shows(name: str, printed: str) -> None:
    page = (EXAMPLES.parent / "README.md").read_text()
    found = re.search(rf"\n\[spark/{name}\.py\].*?```text\n(.*?)```", page, re.DOTALL)
    assert found is not None, f"examples/README.md does not show what {name}.py prints"
    day = re.compile(r"\d{4}-\d\d-\d\d \d\d")
    assert day.sub("DAY", printed) == day.sub("DAY", found[1])


def words(lines: list[str]) -> dict[str, int]:
    return dict(Counter(re.findall(r"[a-z']+", " ".join(lines).lower())))


def test_words_are_counted_over_two_runs(spark, bootstrap, tmp_path, capsys):
    program = example("word_count")
    outcome = program["run"](spark, bootstrap, tmp_path)
    program["show"](outcome)
    prints_what_its_page_shows("word_count", capsys.readouterr().out)
    assert outcome.first == words(program["LINES"][:2])
    assert outcome.all == words(program["LINES"])


def test_clicks_are_counted_in_the_minute_of_their_own_time(spark, bootstrap, tmp_path, capsys):
    program = example("clicks_per_minute")
    outcome = program["run"](spark, bootstrap, tmp_path)
    program["show"](outcome)
    prints_what_its_page_shows("clicks_per_minute", capsys.readouterr().out)
    wanted = Counter(
        (program["START"] + timedelta(minutes=seconds // 60), page)
        for seconds, page in program["CLICKS"]
    )
    assert outcome.counts == wanted, "a click that came too late is counted, or one is missing"


def test_every_record_is_in_the_folder_of_its_hour_once(spark, bootstrap, tmp_path, capsys):
    program = example("archive_by_hour")
    outcome = program["run"](spark, bootstrap, tmp_path)
    program["show"](outcome)
    prints_what_its_page_shows("archive_by_hour", capsys.readouterr().out)
    assert outcome.archived == Counter(f"{at:%Y-%m-%d %H}" for at in outcome.sent)
    assert len(outcome.offsets) == len(set(outcome.offsets)) == len(outcome.sent)


def test_every_line_of_every_file_is_sent_once(spark, bootstrap, tmp_path, capsys):
    program = example("csv_to_topic")
    outcome = program["run"](spark, bootstrap, tmp_path)
    program["show"](outcome)
    prints_what_its_page_shows("csv_to_topic", capsys.readouterr().out)
    lines = [line for rows in program["FILES"].values() for line in rows]
    wanted = [(city, {"city": city, "day": day, "rain": rain}) for city, day, rain in lines]
    assert outcome.rows == sorted(wanted, key=lambda row: (row[1]["day"], row[0]))
