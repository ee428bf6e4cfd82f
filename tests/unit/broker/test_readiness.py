"""What /readyz says is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.app import Broker
from ottla.config.broker import BrokerConfig
from ottla.replication.service import NO_REGISTRATION


def broker(*, epoch: int = 3, admitted: int | None = 3, failed: Any = None) -> Broker:
    """One that has started."""
    made = Broker(BrokerConfig())
    brokers = {} if admitted is None else {made.node_id: SimpleNamespace(epoch=admitted)}
    made._services = cast(
        "Any",
        SimpleNamespace(
            replication=SimpleNamespace(broker_epoch=epoch),
            image=SimpleNamespace(brokers=brokers),
            logs=SimpleNamespace(offline_folders=failed or {}),
        ),
    )
    made.listening = cast("Any", ("a listener",))
    return made


def test_a_broker_in_service_lacks_nothing() -> None:
    assert broker()._missing() == {}


def test_a_broker_that_starts_or_stops_is_not_ready() -> None:
    assert Broker(BrokerConfig())._missing() == {"running": "the broker is starting"}
    stopping = broker()
    stopping._ending = True
    assert stopping._missing() == {"running": "the broker is stopping"}


def test_a_lost_registration_is_missed() -> None:
    assert list(broker(epoch=NO_REGISTRATION)._missing()) == ["registered"]


def test_a_broker_that_was_not_admitted_under_its_registration_is_not_ready() -> None:
    assert list(broker(admitted=None)._missing()) == ["admitted"]
    assert list(broker(epoch=4, admitted=3)._missing()) == ["admitted"]


def test_every_failed_folder_is_named() -> None:
    missing = broker(failed={"/a": "no space", "/b": "gone"})._missing()
    assert missing == {"log_dirs": "/a: no space; /b: gone"}
