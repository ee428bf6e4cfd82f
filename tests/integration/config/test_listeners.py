"""What a broker tells clients that bind to every address, on the machine that is there."""

from __future__ import annotations

from ottla.config.broker import BrokerConfig
from ottla.config.listeners import reachable_host


def test_the_hosts_own_name_is_something_to_connect_to() -> None:
    assert reachable_host() not in ("", "0.0.0.0")
    config = BrokerConfig.of({"listeners": "PLAINTEXT://0.0.0.0:9092"})
    assert config.listener_plan.advertised[0].host == reachable_host()
