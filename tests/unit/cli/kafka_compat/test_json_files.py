from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.kafka_compat.delete_records import read_offsets
from ottla.cli.kafka_compat.json_files import is_integer, is_name
from ottla.cli.kafka_compat.leader_election import read_partitions
from ottla.cli.kafka_compat.options import Failure

HUGE = "9" * 20


def test_only_what_fits_into_a_request_is_a_name_or_a_number() -> None:
    assert is_name("é" * 16_383)
    assert not any(map(is_name, ("é" * 16_384, "\ud800", 1, None)))
    assert is_integer(2**31 - 1)
    assert not any(map(is_integer, (2**31, -(2**31) - 1, True, 1.0, "1")))
    assert is_integer(2**31, 64)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 100_000, "is empty"),
        ('{"partitions": 5}', 'missing "partitions" field'),
        (f'{{"partitions": [{{"topic": "t", "partition": {HUGE}}}]}}', "correct the file"),
        (r'{"partitions": [{"topic": "\ud800", "partition": 0}]}', "correct the file"),
    ],
)
def test_elections_that_nobody_could_hold_are_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(Failure, match=complaint):
        read_partitions(str(tmp_path / "f"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 100_000, "not a valid JSON"),
        ('{"partitions": null}', "has to be a list"),
        (f'{{"partitions": [{{"topic": "t", "partition": 0, "offset": {HUGE}}}]}}', "correct the"),
        (r'{"partitions": [{"topic": "\ud800", "partition": 0, "offset": 1}]}', "correct the file"),
    ],
)
def test_offsets_that_no_log_has_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(Failure, match=complaint):
        read_offsets(str(tmp_path / "f"))
