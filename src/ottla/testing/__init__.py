"""The public test kit: disks, clocks and brokers that fail when told to.

`Broker` is a real broker inside the test process; pytest has it as the fixture `ottla_broker` as
soon as the package is installed. See docs/testing.md. Names are resolved on first use: the pytest
plugin lives here too, and must cost nothing in a test run that does not use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.descriptions import NewTopic
    from ottla.testing.broker import Broker, BrokerDown
    from ottla.testing.cluster import Cluster
    from ottla.testing.faults import Fault, Faults
    from ottla.testing.schema_registry import SchemaRegistry

__all__ = ["Broker", "BrokerDown", "Cluster", "Fault", "Faults", "NewTopic", "SchemaRegistry"]

_HOMES = {
    "Broker": "ottla.testing.broker",
    "BrokerDown": "ottla.testing.broker",
    "Cluster": "ottla.testing.cluster",
    "Fault": "ottla.testing.faults",
    "Faults": "ottla.testing.faults",
    "NewTopic": "ottla.client.descriptions",
    "SchemaRegistry": "ottla.testing.schema_registry",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla.testing' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
