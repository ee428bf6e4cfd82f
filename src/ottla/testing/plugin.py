"""The pytest plugin: brokers as fixtures.

    def test_orders(ottla_broker): ...                    # a broker for this test alone
    def test_reports(ottla_session_broker): ...           # one for the whole run (of each worker)
    def test_failover(ottla_cluster): ...                 # three replicated brokers for this test

    @pytest.mark.ottla(config={"num.partitions": 3}, topics=["orders"])
    def test_totals(ottla_broker): ...

The marker may also stand on a class or module (`pytestmark`): settings of the nearer one win,
topics add up. The session's broker is made with what the fixture `ottla_session_options` returns;
override it in a conftest.py. Nothing is shared between xdist workers: each broker has a port
and a folder of its own, and a session's broker is its worker's.

Importing this module imports no broker; the fixtures do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.testing.broker import Broker
    from ottla.testing.cluster import Cluster

MARKER = "ottla"
OPTIONS = ("config", "topics", "folders")
CLUSTER_OPTIONS = (*OPTIONS, "brokers")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ottla(config={}, topics=[], folders=1, brokers=3): what the broker of `ottla_broker`, or "
        "the cluster of `ottla_cluster`, is made of",
    )


@pytest.fixture
def ottla_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A Kafka broker for this test, in this process: `ottla_broker.bootstrap` is its address."""
    from ottla.testing.broker import Broker

    with Broker(**marked_options(request.node)) as broker:
        yield broker


@pytest.fixture
def ottla_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three replicated Kafka brokers for this test: `ottla_cluster.bootstrap` has all of them."""
    from ottla.testing.cluster import Cluster

    with Cluster(**marked_options(request.node, CLUSTER_OPTIONS)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ottla_session_options() -> dict[str, Any]:
    """What `ottla_session_broker` is made with; override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def ottla_session_broker(ottla_session_options: dict[str, Any]) -> Iterator[Broker]:
    """A Kafka broker for the whole run. Tests share its topics: give them names of their own."""
    from ottla.testing.broker import Broker

    with Broker(**ottla_session_options) as broker:
        yield broker


def marked_options(node: pytest.Item, allowed: tuple[str, ...] = OPTIONS) -> dict[str, Any]:
    """The arguments of `Broker` (or `Cluster`) that the markers on a test, its class and its module
    say."""
    options: dict[str, Any] = {}
    config: dict[str, object] = {}
    topics: list[Any] = []
    for marker in reversed(list(node.iter_markers(MARKER))):  # the nearest one last
        unknown = set(marker.kwargs) - set(allowed)
        if marker.args or unknown:
            wrong = ", ".join(sorted(unknown)) or "positional arguments"
            raise pytest.UsageError(
                f"{node.nodeid}: mark.ottla takes {', '.join(allowed)}, not {wrong}"
            )
        config.update(marker.kwargs.get("config", {}))
        topics += _topic_list(marker.kwargs.get("topics", ()))
        for name in ("folders", "brokers"):
            if name in marker.kwargs:
                options[name] = marker.kwargs[name]
    return {**options, "config": config, "topics": topics}


def _topic_list(topics: Any) -> list[Any]:
    if not isinstance(topics, dict):
        return [topics] if isinstance(topics, str) else list(topics)
    from ottla.client.descriptions import NewTopic

    return [NewTopic(name, partitions) for name, partitions in topics.items()]
