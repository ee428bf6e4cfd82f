"""Committed offsets of very many groups: written in several rounds, and asked for after a restart.

A coordinator answers for a group once it has read the whole partition of `__consumer_offsets` that
the group is in. So one group of each partition tells when all of them are served.
"""

from __future__ import annotations

import select
import socket
import sys
import time

from bench.load import frames, group_frames, members

_PATIENCE = 900.0
_PAUSE = 0.005
_IN_FLIGHT = 100


def group_name(number: int) -> str:
    return f"restarted-{number}"


def partition_of(group: str, partitions: int) -> int:
    """Where Kafka keeps a group: Java's hash of its name, without the sign."""
    code = 0
    for letter in group:
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


def one_of_each(groups: int, partitions: int) -> list[str]:
    """One group for each partition of the offsets' topic that has any."""
    chosen: dict[int, str] = {}
    for number in range(groups):
        name = group_name(number)
        chosen.setdefault(partition_of(name, partitions), name)
    return list(chosen.values())


def commit_all(
    bootstrap: str, topic: str, groups: int, partitions: int, rounds: int, connections: int
) -> dict[str, float]:
    """Every group commits all partitions of the topic, `rounds` times, the round as its offset."""
    members.wait_coordinator(bootstrap)
    work = (
        group_frames.offset_commits(group_name(number), topic, partitions, turn)
        for turn in range(1, rounds + 1)
        for number in range(groups)
    )
    poll = select.epoll()
    here = {sock.fileno(): sock for sock in (_connect(bootstrap) for _ in range(connections))}
    began = time.perf_counter()
    busy = 0
    for sock in here.values():
        poll.register(sock.fileno(), select.EPOLLIN)
        request = next(work, None)
        if request is not None:
            sock.sendall(request)
            busy += 1
    sent = busy
    while busy:
        for descriptor, _ in poll.poll(1.0):
            sock = here[descriptor]
            error = group_frames.read_commit_error(frames.read_frame(sock))
            if error:
                raise RuntimeError(f"OffsetCommit was answered with error {error}")
            request = next(work, None)
            if request is None:
                busy -= 1
            else:
                sock.sendall(request)
                sent += 1
    seconds = time.perf_counter() - began
    for sock in here.values():
        sock.close()
    poll.close()
    return {"seconds": seconds, "requests": sent}


def served(
    bootstrap: str, topic: str, groups: int, partitions: int, offset: int, shards: int
) -> dict[str, float]:
    """Once told that the port is open: ask until a group of each partition has its offsets.

    The clock then stands still, and every other group is asked as well: its offsets must be those
    of the last round.
    """
    telling = one_of_each(groups, shards)
    print("ready", flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + _PATIENCE
    with _connect(bootstrap) as sock:
        for group in telling:
            while _ask(sock, group, topic, partitions) != [offset] * partitions:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the offsets of {group} were never served")
                time.sleep(_PAUSE)
        served_ns = time.monotonic_ns()
        asked = 0
        for begin in range(0, groups, _IN_FLIGHT):
            names = [group_name(each) for each in range(begin, min(groups, begin + _IN_FLIGHT))]
            for name in names:
                sock.sendall(group_frames.offset_fetch(name, topic, partitions))
            for name in names:
                found = group_frames.read_fetched(frames.read_frame(sock))
                if found != [offset] * partitions:
                    raise RuntimeError(f"the offsets of {name} are {found}")
                asked += 1
    return {"served_ns": served_ns, "groups": asked}


def _ask(sock: socket.socket, group: str, topic: str, partitions: int) -> list[int]:
    sock.sendall(group_frames.offset_fetch(group, topic, partitions))
    return group_frames.read_fetched(frames.read_frame(sock))


def _connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    sock = socket.create_connection((host, int(port)), 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
