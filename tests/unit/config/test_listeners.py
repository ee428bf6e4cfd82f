"""Where a broker binds, and what it tells clients."""

from __future__ import annotations

import socket

import pytest

from ottla.config import listeners
from ottla.config.broker import BrokerConfig
from ottla.config.listeners import (
    Listener,
    ListenerPlan,
    base_name,
    parse_listener,
    parse_protocol_map,
    plan_listeners,
    reachable_host,
)
from ottla.config.setting import ConfigError

NAMES = "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL"


def plan(
    *listeners: str,
    advertised: list[str] | None = None,
    names: str = NAMES,
    controller: tuple[str, ...] = (),
    inter_broker: str | None = None,
    protocol: str | None = None,
) -> ListenerPlan:
    return plan_listeners(
        listeners=listeners,
        advertised=advertised,
        protocol_map=names,
        controller_names=controller,
        inter_broker_name=inter_broker,
        inter_broker_protocol=protocol,
        hostname=lambda families: "this.host" if socket.AF_INET in families else "",
    )


@pytest.mark.parametrize(
    ("text", "host", "port", "printed"),
    [
        ("PLAINTEXT://localhost:9092", "localhost", 9092, "PLAINTEXT://localhost:9092"),
        ("plaintext://10.0.0.1:0", "10.0.0.1", 0, "PLAINTEXT://10.0.0.1:0"),
        ("PLAINTEXT://:9092", "", 9092, "PLAINTEXT://:9092"),
        ("PLAINTEXT://[::1]:9092", "::1", 9092, "PLAINTEXT://[::1]:9092"),
        ("PLAINTEXT://::1:9092", "::1", 9092, "PLAINTEXT://[::1]:9092"),
        ("PLAINTEXT://[fe80::1%eth0]:1", "fe80::1%eth0", 1, "PLAINTEXT://[fe80::1%eth0]:1"),
    ],
)
def test_an_address_has_a_name_a_host_and_a_port(
    text: str, host: str, port: int, printed: str
) -> None:
    listener = parse_listener("listeners", text, {"PLAINTEXT": "PLAINTEXT"})
    assert listener == Listener("PLAINTEXT", host, port, "PLAINTEXT")
    assert str(listener) == printed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("PLAINTEXT:9092", "expected NAME://host:port"),
        ("PLAINTEXT://a b:9092", "expected NAME://host:port"),
        ("PLAINTEXT://host", "expected NAME://host:port"),
        ("://host:1", "no name"),
        ("PLAINTEXT://host:65536", "between 0 and 65535"),
        ("PLAINTEXT://host:-1", "between 0 and 65535"),
        ("OTHER://host:1", "No security protocol defined for listener OTHER"),
    ],
)
def test_what_is_no_address_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_listener("listeners", text, {"PLAINTEXT": "PLAINTEXT"})


def test_a_protocol_map_gives_names_a_protocol() -> None:
    assert parse_protocol_map("inside:plaintext, OUT:SASL_SSL,") == {
        "INSIDE": "PLAINTEXT",
        "OUT": "SASL_SSL",
    }
    with pytest.raises(ConfigError, match="NAME:PROTOCOL"):
        parse_protocol_map("INSIDE")
    with pytest.raises(ConfigError, match="TLS is not one of PLAINTEXT"):
        parse_protocol_map("INSIDE:TLS")


def test_without_advertised_listeners_the_listeners_are_advertised() -> None:
    result = plan("PLAINTEXT://10.0.0.1:9092", "INSIDE://10.0.0.1:9093")
    assert result.advertised == result.listeners
    assert result.inter_broker == "PLAINTEXT"


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_wildcard_is_never_advertised(host: str) -> None:
    result = plan(f"PLAINTEXT://{host}:9092", "INSIDE://10.0.0.1:9093")
    assert result.listeners[0].binds_everywhere
    assert [str(one) for one in result.advertised] == [
        "PLAINTEXT://this.host:9092",
        "INSIDE://10.0.0.1:9093",
    ]
    assert result.chosen == {"PLAINTEXT"}


