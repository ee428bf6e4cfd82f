"""zookeeper-server-start, zookeeper-server-stop and zookeeper-shell, with Kafka's command lines.

All three are the real Apache ZooKeeper (`zookeeper_server.py` says where from): the server with a
properties file, the signal that ends it, and its own command-line client.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ottla.cli.kafka_compat.daemons import (
    detach,
    own_processes,
    stop_all,
    stop_signal,
    take_daemon_flag,
)
from ottla.cli.kafka_compat.options import Failure

USAGE = "USAGE: zookeeper-server-start [-daemon] zookeeper.properties"
SHELL_USAGE = (
    "USAGE: zookeeper-shell zookeeper_host:port[/path] [-zk-tls-config-file file] [args...]"
)
_PATIENCE = 5.0
STOP_USAGE = "zookeeper-server-stop: stop the ZooKeeper servers of this user"


def start(arguments: Sequence[str]) -> int:
    """zookeeper-server-start."""
    words = list(arguments)
    daemon = take_daemon_flag(words)
    if not words or words[0] in ("--help", "-h"):
        print(USAGE, file=sys.stderr)
        return 1
    if len(words) > 1:
        raise Failure(f"{words[1]}: not expected ({USAGE})")
    if not os.path.isfile(words[0]):
        raise Failure(f"{words[0]}: No such file; name ZooKeeper's properties file")
    from ottla.cli.zookeeper_server import ServerError, become, prepare

    try:
        prepared = prepare(Path(words[0]))
        if daemon:
            detach(prepared.command, "zookeeper.out", pass_fds=(prepared.lock,))
            return 0
        become(prepared)
    except ServerError as error:
        raise Failure(str(error)) from None


def stop(arguments: Sequence[str]) -> int:
    """zookeeper-server-stop."""
    if arguments:
        raise Failure(STOP_USAGE)
    return stop_all(list(processes()), stop_signal(), "zookeeper")


def processes() -> Iterator[int]:
    """The ZooKeeper servers of this user."""
    for pid, words in own_processes():
        if is_server(words):
            yield pid


def is_server(words: Sequence[str]) -> bool:
    """Whether a command line is that of a ZooKeeper server."""
    from ottla.cli.zookeeper_server import SERVER_CLASS

    return bool(words) and os.path.basename(words[0]) == "java" and SERVER_CLASS in words


def shell(arguments: Sequence[str]) -> int:
    """zookeeper-shell."""
    words = list(arguments)
    if not words or words[0] in ("--help", "-h"):
        print(SHELL_USAGE, file=sys.stderr)
        return 1
    from ottla.cli.zookeeper_server import SHELL_CLASS, ServerError, java_line, run
    from ottla.cluster.zookeeper.address import BadAddress, parse_address

    server, *rest = words
    options = ["-Dottla.log.level=off"]  # what there is to say, it prints
    if rest[:1] == ["-zk-tls-config-file"]:
        if len(rest) < 2:
            raise Failure(f"-zk-tls-config-file: name the file ({SHELL_USAGE})")
        options.append(f"-Dzookeeper.client.configFile={rest[1]}")
        rest = rest[2:]
    try:
        _check_answers(parse_address(server).servers, server)
        run(java_line(SHELL_CLASS, ("-server", server, *rest), options))
    except (BadAddress, ServerError) as error:
        raise Failure(str(error)) from None


def _check_answers(servers: Sequence[tuple[str, int]], shown: str) -> None:
    """A line at once, where ZooKeeper's client would try for half a minute."""
    for host, port in servers:
        try:
            socket.create_connection((host.strip("[]"), port), timeout=_PATIENCE).close()
        except OSError:
            continue
        return
    raise Failure(f"no ZooKeeper answers at {shown}: is it running, and is the address right?")
