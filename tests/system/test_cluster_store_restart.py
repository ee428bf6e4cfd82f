"""The metadata store is started anew: for a moment it has no registration of any broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ottla.cluster.registry import ImageChange
from ottla.testing import Cluster

Wires = Callable[..., Any]


def test_clients_are_never_told_that_there_is_no_broker(wire: Wires) -> None:
    # librdkafka forgets every broker that an answer does not name, and asks nobody any more.
    with Cluster(1, session_seconds=2.0) as cluster:
        (broker,) = cluster
        registry = broker._services().registry
        nobody, back = threading.Event(), threading.Event()

        def look(change: ImageChange) -> None:
            if not change.new.brokers:
                nobody.set()
            elif nobody.is_set():
                back.set()

        connection = wire(broker.bootstrap)
        (named,) = connection.ask("metadata", 13, topics=[]).brokers
        broker._on_loop(lambda: registry.subscribe(look))
        cluster.stop_metadata()
        cluster.start_metadata()
        while not back.is_set():
            assert connection.ask("metadata", 13, topics=[]).brokers == (named,)
