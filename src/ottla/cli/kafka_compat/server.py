"""kafka-server-start and kafka-server-stop: a broker with Kafka's own command line.

`start` is `ottla server start` under the name and with the arguments that Kafka's script takes.
`stop` looks for the broker processes of this user and sends each the signal to stop cleanly, as
Kafka's script does by looking for Java's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from ottla.cli.kafka_compat.daemons import (
    detach,
    own_processes,
    stop_all,
    stop_signal,
    take_daemon_flag,
)
from ottla.cli.kafka_compat.options import KAFKA_VERSION, Failure

USAGE = "USAGE: kafka-server-start [-daemon] server.properties [--override property=value]*"
STOP_USAGE = (
    "kafka-server-stop [--process-role broker|controller] [--node-id ID]: stop the brokers of "
    "this user"
)


def start(arguments: Sequence[str]) -> int:
    """kafka-server-start."""
    words = list(arguments)
    daemon = take_daemon_flag(words)
    if "--version" in words:
        print(KAFKA_VERSION)
        return 0
    if not words or words[0] in ("--help", "-h"):
        print(USAGE, file=sys.stderr)
        print("--override property=value: a setting that wins over the file", file=sys.stderr)
        return 1
    config, overrides = words[0], _overrides(words[1:])
    if not os.path.isfile(config):
        raise Failure(f"{config}: No such file; name the server's properties file first")
    line = ["server", "start", "--config", config]
    for pair in overrides:
        line += ["--set", pair]
    if daemon:
        detach([sys.executable, "-m", "ottla", *line], "kafkaServer.out")
        return 0
    from ottla.cli.main import run

    return run(line)


def _overrides(words: list[str]) -> list[str]:
    pairs: list[str] = []
    waiting = iter(words)
    for word in waiting:
        flag, equals, value = word.partition("=")
        if flag != "--override":
            raise Failure(f"Found non argument parameters: {word} ({USAGE})")
        pair = value if equals else next(waiting, "")
        if "=" not in pair:
            raise Failure(f"--override {pair}: expected property=value")
        pairs.append(pair)
    return pairs


def stop(arguments: Sequence[str]) -> int:
    """kafka-server-stop."""
    node_id = _stop_options(list(arguments))
    number = stop_signal()
    found = [
        pid for pid, words in processes() if node_id is None or _has_node_id(pid, words, node_id)
    ]
    return stop_all(found, number, "kafka")


def _stop_options(words: list[str]) -> str | None:
    node_id: str | None = None
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag in ("--help", "-h"):
            raise Failure(STOP_USAGE)
        if flag not in ("--process-role", "--node-id"):
            raise Failure(f"{word} is not a recognized option ({STOP_USAGE})")
        value = value if equals else (words.pop(0) if words else "")
        if flag == "--node-id":
            node_id = value
        elif value == "controller":
            raise Failure("No kafka server to stop", out=True)  # brokers here are both
    return node_id


def processes() -> Iterator[tuple[int, list[str]]]:
    """The broker processes of this user, with their command lines."""
    for pid, words in own_processes():
        if is_broker(words):
            yield pid, words


def is_broker(words: Sequence[str]) -> bool:
    """Whether a command line is that of a broker, started under any of its names."""
    if not words or "python" not in os.path.basename(words[0]):
        return False
    rest = [word for word in words[1:] if word not in ("-m", "-u")]
    if not rest:
        return False
    program = os.path.basename(rest[0])
    if program == "ottla":
        return rest[1:3] == ["server", "start"]
    if rest[0] == "ottla.cli.kafka_compat" and len(rest) > 1:
        program = os.path.basename(rest[1])
    return program.removesuffix(".sh") == "kafka-server-start" and "-daemon" not in rest


def _has_node_id(pid: int, words: Sequence[str], node_id: str) -> bool:
    """Whether a broker was told this id on its command line or in its file."""
    from ottla.cli.kafka_compat.options import read_properties

    names = ("node.id", "broker.id")
    for word in words:
        name, equals, value = word.removeprefix("--override=").partition("=")
        if equals and name in names:
            return value == node_id
    for word in words:
        if word.endswith(".properties"):
            try:
                found = read_properties(os.path.join(f"/proc/{pid}/cwd", word))
            except Failure:
                return False  # not ours to read, or gone
            return any(found.get(name) == node_id for name in names)
    return False
