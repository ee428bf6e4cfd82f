from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

Run = Callable[..., Result]
MARK = "-########"


pytestmark = pytest.mark.usefixtures("over_the_scene")


def test_beginning_and_end_of_every_partition(ottla: Run) -> None:
    assert ottla("offsets", f"orders{MARK}:0,2", f"empty{MARK}").output == (
        "TOPIC            PARTITION  EARLIEST  LATEST  NEWEST\n"
        "empty-########           0         0       0       -\n"
        "orders-########          0         0      10       9\n"
        "orders-########          2         0      30      29\n"
    )


def test_at_a_moment_as_json(ottla: Run) -> None:
    result = ottla("offsets", f"orders{MARK}:0,1", "--at", "2023-11-14T22:13:32Z", "--json")
    found = json.loads(result.output)
    assert [each["at"] for each in found] == [None, 12]
    assert found[0]["newest_timestamp"] == 1_700_000_009_000


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["nowhere"], 1, "there is no topic 'nowhere'"),
        ([f"orders{MARK}:8"], 1, "there is no partition 8 of topic 'orders-########'"),
        ([f"orders{MARK}:x"], 2, "Invalid partition 'x'"),
        ([f"orders{MARK}", "--at", "noon"], 2, "--at 'noon': expected a time"),
    ],
)
def test_what_is_not_there_is_said(
    ottla: Run, arguments: list[str], code: int, complaint: str
) -> None:
    result = ottla("offsets", *arguments)
    assert result.exit_code == code
    assert complaint in result.output
