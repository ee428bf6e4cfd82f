"""Several listeners: every address in an answer is the one of the listener it was asked on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.testing.process import BrokerProcess, free_port


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """Two named listeners on loopback that advertise other names and ports than they bind."""
    inside, outside = free_port(), free_port()
    return start_broker(
        port=inside,
        listen=[],
        settings={
            "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
            "advertised.listeners": ("INSIDE://inside.example:1111,OUTSIDE://outside.example:2222"),
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        },
    )


def test_each_listener_advertises_its_own_address(broker, wire):
    inside = broker.bootstrap
    listeners = broker.settings["listeners"].split(",")
    outside = listeners[1].removeprefix("OUTSIDE://")
    for address, advertised in (
        (inside, ("inside.example", 1111)),
        (outside, ("outside.example", 2222)),
    ):
        connection = wire(address)
        (node,) = connection.ask("metadata", 12, topics=[]).brokers
        assert (node.host, node.port) == advertised
        (described,) = connection.ask("describe_cluster", 0).brokers
        assert (described.host, described.port) == advertised


def test_an_address_that_nobody_can_reach_is_never_advertised(start_broker, wire):
    port = free_port("0.0.0.0")
    broker = start_broker(port=port, listen=[f"0.0.0.0:{port}"], launch=False)
    broker.launch()
    try:
        broker.wait_listening()
    except Exception:
        # refusing to start is what Apache Kafka does
        assert broker.wait() != 0
        assert "0.0.0.0" in broker.log()
        return
    (node,) = wire(broker.bootstrap).ask("metadata", 12, topics=[]).brokers
    assert node.host not in {"0.0.0.0", "", "::"}
    assert node.port == port


def test_advertise_is_what_clients_are_told(start_broker, wire):
    broker = start_broker(arguments=["--advertise", "broker.example:9999"])
    (node,) = wire(broker.bootstrap).ask("metadata", 12, topics=[]).brokers
    assert (node.host, node.port) == ("broker.example", 9999)
