"""Listeners: where the broker binds, and the addresses it gives to clients.

Kafka's grammar and rules: `NAME://host:port`, where the name chooses a security protocol through
`listener.security.protocol.map`, an empty host or 0.0.0.0 binds every interface, port 0 takes any
free port, and what is advertised is what clients are told to connect to. Two things are our own:
nothing that cannot be connected to is ever advertised (Kafka refuses to start where we put a name
of this host that others can reach), and listeners meant for Kafka's controller are read but not
opened.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ottla.config.setting import ConfigError

ANY_HOST = frozenset({"", "0.0.0.0", "::"})
_ENDPOINT = re.compile(r"(.*)://(?:\[([0-9a-zA-Z\-%._:]*)\]|([0-9a-zA-Z\-%._:]*)):(-?[0-9]+)")
_PER_LISTENER = re.compile(r"listener\.name\.[^.]+\.(.+)")
# Settings that come as listener.name.<listener>.<mechanism>.<setting>.
_PER_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SUPPORTED_PROTOCOLS = frozenset({"PLAINTEXT"})


@dataclass(frozen=True, slots=True)
class Listener:
    """One named address. An empty host means every interface; port 0 any free port."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def binds_everywhere(self) -> bool:
        """True when the socket is bound to all interfaces rather than to one address."""
        return self.host in ANY_HOST

    @property
    def families(self) -> tuple[int, ...]:
        """The kinds of addresses that reach a socket bound to all interfaces."""
        if self.host == "::":
            return (socket.AF_INET, socket.AF_INET6)
        return (socket.AF_INET,)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """What to bind, what to advertise, and what was left out."""

    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]  # a subset of the names in `listeners`; never a wildcard host
    ignored: tuple[Listener, ...]  # meant for Kafka's controller
    inter_broker: str  # name of the listener that brokers use among themselves
    chosen: frozenset[str] = frozenset()  # names of those whose advertised host nobody gave

    def advertise(self, bound_ports: Mapping[str, int]) -> tuple[Listener, ...]:
        """The advertised listeners once sockets are bound: port 0 becomes the real port."""
        return tuple(
            replace(listener, port=bound_ports[listener.name]) if listener.port == 0 else listener
            for listener in self.advertised
        )


def base_name(name: str) -> str:
    """The setting behind a per-listener name: `listener.name.x.max.connections`."""
    if not name.startswith("listener.name."):
        return name
    found = _PER_LISTENER.fullmatch(name)
    if found is None:
        return name
    rest = found[1]
    return next((base for base in _PER_MECHANISM if rest.endswith(base)), rest)


