"""What aiokafka's tests expect of their log_context, for a broker that runs already.

Takes the place of the conftest.py in a copy of their test folder: theirs starts containers,
this one only says where the broker is (OTTLA_UPSTREAM_BOOTSTRAP).
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

KAFKA_VERSION = "4.2.0"


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--docker-image", default=f"broker:{KAFKA_VERSION}")


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    if not made.is_closed():
        made.run_until_complete(asyncio.sleep(0))
        made.close()
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="class")
def setup_test_class_serverless(request: Any, loop: asyncio.AbstractEventLoop) -> None:
    request.cls.loop = loop


@pytest.fixture(scope="class")
def setup_test_class(request: Any, loop: asyncio.AbstractEventLoop) -> None:
    host, _, port = os.environ["OTTLA_UPSTREAM_BOOTSTRAP"].rpartition(":")
    cls = request.cls
    cls.loop = loop
    cls.kafka_host, cls.kafka_port = host, int(port)
    cls.hosts = [f"{host}:{port}"]
    cls.kafka_version = KAFKA_VERSION
