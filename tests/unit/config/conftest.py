"""What Apache Kafka 4.2 said, recorded: its settings, its judgements, its DescribeConfigs."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def data() -> Path:
    return DATA
