"""Where ZooKeeper is, and how to be let in.

`host:port,host:port/chroot` is Kafka's form: the chroot comes once, after the last server, and a
server without a port is at 2181. Credentials and TLS come from a properties file and from nowhere
else, since everybody on a machine can read its command lines:

    zookeeper.digest.username, zookeeper.digest.password     whose nodes they are: nobody else may
                                                             read or write them
    zookeeper.ssl.client.enable=true
    zookeeper.ssl.truststore.location                        PEM; the system's when it is left out
    zookeeper.ssl.keystore.location, …key.location           PEM; certificate, and key if elsewhere
    zookeeper.ssl.keystore.password                          of the key
    zookeeper.ssl.endpoint.identification.algorithm          empty: any host name will do
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ottla.config.properties import MalformedProperties, decode, parse_properties

DEFAULT_PORT = 2181
_SERVER = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^:\[\]\s/,]+)(?::(?P<port>\d{1,5}))?")
_LAST_PORT = 65_535


class BadAddress(ValueError):
    """A connection string or a file of credentials that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak TLS with the servers."""

    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_host: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """Who we are to ZooKeeper, and how it is asked."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Servers of one ensemble, and the path there below which everything is kept."""

    servers: tuple[tuple[str, int], ...]
    chroot: str = ""
    """Empty, or a path that begins with a slash and does not end with one."""

    def __str__(self) -> str:
        return self.hosts + self.chroot

    @property
    def hosts(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.servers)


def parse_address(text: str) -> Address:
    """The value of `zookeeper.connect`."""
    hosts, slash, path = text.strip().partition("/")
    servers = []
    for part in hosts.split(","):
        match = _SERVER.fullmatch(part.strip())
        port = int(match["port"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port <= _LAST_PORT:
            hint = "; the chroot comes once, after the last server" if slash and "," in path else ""
            raise BadAddress(
                f"{text!r} is no ZooKeeper address: {part.strip() or 'an empty server'!r} is not "
                f"host:port, as in zk1:2181,zk2:2181/ottla{hint}"
            )
        servers.append((match["host"], port))
    chroot = f"/{path.rstrip('/')}" if path.rstrip("/") else ""
    if chroot:
        segments = chroot[1:].split("/")
        if "," in chroot or ":" in chroot:
            raise BadAddress(
                f"{text!r} is no ZooKeeper address: the chroot comes once, after the last server, "
                "as in zk1:2181,zk2:2181/ottla"
            )
        if not chroot.isascii() or not chroot.isprintable() or {"", ".", ".."} & set(segments):
            raise BadAddress(f"{text!r}: {chroot} is no path in ZooKeeper")
        if segments[0] == "zookeeper":
            raise BadAddress(f"{text!r}: /zookeeper is ZooKeeper's own; choose another chroot")
    return Address(tuple(servers), chroot)


def read_access(file: Path) -> Access:
    """Credentials and TLS from a properties file."""
    try:
        found = parse_properties(decode(file.read_bytes()))
    except OSError as error:
        raise BadAddress(f"{file} cannot be read: {error.strerror or error}") from None
    except MalformedProperties as error:
        raise BadAddress(f"{file}: {error}") from None
    return access_of({each.key: each.value for each in found}, str(file))


def access_of(settings: Mapping[str, str], origin: str) -> Access:
    """The same from settings that were read already; those of others are passed over."""
    username = settings.get("zookeeper.digest.username")
    password = settings.get("zookeeper.digest.password")
    if (username is None) != (password is None):
        missing = "password" if password is None else "username"
        raise BadAddress(f"{origin}: zookeeper.digest.{missing} is missing; give both or neither")
    if username is not None and (not username or ":" in username):
        raise BadAddress(f"{origin}: zookeeper.digest.username must not be empty nor have a colon")
    enabled = settings.get("zookeeper.ssl.client.enable", "false").strip().lower()
    if enabled not in ("true", "false"):
        raise BadAddress(f"{origin}: zookeeper.ssl.client.enable is true or false, not {enabled!r}")
    return Access(username, password, _tls(settings, origin) if enabled == "true" else None)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """What speaks TLS like this; reads files."""
    used = tls.authorities
    try:
        context = ssl.create_default_context(cafile=tls.authorities)
        context.check_hostname = tls.check_host
        # As Java and Python before 3.13: authorities of one's own often name no key usage.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if tls.certificate is not None:
            used = tls.certificate
            context.load_cert_chain(tls.certificate, tls.key, lambda: tls.key_password or "")
    except (OSError, ValueError) as error:
        raise BadAddress(f"{used} cannot be used for TLS with ZooKeeper: {error}") from None
    return context


def _tls(settings: Mapping[str, str], origin: str) -> Tls:
    def file(name: str) -> str | None:
        given = settings.get(f"zookeeper.ssl.{name}.location") or None
        if given is not None and not os.path.isfile(given):
            raise BadAddress(f"{origin}: zookeeper.ssl.{name}.location: there is no file {given}")
        if given is not None and not given.endswith((".pem", ".crt", ".key", ".cert")):
            raise BadAddress(
                f"{origin}: zookeeper.ssl.{name}.location: {given} is not named like PEM, the only "
                "format there is here; `openssl pkcs12 -in store.p12 -out store.pem` makes it so"
            )
        return given

    certificate = file("keystore")
    algorithm = settings.get("zookeeper.ssl.endpoint.identification.algorithm", "https")
    return Tls(
        authorities=file("truststore"),
        certificate=certificate,
        key=file("key") or certificate,
        key_password=settings.get("zookeeper.ssl.keystore.password"),
        check_host=bool(algorithm.strip()),
    )