def test_an_advertised_wildcard_is_an_error_and_an_empty_host_this_one() -> None:
    for host in ("0.0.0.0", "[::]"):
        with pytest.raises(ConfigError, match="nonroutable meta-address"):
            plan("PLAINTEXT://:9092", advertised=[f"PLAINTEXT://{host}:9092"])
    result = plan("PLAINTEXT://:9092", advertised=["PLAINTEXT://:9999"])
    assert [str(one) for one in result.advertised] == ["PLAINTEXT://this.host:9999"]
    assert result.chosen == {"PLAINTEXT"}
    assert not plan("PLAINTEXT://:9092", advertised=["PLAINTEXT://a:1"]).chosen


def test_only_listeners_can_be_advertised_but_not_all_must_be() -> None:
    result = plan("PLAINTEXT://:9092", "INSIDE://:9093", advertised=["PLAINTEXT://a:1"])
    assert [one.name for one in result.advertised] == ["PLAINTEXT"]
    with pytest.raises(ConfigError, match="INSIDE is advertised but is not among the listeners"):
        plan("PLAINTEXT://:9092", advertised=["PLAINTEXT://a:1", "INSIDE://a:2"])
    with pytest.raises(ConfigError, match="different name"):
        plan("PLAINTEXT://:9092", advertised=["PLAINTEXT://a:1", "PLAINTEXT://b:1"])


def test_names_and_ports_are_distinct() -> None:
    with pytest.raises(ConfigError, match="different name"):
        plan("PLAINTEXT://:9092", "plaintext://:9093")
    with pytest.raises(ConfigError, match="different port"):
        plan("PLAINTEXT://:9092", "INSIDE://:9092")
    with pytest.raises(ConfigError, match="different port"):
        plan("PLAINTEXT://10.0.0.1:9092", "INSIDE://10.0.0.2:9092")


def test_ports_may_be_shared_by_ipv4_and_ipv6_and_by_any_free_port() -> None:
    assert len(plan("PLAINTEXT://127.0.0.1:9092", "INSIDE://[::1]:9092").listeners) == 2
    assert len(plan("PLAINTEXT://:0", "INSIDE://:0").listeners) == 2


def test_a_bound_port_replaces_port_zero() -> None:
    result = plan("PLAINTEXT://127.0.0.1:0", "INSIDE://127.0.0.1:9093")
    told = result.advertise({"PLAINTEXT": 50_123, "INSIDE": 9093})
    assert [one.port for one in told] == [50_123, 9093]


def test_controller_listeners_are_read_but_not_opened() -> None:
    result = plan(
        "PLAINTEXT://:9092",
        "CONTROLLER://:9093",
        advertised=["PLAINTEXT://localhost:9092", "CONTROLLER://localhost:9093"],
        controller=("CONTROLLER",),
    )
    assert [one.name for one in result.listeners] == ["PLAINTEXT"]
    assert [one.name for one in result.advertised] == ["PLAINTEXT"]
    assert [str(one) for one in result.ignored] == ["CONTROLLER://:9093"]
    with pytest.raises(ConfigError, match="no listener for clients"):
        plan("CONTROLLER://:9093", controller=("CONTROLLER",))
    with pytest.raises(ConfigError, match="no listener for clients is advertised"):
        plan(
            "PLAINTEXT://:1",
            "CONTROLLER://:2",
            advertised=["CONTROLLER://a:2"],
            controller=("CONTROLLER",),
        )


def test_the_control_plane_listener_of_kafka_3_is_not_opened_either() -> None:
    config = BrokerConfig.of(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROL://127.0.0.1:9093",
            "control.plane.listener.name": "CONTROL",
        }
    )
    assert [one.name for one in config.listeners] == ["PLAINTEXT"]
    assert [one.name for one in config.listener_plan.ignored] == ["CONTROL"]


