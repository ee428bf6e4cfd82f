"""What librdkafka tells of a message, as the history has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.verify.clients.librdkafka import told_offset


@pytest.mark.parametrize(("told", "recorded"), [(0, 0), (7, 7), (None, -1)])
def test_an_offset_that_nobody_knows_is_not_taken_for_the_first(
    told: int | None, recorded: int
) -> None:
    message: Any = SimpleNamespace(offset=lambda: told)
    assert told_offset(message) == recorded
