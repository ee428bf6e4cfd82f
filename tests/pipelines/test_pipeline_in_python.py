"""`Pipeline.run` in a session of the program's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines import Pipeline
from ottla.pipelines.driver.run import Failed

ZONE = "spark.sql.session.timeZone"
ADAPTIVE = "spark.sql.adaptive.enabled"


@pytest.fixture
def in_tokyo(spark: Any) -> Any:
    """A session whose owner has settings of their own."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "Asia/Tokyo")
    yield spark
    spark.conf.set(ZONE, before)


def test_a_pipeline_of_a_file_has_its_own_settings_in_a_session_of_others(
    in_tokyo: Any, bootstrap: str, tmp_path: Path
) -> None:
    file = tmp_path / "zones.yaml"
    file.write_text("""\
name: zones
source: {generator: {rows: 3}}
transform: select id, current_timezone() as zone, hour(timestamp_seconds(0)) as hour from source
sink: {files: {path: out, format: json, tasks: 1}}
""")
    adaptive = in_tokyo.conf.get(ADAPTIVE)
    pipeline = Pipeline.from_file(file, {"OTTLA_BOOTSTRAP": bootstrap})
    done = pipeline.run(once=True, state_dir=str(tmp_path / "state"), session=in_tokyo)
    assert (done.rows, done.written, done.letters) == (3, 3, 0)
    lines = [
        line for each in (tmp_path / "out").glob("*.json") for line in each.read_text().split()
    ]
    assert sorted(map(json.loads, lines), key=lambda row: row["id"]) == [
        {"id": number, "zone": "UTC", "hour": 0} for number in range(3)
    ]
    assert (in_tokyo.conf.get(ZONE), in_tokyo.conf.get(ADAPTIVE)) == ("Asia/Tokyo", adaptive)


def test_a_program_is_sent_to_no_log_that_is_not_written(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines.yaml"
    file.write_text("name: lines\nsource: {files: in}\nsink: console\n")
    pipeline = Pipeline.from_file(file, {"OTTLA_BOOTSTRAP": bootstrap})
    with pytest.raises(Failed, match=r"^pipeline lines has failed: .*there is no ") as failed:
        pipeline.run(once=True, state_dir=str(tmp_path / "state"), session=spark)
    assert not (tmp_path / "state/lines/pipeline.log").exists()
    assert "pipeline.log" not in str(failed.value)


def test_a_file_that_is_taken_away_before_its_batch_is_finished_is_missed(
    spark: Any, bootstrap: str, tmp_path: Path, unique: Any
) -> None:
    """Spark leaves it out without a word, and does not read it when it is back."""
    folder = tmp_path / "my files"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1}\n')
    (folder / "b.json").write_text('{"id": 2}\nnonsense\n')

    def run() -> Any:
        source = {"path": str(folder), "format": "json", "schema": "id long"}
        pipeline = Pipeline(
            name=name,
            bootstrap=bootstrap,
            source={"files": source},
            sink={"files": {"path": str(tmp_path / "out"), "format": "json"}},
        )
        return pipeline.run(once=True, state_dir=str(tmp_path / "state"), session=spark)

    name = unique()
    with pytest.raises(Failed, match="could not be decoded"):
        run()
    (folder / "b.json").rename(tmp_path / "b.json")
    gone = r"batch 0 reads files that are not there any more, file:\S*/my%20files/b\.json: put"
    with pytest.raises(Failed, match=gone):
        run()
    (folder / "b.json").write_text('{"id": 2}\n{"id": 3}\n')
    assert run().written == 3
    found = [each.read_text() for each in (tmp_path / "out").glob("*.json")]
    assert sorted(json.loads(line)["id"] for line in "".join(found).splitlines()) == [1, 2, 3]
