"""zookeeper-server-start, zookeeper-server-stop and zookeeper-shell, with Kafka's command lines.

All three are the real Apache ZooKeeper (`zookeeper_server.py` says where from): the server with a
properties file, the signal that ends it, and its own command-line client.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

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
    daemon = bool(words) and words[0] == "-daemon"
    if daemon:
        del words[0]
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
            _detach(prepared.command, prepared.lock)
            return 0
        become(prepared)
    except ServerError as error:
        raise Failure(str(error)) from None


def _detach(command: Sequence[str], lock: int) -> None:
    """Run in the background, with the output in LOG_DIR (default: ./logs) as Kafka has it."""
    import subprocess

    folder = os.environ.get("LOG_DIR") or "logs"
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "zookeeper.out"), "ab") as output:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
        )


def stop(arguments: Sequence[str]) -> int:
    """zookeeper-server-stop."""
    if arguments:
        raise Failure(STOP_USAGE)
    name = os.environ.get("SIGNAL", "TERM")
    number = getattr(signal, f"SIG{name.removeprefix('SIG')}", None)
    if number is None:
        raise Failure(f"SIGNAL={name}: there is no such signal; leave it out")
    found = list(processes())
    if not found:
        raise Failure("No zookeeper server to stop", out=True)
    for pid in found:
        os.kill(pid, number)
    return 0


def processes() -> Iterator[int]:
    """The ZooKeeper servers of this user."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = [word.decode(errors="replace") for word in file.read().split(b"\0")]
        except OSError:
            continue  # gone meanwhile
        if is_server(words):
            yield int(name)


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
