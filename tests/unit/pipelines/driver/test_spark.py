"""What executors are told to unpack."""

from __future__ import annotations

from pathlib import Path

from ottla.pipelines.driver.spark import archived

ARCHIVE = Path("/state/p/ottla.tar")


def test_executors_get_the_archive_beside_what_the_file_gives_them():
    assert archived({}, ARCHIVE) == {
        "spark.archives": "/state/p/ottla.tar#ottla",
        "spark.executorEnv.PYTHONPATH": "ottla",
    }
    given = {"spark.archives": "shop.tar#shop", "spark.executorEnv.PYTHONPATH": "shop"}
    assert archived(given, ARCHIVE) == {
        "spark.archives": "shop.tar#shop,/state/p/ottla.tar#ottla",
        "spark.executorEnv.PYTHONPATH": "ottla:shop",
    }


def test_an_archive_that_somebody_has_packed_is_left_alone():
    assert archived({"spark.archives": "a.tar,mine.tar#ottla"}, ARCHIVE) == {}
