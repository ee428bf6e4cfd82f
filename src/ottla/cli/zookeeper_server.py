"""Apache ZooKeeper itself: where it is, what it is to be told, and becoming it.

PySpark's wheel has ZooKeeper's server among its jars, so the `[zookeeper]` extra brings it without
a download of its own. `prepare` reads the settings, fills in what is safe (loopback only, no admin
server) and looks for what would make the server fail with a stack trace: a missing Java, a taken
port, a folder in use. `become` replaces this process by Java, so that a signal or a kill reaches
the server itself.

ZooKeeper does not notice two servers in one folder, which destroy each other's files. So the folder
is locked by a file descriptor that Java inherits and never touches: it is free again when the
server has ended, however it did.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ottla.config.properties import MalformedProperties, decode, parse_properties
from ottla.pipelines import java

SERVER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
SHELL_CLASS = "org.apache.zookeeper.ZooKeeperMain"
DEFAULTS: Mapping[str, str] = {
    "dataDir": "zookeeper-data",
    "clientPort": "2181",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "autopurge.purgeInterval": "24",
}
"""What Kafka's zookeeper.properties says, and a look for old snapshots once a day."""

EFFECTIVE = "ottla-zookeeper.properties"
_LOOPBACK = "127.0.0.1"
_LAST_PORT = 65_535
_JARS = re.compile(
    r"(zookeeper|zookeeper-jute|netty|slf4j-api|log4j-(api|core|slf4j2-impl)|snappy-java|"
    r"metrics-core|commons-io|commons-cli|audience-annotations|jline-2)[-.0-9a-z].*\.jar"
)
_SERVER = re.compile(r"server\.(\d+)")
_HEAP = "-Xmx512m"


class ServerError(Exception):
    """ZooKeeper cannot be run like this; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A server that can be started."""

    command: tuple[str, ...]
    version: str
    addresses: tuple[str, ...]
    data_dir: Path
    servers: int
    lock: int
    """The descriptor that keeps the data folder ours; Java inherits it."""


def jars() -> list[Path]:
    """ZooKeeper and what it needs, among PySpark's jars."""
    spec = importlib.util.find_spec("pyspark")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(
        jar for folder in folders for jar in Path(folder, "jars").glob("*.jar")
        if _JARS.fullmatch(jar.name)
    )  # fmt: skip
    if not any(jar.name.startswith("zookeeper-") for jar in found):
        raise ServerError(
            "there is no Apache ZooKeeper here: Ottla's extra [zookeeper] brings one, in a "
            "checkout by `pip install '.[zookeeper]'` (it comes with PySpark). Any other that runs "
            "serves as well, as zookeeper.connect"
        )
    return found


def java_line(
    main: str,
    arguments: Sequence[str],
    options: Sequence[str] = (),
    *,
    log_file: Path | None = None,
) -> tuple[str, ...]:
    """A command line that runs one of ZooKeeper's classes.

    With `log_file` everything is logged there, and on the terminal only what is wrong.
    """
    path = os.pathsep.join(str(jar) for jar in jars())
    try:
        home = java.find(os.environ, "ZooKeeper", "zookeeper")
    except java.JavaError as error:
        raise ServerError(str(error)) from None
    heap = os.environ.get("KAFKA_HEAP_OPTS", _HEAP).split()
    log = Path(__file__).with_name("zookeeper_log4j2.properties")
    if log_file is not None:
        log = log.with_name("zookeeper_file_log4j2.properties")
        options = (*options, f"-Dottla.log.file={log_file.absolute()}")
    return (
        str(home / "bin" / "java"),
        *heap,
        *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"),
        *(f"-Dlog4j2.configurationFile={log}", "-Dlog4j2.disableJmx=true"),
        "-Dzookeeper.jmx.log4j.disable=true",
        *options,
        *("-cp", path, main, *arguments),
    )


