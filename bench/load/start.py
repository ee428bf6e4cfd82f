"""The first acknowledged record of a broker that is only just starting."""

from __future__ import annotations

import socket
import sys
import time
from itertools import cycle

from confluent_kafka import KafkaError, Message, Producer

from bench.load import frames, settings

_PATIENCE = 60.0
_CLUSTER_PATIENCE = 240.0
_EXISTS = 36


def first_ack(bootstrap: str, topic: str) -> dict[str, float]:
    """Knock until the port opens, then send one record to a topic that does not exist yet.

    Prints `ready` before it knocks, when the libraries are loaded. The result is the monotonic
    clock at the acknowledgement and when the port opened; the caller knows when it began.
    """
    host, _, port = bootstrap.rpartition(":")
    print("ready", flush=True)
    deadline = time.monotonic() + _PATIENCE
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                break
        if time.monotonic() > deadline:
            raise RuntimeError("the port never opened")
        time.sleep(0.002)
    opened = time.monotonic_ns()
    return {"acknowledged_ns": _send(bootstrap, topic, -1, _PATIENCE), "opened_ns": opened}


def told_ack(bootstrap: str, topic: str, partition: int, patience: float) -> dict[str, float]:
    """The same once told that the port is open: one record into a partition that exists.

    Nobody knocks here for minutes: of ten thousands of connections to a loopback port where nobody
    listens, one meets itself, and the broker then finds its port taken.
    """
    print("ready", flush=True)
    sys.stdin.readline()
    return {"acknowledged_ns": _send(bootstrap, topic, partition, patience)}


def replicated_ack(bootstrap: str, topic: str, replicas: int, min_insync: int) -> dict[str, float]:
    """A topic of so many replicas as soon as a broker makes one, then a record that all have.

    Prints `ready` before it begins to ask, one broker after the other.
    """
    request = frames.create_topic(topic, replicas, {"min.insync.replicas": str(min_insync)})
    print("ready", flush=True)
    deadline = time.monotonic() + _CLUSTER_PATIENCE
    why = "no broker listens"
    for host, port in cycle(_addresses(bootstrap)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the topic could not be made: {why}")
        try:
            with socket.create_connection((host, port), _PATIENCE) as sock:
                sock.sendall(request)
                error = frames.read_created_error(frames.read_frame(sock))
        except (OSError, RuntimeError) as failure:
            why = str(failure)
        else:
            if error in {0, _EXISTS}:
                break
            why = f"error {error}"
        time.sleep(0.005)
    return {"acknowledged_ns": _send(bootstrap, topic, 0, _CLUSTER_PATIENCE, acks=-1)}


def _addresses(bootstrap: str) -> list[tuple[str, int]]:
    each = (place.rpartition(":") for place in bootstrap.split(","))
    return [(host, int(port)) for host, _, port in each]


def _send(bootstrap: str, topic: str, partition: int, patience: float, acks: int = 1) -> int:
    """One record, sent as eagerly as librdkafka can; the clock at its acknowledgement."""
    acked: list[int] = []

    def acknowledged(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise RuntimeError(error.str())
        acked.append(time.monotonic_ns())

    producer = Producer(
        {
            **settings.prompt_producer(bootstrap, acks),
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 5,
            "retry.backoff.ms": 5,
        }
    )
    producer.produce(topic, b"first", partition=partition, on_delivery=acknowledged)
    if producer.flush(patience) or not acked:
        raise RuntimeError("the broker acknowledged nothing")
    return acked[0]
