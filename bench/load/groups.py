"""Groups at scale, without a client library: rebalances, steady heartbeats, commits."""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from statistics import median

from bench.load import frames, group_frames, members


def rebalances(  # noqa: PLR0913, PLR0917 - what the command line of bench.load gives, in its order
    bootstrap: str,
    topic: str,
    protocol: str,
    groups: int,
    group_members: int,
    partitions: int,
    warm: int,
    repeats: int,
    singly: int = 0,
) -> dict[str, float]:
    """One more member comes into every group at once: how long until all have settled again.

    Then it leaves, which is not measured, and again. `busy` is the CPU this process took. After
    that so many groups do it one by one: `one` is the median of them.
    """
    crowd = members.Crowd(bootstrap)
    figures: dict[str, float] = {}
    began = time.perf_counter()
    here = members.make_groups(
        crowd, protocol, groups, topic=topic, members=group_members, partitions=partitions
    )
    figures["formed"] = time.perf_counter() - began
    for turn in range(warm + repeats):
        cpu, began = time.process_time(), time.perf_counter()
        members.everyone(crowd, here, "arrive")
        seconds, busy = time.perf_counter() - began, time.process_time() - cpu
        if turn >= warm:
            figures[f"seconds-{turn - warm}"] = seconds
            figures[f"busy-{turn - warm}"] = busy
        members.everyone(crowd, here, "depart")
    if singly:
        figures["one"] = median(members.each(crowd, here[:singly], "arrive"))
    crowd.close()
    return figures


def heartbeats(
    bootstrap: str,
    topic: str,
    protocol: str,
    groups: int,
    group_members: int,
    partitions: int,
    interval: float,
) -> dict[str, float]:
    """Steady heartbeats of all members of all groups until told to end.

    Prints `ready` once they flow; the first line of standard input ends them.
    """
    crowd = members.Crowd(bootstrap)
    here = members.make_groups(
        crowd, protocol, groups, topic=topic, members=group_members, partitions=partitions
    )
    members.everyone(crowd, here, "arrive")
    told = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    began = time.perf_counter()
    answered = members.steady(crowd, here, interval, lambda: not told.is_set())
    seconds = time.perf_counter() - began
    crowd.close()
    return {"seconds": seconds, "heartbeats": answered}


def commits(bootstrap: str, topic: str, connections: int, seconds: float) -> dict[str, float]:
    """OffsetCommit, one partition and one in flight on each connection, a group for each."""
    poll = select.epoll()
    here: dict[int, tuple[socket.socket, bytes]] = {}
    for index in range(connections):
        group = f"commits-{index}"
        sock = socket.create_connection(members.wait_coordinator(bootstrap, group), 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = group_frames.offset_commit(group, topic, 0, index)
        here[sock.fileno()] = sock, request
        deadline = time.monotonic() + 30
        while True:  # the coordinator may only just be loading
            sock.sendall(request)
            error = group_frames.read_commit_error(frames.read_frame(sock))
            if not error:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"OffsetCommit was answered with error {error}")
            time.sleep(0.05)
        poll.register(sock.fileno(), select.EPOLLIN)
    for sock, request in here.values():
        sock.send(request)
    done = 0
    began = time.perf_counter()
    stop = began + seconds
    while time.perf_counter() < stop:
        for descriptor, _ in poll.poll(1.0):
            sock, request = here[descriptor]
            answer = sock.recv(4096)
            if not answer or group_frames.read_commit_error(answer):
                raise RuntimeError("a commit failed")
            done += 1
            sock.send(request)
    taken = time.perf_counter() - began
    for sock, _request in here.values():
        sock.close()
    poll.close()
    return {"seconds": taken, "requests": done}
