"""One record per request and one request in flight: on one connection, and on many at once."""

from __future__ import annotations

import selectors
import socket
import threading
import time

from confluent_kafka import Producer

from bench.load import frames, settings

_VALUE = bytes(100)
_PATIENCE = 30.0


def clients(
    bootstrap: str, topic: str, connections: int, seconds: float, acks: int = 1
) -> dict[str, float]:
    """Each of many librdkafka producers sends one record, waits for its ack, and again."""
    producers = [Producer(settings.prompt_producer(bootstrap, acks)) for _ in range(connections)]
    for producer in producers:
        producer.produce(topic, _VALUE, partition=0)
    for producer in producers:
        if producer.flush(_PATIENCE):
            raise RuntimeError("the broker acknowledged nothing")
    counts = [0] * connections
    barrier = threading.Barrier(connections + 1)

    def send_and_wait(index: int) -> None:
        send, flush = producers[index].produce, producers[index].flush
        barrier.wait()
        done = 0
        while time.perf_counter() < stop:
            send(topic, _VALUE, partition=0)
            flush()
            done += 1
        counts[index] = done

    threads = [
        threading.Thread(target=send_and_wait, args=(index,), daemon=True)
        for index in range(connections)
    ]
    for thread in threads:
        thread.start()
    started = time.perf_counter()
    stop = started + seconds
    barrier.wait()
    for thread in threads:
        thread.join()
    return {"seconds": time.perf_counter() - started, "requests": sum(counts)}


def raw(
    bootstrap: str, topic: str, connections: int, seconds: float, partitions: int = 1
) -> dict[str, float]:
    """The same with bare sockets and prepared requests: a client that costs almost nothing.

    The connections share the partitions, each with the leader of its own.
    """
    leaders = _leaders(bootstrap, topic, partitions)
    poller = selectors.EpollSelector()
    sockets = []
    for index in range(connections):
        partition = index % partitions
        request = frames.produce(topic, partition, frames.batch(_VALUE))
        sock = socket.create_connection(leaders[partition])
        sockets.append(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poller.register(sock, selectors.EVENT_READ, (sock, request))
        sock.sendall(request)
        frames.check_produce_response(frames.read_frame(sock))
        sock.sendall(request)
    done = 0
    started = time.perf_counter()
    stop = started + seconds
    length = 0
    while time.perf_counter() < stop:
        for key, _ in poller.select(1.0):
            sock, request = key.data
            answer = sock.recv(4096)
            length = length or len(answer)
            # Every answer has the same length; a shorter read or a closed connection has not.
            if len(answer) != length:
                raise RuntimeError("an answer was cut short")
            done += 1
            sock.send(request)
    taken = time.perf_counter() - started
    for sock in sockets:
        sock.close()
    poller.close()
    return {"seconds": taken, "requests": done}


def _leaders(bootstrap: str, topic: str, partitions: int) -> list[tuple[str, int]]:
    """Where each partition is led."""
    if partitions == 1:
        host, _, port = bootstrap.rpartition(":")
        return [(host, int(port))]
    found = Producer({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=_PATIENCE)
    brokers = {number: (each.host, each.port) for number, each in found.brokers.items()}
    led = found.topics[topic].partitions
    return [brokers[led[partition].leader] for partition in range(partitions)]
