from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def silence() -> Iterator[None]:
    """asyncio and the broker say a lot about tasks that die in the middle of everything."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