@pytest.mark.parametrize("name", ["SSL", "SASL_SSL"])
def test_a_listener_that_cannot_be_served_yet_is_an_error_that_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} listeners are not supported yet"):
        plan("PLAINTEXT://:9092", f"{name}://:9093")


def test_brokers_meet_at_an_advertised_listener() -> None:
    assert plan("INSIDE://:1", inter_broker="inside").inter_broker == "INSIDE"
    with pytest.raises(ConfigError, match=r"set inter\.broker\.listener\.name to one of: INSIDE"):
        plan("INSIDE://:1")
    with pytest.raises(ConfigError, match=r"Only one of inter\.broker\.listener\.name"):
        plan("PLAINTEXT://:1", inter_broker="PLAINTEXT", protocol="PLAINTEXT")
    with pytest.raises(ConfigError, match="to one of: PLAINTEXT"):
        plan("PLAINTEXT://:1", inter_broker="ELSEWHERE")


class Host:
    """A machine: its names, what they stand for, its addresses, and the way out of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.short = "box.example.org", "box"
        self.names: dict[str, str] = {}
        self.addresses = {"127.0.0.1", "127.0.1.1", "::1", "10.0.0.5", "2001:db8::5"}
        self.outward: dict[int, str] = {}
        for name, stand_in in (
            ("getfqdn", lambda: self.full),
            ("gethostname", lambda: self.short),
            ("getaddrinfo", self._look_up),
        ):
            monkeypatch.setattr(socket, name, stand_in)
        monkeypatch.setattr(
            listeners, "_is_ours", lambda _family, address: address in self.addresses
        )
        monkeypatch.setattr(listeners, "_outward_address", self.outward.get)

    def _look_up(self, name: str, _port: object, **_options: object) -> list[tuple[object, ...]]:
        if name not in self.names:
            raise socket.gaierror(-2, "Name or service not known")
        address = self.names[name]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_DGRAM, 0, "", (address, 0))]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_a_name_that_stands_for_this_host_is_advertised(host: Host) -> None:
    host.names = {"box.example.org": "10.0.0.5", "box": "10.0.0.5"}
    assert reachable_host() == "box.example.org"
    host.names = {"box": "10.0.0.5"}
    assert reachable_host() == "box"


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.0.1.1", "::1"])
def test_a_name_that_stands_for_loopback_would_send_clients_to_themselves(
    host: Host, loopback: str
) -> None:
    host.full = "localhost"
    host.names = {"localhost": loopback, "box": loopback}
    host.outward[socket.AF_INET] = "10.0.0.5"
    assert reachable_host() == "10.0.0.5"
    host.outward.clear()
    assert reachable_host() == "localhost"  # there is no network


def test_a_name_that_stands_for_another_machine_is_not_advertised(host: Host) -> None:
    host.names = {"box.example.org": "203.0.113.9"}
    host.outward[socket.AF_INET] = "10.0.0.5"
    assert reachable_host() == "10.0.0.5"


def test_an_ipv6_address_is_advertised_only_where_ipv6_is_bound(host: Host) -> None:
    host.names = {"box": "2001:db8::5"}
    host.outward[socket.AF_INET6] = "2001:db8::5"
    assert reachable_host(Listener("A", "0.0.0.0", 1).families) == "localhost"
    assert reachable_host(Listener("A", "::", 1).families) == "box"
    host.names.clear()
    assert reachable_host(Listener("A", "::", 1).families) == "2001:db8::5"
    host.outward[socket.AF_INET] = "10.0.0.5"
    assert reachable_host(Listener("A", "::", 1).families) == "10.0.0.5"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("max.connections", "max.connections"),
        ("listener.name.inside.max.connections", "max.connections"),
        ("listener.name.inside.scram-sha-256.sasl.jaas.config", "sasl.jaas.config"),
        ("listener.name.inside", "listener.name.inside"),
    ],
)
def test_a_setting_of_one_listener_is_known_by_its_base(name: str, base: str) -> None:
    assert base_name(name) == base