def parse_protocol_map(text: str) -> dict[str, str]:
    """`NAME:PROTOCOL,…` as a mapping from upper-case listener name to security protocol."""
    setting = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = entry.rpartition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not colon or not name:
            raise ConfigError.invalid(setting, text, f"{entry!r} is not of the form NAME:PROTOCOL")
        if protocol not in SECURITY_PROTOCOLS:
            raise ConfigError.invalid(
                setting, text, f"{protocol} is not one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        protocols[name] = protocol
    return protocols


def parse_listener(setting: str, text: str, protocols: Mapping[str, str]) -> Listener:
    """One `NAME://host:port`. Names are case-insensitive and kept in upper case, as in Kafka."""
    found = _ENDPOINT.fullmatch(text.strip())
    if found is None:
        raise ConfigError.invalid(setting, text, "expected NAME://host:port")
    name, bracketed, plain, port = found.groups()
    if not name:
        raise ConfigError.invalid(setting, text, "the listener has no name")
    number = int(port)
    if not 0 <= number <= 65_535:
        raise ConfigError.invalid(setting, text, "the port must be between 0 and 65535")
    name = name.upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError.invalid(
            setting,
            text,
            f"No security protocol defined for listener {name}; "
            "add it to listener.security.protocol.map",
        )
    return Listener(name, bracketed if bracketed is not None else plain, number, protocol)


def reachable_host(families: Collection[int] = (socket.AF_INET,)) -> str:
    """A name or address of this host that other machines can reach, as far as can be known here.

    That is the host's own name, if it stands for an address of this host and not for loopback: many
    machines have their own name in /etc/hosts as 127.0.0.1, and a client elsewhere that is sent to
    `localhost` finds itself. Else the address that connections to elsewhere come from; and where
    there is no network, localhost.
    """
    for name in dict.fromkeys((socket.getfqdn(), socket.gethostname())):
        if name and _leads_here(name, families):
            return name
    for family in families:
        address = _outward_address(family)
        if address is not None:
            return address
    return "localhost"


def _leads_here(name: str, families: Collection[int]) -> bool:
    """Whether a name stands for addresses that others can use, and all of them are this host's."""
    try:
        found = {
            (family, address[0])
            for family, _, _, _, address in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
            if family in families
        }
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(
        _is_routable(str(address)) and _is_ours(family, str(address)) for family, address in found
    )


def _is_ours(family: int, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _outward_address(family: int) -> str | None:
    """Where connections to elsewhere come from. Nothing is sent: connecting a datagram socket only
    looks up the route, here to addresses that are reserved for documentation."""
    anywhere = "192.0.2.1" if family == socket.AF_INET else "2001:db8::1"
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return None
    return address if _is_routable(address) else None


def _is_routable(address: str) -> bool:
    import ipaddress  # only where every interface is bound

    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_unspecified or parsed.is_link_local)


def plan_listeners(
    *,
    listeners: Sequence[str],
    advertised: Sequence[str] | None,
    protocol_map: str,
    controller_names: Sequence[str] = (),
    inter_broker_name: str | None = None,
    inter_broker_protocol: str | None = None,
    hostname: Callable[[Collection[int]], str] = reachable_host,
) -> ListenerPlan:
    """Judge the listener settings together. Raises `ConfigError` at the first contradiction."""
    protocols = parse_protocol_map(protocol_map)
    not_opened = {name.strip().upper() for name in controller_names}
    for name in not_opened:  # Kafka maps an unmapped controller listener to PLAINTEXT
        protocols.setdefault(name, "PLAINTEXT")
    everything = [parse_listener("listeners", text, protocols) for text in listeners]
    _require_distinct(everything)
    opened = tuple(one for one in everything if one.name not in not_opened)
    if not opened:
        raise ConfigError.invalid(
            "listeners", ",".join(listeners), "there is no listener for clients"
        )
    for one in opened:
        if one.security_protocol not in SUPPORTED_PROTOCOLS:
            raise ConfigError.invalid(
                "listeners",
                one,
                f"{one.security_protocol} listeners are not supported yet; only PLAINTEXT is",
            )
    told, chosen = _advertised(opened, advertised, protocols, not_opened, hostname)
    return ListenerPlan(
        listeners=opened,
        advertised=told,
        ignored=tuple(one for one in everything if one.name in not_opened),
        inter_broker=_inter_broker(told, inter_broker_name, inter_broker_protocol),
        chosen=chosen,
    )


def _advertised(
    opened: Sequence[Listener],
    advertised: Sequence[str] | None,
    protocols: Mapping[str, str],
    not_opened: set[str],
    hostname: Callable[[Collection[int]], str],
) -> tuple[tuple[Listener, ...], frozenset[str]]:
    """What clients are told, and the names of the listeners whose host is chosen here."""
    if advertised is None:
        chosen = frozenset(one.name for one in opened if one.binds_everywhere)
        return tuple(
            replace(one, host=hostname(one.families)) if one.name in chosen else one
            for one in opened
        ), chosen
    setting = "advertised.listeners"
    told = [parse_listener(setting, text, protocols) for text in advertised]
    told = [one for one in told if one.name not in not_opened]
    names = [one.name for one in told]
    if len(set(names)) < len(names):
        raise ConfigError.invalid(
            setting, ",".join(advertised), "Each listener must have a different name"
        )
    for one in told:
        if one.name not in {listener.name for listener in opened}:
            raise ConfigError.invalid(
                setting, one, f"{one.name} is advertised but is not among the listeners"
            )
        if one.host in ANY_HOST - {""}:
            raise ConfigError.invalid(
                setting,
                one,
                f"cannot use the nonroutable meta-address {one.host}. Use a routable IP address.",
            )
    if not told:
        raise ConfigError.invalid(
            setting, ",".join(advertised), "no listener for clients is advertised"
        )
    bound = {one.name: one for one in opened}
    chosen = frozenset(one.name for one in told if not one.host)
    return tuple(
        replace(one, host=hostname(bound[one.name].families)) if one.name in chosen else one
        for one in told
    ), chosen


def _inter_broker(told: Sequence[Listener], name: str | None, protocol: str | None) -> str:
    if name is not None and protocol is not None:
        raise ConfigError(
            "inter.broker.listener.name",
            "Only one of inter.broker.listener.name and security.inter.broker.protocol "
            "should be set.",
        )
    chosen = (name or protocol or "PLAINTEXT").upper()
    names = [one.name for one in told]
    if chosen not in names:
        setting = "security.inter.broker.protocol" if name is None else "inter.broker.listener.name"
        raise ConfigError.invalid(
            setting,
            chosen,
            "brokers must reach each other through an advertised listener; set "
            f"inter.broker.listener.name to one of: {', '.join(names)}",
        )
    return chosen


def _require_distinct(listeners: Sequence[Listener]) -> None:
    shown = ",".join(map(str, listeners))
    names = [one.name for one in listeners]
    if len(set(names)) < len(names):
        raise ConfigError.invalid("listeners", shown, "Each listener must have a different name")
    by_port: dict[int, list[Listener]] = {}
    for one in listeners:
        if one.port:
            by_port.setdefault(one.port, []).append(one)
    for sharing in by_port.values():
        if len(sharing) > 1 and not _one_of_each_family(sharing):
            raise ConfigError.invalid(
                "listeners",
                shown,
                "Each listener must have a different port unless exactly one listener has an "
                "IPv4 address and the other IPv6 address",
            )


def _one_of_each_family(listeners: Sequence[Listener]) -> bool:
    families = []
    for one in listeners:
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                socket.inet_pton(family, one.host.partition("%")[0])
            except OSError:
                continue
            families.append(family)
    return len(listeners) == 2 and set(families) == {socket.AF_INET, socket.AF_INET6}