def read_settings(file: Path | None, given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The settings of a file, under those that were given, over the defaults."""
    settings = dict(DEFAULTS)
    if file is not None:
        try:
            for each in parse_properties(decode(file.read_bytes())):
                settings[each.key.strip()] = each.value.strip()
        except OSError as error:
            raise ServerError(f"{file}: {error.strerror or error}") from None
        except MalformedProperties as error:
            raise ServerError(f"{file}: {error}") from None
        if "secureClientPort" in settings and not _says(file, "clientPort"):
            del settings["clientPort"]
    settings.update(given)
    for kind in ("client", "secureClient"):
        if f"{kind}Port" in settings:
            settings.setdefault(f"{kind}PortAddress", _LOOPBACK)
    return settings


def _says(file: Path, name: str) -> bool:
    return any(each.key.strip() == name for each in parse_properties(decode(file.read_bytes())))


def prepare(  # noqa: C901 - one check after the other, each with its own message
    file: Path | None,
    given: Sequence[tuple[str, str]] = (),
    server_id: int | None = None,
    *,
    log_file: Path | None = None,
) -> Prepared:
    """Everything that can be found out before Java is there."""
    settings = read_settings(file, given)
    origin = str(file) if file is not None else "the settings"
    for name in ("tickTime", "initLimit", "syncLimit", "maxClientCnxns"):
        if name in settings:
            _number(origin, name, settings[name], 0)
    servers = sorted(int(match[1]) for name in settings if (match := _SERVER.fullmatch(name)))
    if servers:
        for name in ("initLimit", "syncLimit"):
            settings.setdefault(name, {"initLimit": "10", "syncLimit": "5"}[name])
    addresses = _addresses(origin, settings)
    line = java_line(SERVER_CLASS, (), log_file=log_file)
    data_dir = Path(settings["dataDir"]).absolute()
    for name in ("dataDir", "dataLogDir"):
        if name in settings:
            settings[name] = str(Path(settings[name]).absolute())
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = _lock(data_dir)
    except OSError as error:
        raise ServerError(f"dataDir {data_dir}: {error.strerror or error}") from None
    try:
        for host, port in addresses:
            _check_free(host, port)
        _settle_identity(origin, data_dir, servers, server_id)
        effective = data_dir / EFFECTIVE
        text = "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())
        effective.write_text(f"# Made by `ottla zookeeper start` from {origin}.\n{text}")
    except OSError as error:
        os.close(lock)
        raise ServerError(f"dataDir {data_dir}: {error.strerror or error}") from None
    except ServerError:
        os.close(lock)
        raise
    shown = f"-Dottla.config={file.absolute()}" if file is not None else "-Dottla.config="
    return Prepared(
        command=(*line[:1], shown, *line[1:], str(effective)),
        version=_version(),
        addresses=tuple(f"{host}:{port}" for host, port in addresses),
        data_dir=data_dir,
        servers=len(servers) or 1,
        lock=lock,
    )


def become(prepared: Prepared) -> NoReturn:
    """Replace this process by the server."""
    os.set_inheritable(prepared.lock, True)
    run(prepared.command)


def run(command: tuple[str, ...]) -> NoReturn:
    """Replace this process by another program."""
    sys.stdout.flush()
    try:
        os.execv(command[0], command)
    except OSError as error:
        raise ServerError(f"{command[0]}: {error.strerror or error}") from None


def _version() -> str:
    for jar in jars():
        match = re.fullmatch(r"zookeeper-([0-9.]+)\.jar", jar.name)
        if match:
            return match[1]
    return "of an unknown version"


def _number(origin: str, name: str, text: str, lowest: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= lowest):
        raise ServerError(f"{origin}: {name} is a number from {lowest} on, not {text!r}")
    return int(text)


def _addresses(origin: str, settings: Mapping[str, str]) -> list[tuple[str, int]]:
    found = []
    for kind in ("client", "secureClient"):
        text = settings.get(f"{kind}Port")
        if text is None:
            continue
        port = _number(origin, f"{kind}Port", text, 1)
        if port > _LAST_PORT:
            raise ServerError(f"{origin}: {kind}Port is a number up to {_LAST_PORT}, not {port}")
        found.append((settings[f"{kind}PortAddress"], port))
    return found


def _check_free(host: str, port: int) -> None:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ServerError(f"{host} is no address of this machine: {error.strerror}") from None
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            raise ServerError(
                f"{host}:{port}: {(error.strerror or str(error)).lower()}; is a ZooKeeper running "
                "there? Stop it with zookeeper-server-stop, or choose another clientPort"
            ) from None


def _lock(data_dir: Path) -> int:
    descriptor = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ServerError(
            f"dataDir {data_dir} is in use by another ZooKeeper: stop that one, or choose another "
            "folder"
        ) from None
    return descriptor


def _settle_identity(origin: str, data_dir: Path, servers: list[int], given: int | None) -> None:
    """Which of the ensemble this is: the file `myid`, made from --id when it is not there."""
    file = data_dir / "myid"
    if not servers:
        if given is not None:
            raise ServerError(
                f"--id {given}: {origin} names no servers, as server.{given}=host:2888:3888"
            )
        return
    known = file.read_text().strip() if file.exists() else None
    if known is None and given is None:
        choices = ", ".join(map(str, servers))
        raise ServerError(
            f"{origin} names an ensemble of {len(servers)} servers, and {file} is not there: say "
            f"which this is with --id (one of {choices})"
        )
    if known is not None and given is not None and known != str(given):
        raise ServerError(f"--id {given}: {file} says that this is server {known}")
    number = str(given) if known is None else known
    if number not in map(str, servers):
        raise ServerError(f"this is server {number}, and {origin} has no server.{number}")
    if known is None:
        file.write_text(f"{number}\n")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
