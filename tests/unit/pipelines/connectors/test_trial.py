"""What `preview` and `test` show of a pipeline's rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import Batch
from ottla.pipelines.connectors.errors.letters import Failure, Letter
from ottla.pipelines.connectors.trial import Kept, _line

BATCH = Batch("orders", "preview", "preview", 0, replayed=False)
WHY = Failure("transform", "TooOdd", "it is odd")


def test_letters_of_the_transform_stay_when_those_of_decoding_come() -> None:
    kept = Kept()
    assert kept.write([Letter("1", WHY)], BATCH) == 1
    assert kept.write([Letter("2", WHY)], BATCH) == 1
    assert kept.write([Letter("2", WHY)], BATCH) == 1
    assert [letter.position for letter in kept.letters] == ["1", "2"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("5.00"), "5"),
        (Decimal("12.50"), "12.5"),
        (Decimal("1" * 38), "1" * 38),
        (5.0, "5"),
        (0.5, "0.5"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
        (1e300, str(int(1e300))),
    ],
)
def test_a_number_has_one_spelling(value: Any, text: str) -> None:
    assert _line({"n": value}) == f'{{"n": {text}}}'
