"""Throw mutated requests at a real broker process and see that it does not mind.

    python tests/fuzz/run.py                        until stopped
    python tests/fuzz/run.py --frames 200000        that many; what `make test` does
    python tests/fuzz/run.py --seed 7 --first 4711  go on where a run failed

A broker is started in a temporary folder. Frames go out over many connections at once,
sixteen to a connection. A frame counts once it was answered or its connection was closed or
stayed silent over it; frames behind one that closed the connection are sent again, so every
frame is really read. Meanwhile and at the end: the process lives, its memory stays within
bounds, a clean client is served, and the log holds no traceback. Otherwise the exit code is 1
and the last line says how to repeat it.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

from mutate import TOPIC_NAME, Mutator, load_corpus

from ottla.testing.process import BrokerProcess

CONNECTIONS = 48
PER_CONNECTION = 16
# A mutated fetch may ask to wait for weeks; the frame has arrived, go on without its answer.
SILENCE = 0.25
MAINTENANCE = 1.0
MEMORY_GROWTH = 128 << 20
OFFSETS_TOPIC = b"__consumer_offsets"
SETTINGS = {
    "auto.create.topics.enable": "false",
    # A group of one is ready at once, and gone soon after its member.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1",
    "group.max.session.timeout.ms": "30000",
}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST, so that no port stays in TIME_WAIT


class Failure(Exception):
    """What the broker should not have done."""


class Attempt:
    """One connection with a run of frames on it."""

    __slots__ = ("_unread", "answered", "deadline", "frames", "sock")

    def __init__(self, address: tuple[str, int], frames: list[bytes]) -> None:
        self.frames = frames
        self.answered = 0
        self.deadline = time.monotonic() + SILENCE
        self._unread = bytearray()
        self.sock = socket.create_connection(address, timeout=120)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.sock.setblocking(False)
        try:
            # a run is at most a few KB: it fits the socket's buffer
            self.sock.send(b"".join(frames))
        except OSError:
            pass

    def readable(self) -> bool:
        """Count the answers; True when the connection is over."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self._unread += data
        while len(self._unread) >= 4:
            size = struct.unpack_from(">i", self._unread)[0]
            if size < 4:
                raise Failure(f"an answer of {size} bytes")
            if len(self._unread) < 4 + size:
                break
            self.answered += 1
            del self._unread[: 4 + size]
        self.deadline = time.monotonic() + SILENCE
        return not data or self.answered >= len(self.frames)

    @property
    def delivered(self) -> int:
        """How many frames the broker has certainly read: the answered ones and the next."""
        return min(self.answered + 1, len(self.frames))


class CleanClient:
    """Asks for nothing unusual, and keeps one topic in being for the mutated requests to hit."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def _ask(self, api: int, version: int, body: bytes) -> bytes:
        header = struct.pack(">hhih5s", api, version, 1, 5, b"clean")
        if (api, version) in {(3, 12), (19, 5), (20, 4)}:
            header += b"\x00"
        with socket.create_connection(self._address, timeout=120) as sock:
            sock.sendall(struct.pack(">i", len(header + body)) + header + body)
            with sock.makefile("rb") as stream:
                (size,) = struct.unpack(">i", stream.read(4))
                return stream.read(size)

    def topics(self) -> list[bytes]:
        """Names of all topics (Metadata 1)."""
        answer = self._ask(3, 1, struct.pack(">i", -1))
        position = 4
        (brokers,) = struct.unpack_from(">i", answer, position)
        position += 4
        for _ in range(brokers):
            position += 4
            position += 2 + struct.unpack_from(">h", answer, position)[0] + 4
            position += 2 + max(0, struct.unpack_from(">h", answer, position)[0])
        position += 4
        (count,) = struct.unpack_from(">i", answer, position)
        position += 4
        names = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", answer, position + 2)
            names.append(answer[position + 4 : position + 4 + length])
            position += 4 + length + 1
            (partitions,) = struct.unpack_from(">i", answer, position)
            position += 4
            for _ in range(partitions):
                position += 10
                for _ in range(2):
                    position += 4 + 4 * struct.unpack_from(">i", answer, position)[0]
        return names

    def groups(self) -> list[bytes]:
        """Names of all groups (ListGroups 0)."""
        answer = self._ask(16, 0, b"")
        (count,) = struct.unpack_from(">i", answer, 6)
        position, names = 10, []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", answer, position)
            names.append(answer[position + 2 : position + 2 + length])
            position += 2 + length
            position += 2 + struct.unpack_from(">h", answer, position)[0]
        return names

    def maintain(self) -> bytes:
        """Delete what the mutated requests created, recreate what they deleted; the topic's id."""
        if groups := self.groups():  # those with members stay until they have none
            listed = b"".join(struct.pack(">h", len(name)) + name for name in groups)
            self._ask(42, 0, struct.pack(">i", len(groups)) + listed)
        names = self.topics()
        strange = [name for name in names if name not in (TOPIC_NAME, OFFSETS_TOPIC)]
        if strange:
            listed = b"".join(struct.pack(">h", len(name)) + name for name in strange)
            self._ask(20, 1, struct.pack(">i", len(strange)) + listed + struct.pack(">i", 10_000))
        if TOPIC_NAME not in names:
            topic = (
                struct.pack(">h", len(TOPIC_NAME)) + TOPIC_NAME + struct.pack(">ihii", 2, 1, 0, 0)
            )
            self._ask(19, 2, struct.pack(">i", 1) + topic + struct.pack(">ib", 10_000, 0))
        name = bytes([len(TOPIC_NAME) + 1]) + TOPIC_NAME
        answer = self._ask(3, 12, b"\x02" + bytes(16) + name + b"\x00" + b"\x00\x00\x00")
        position = answer.find(name)
        if position < 0:
            raise Failure("the clean client cannot find its topic")
        return answer[position + len(name) : position + len(name) + 16]


class Fuzzer:
    """The loop: connections in flight, frames delivered, and the checks."""

    def __init__(self, broker: BrokerProcess, seed: int, first: int) -> None:
        self.broker = broker
        self.delivered = 0
        self.connections = 0
        self._address = (broker.host, broker.port)
        self._mutator = Mutator(seed, load_corpus())
        self._chunk = first
        self._clean = CleanClient(self._address)
        self._topic_id = self._clean.maintain()
        self._selector = selectors.DefaultSelector()
        self._attempts: set[Attempt] = set()
        self._again: list[list[bytes]] = []
        self._memory = 0
        self._log_position = 0

    @property
    def chunk(self) -> int:
        return self._chunk

    def run(self, frames: int | None) -> None:
        started = checked = time.monotonic()
        while frames is None or self.delivered < frames:
            while len(self._attempts) < CONNECTIONS:
                self._open()
            for key, _ in self._selector.select(0.02):
                if key.data.readable():
                    self._close(key.data)
            now = time.monotonic()
            for attempt in [one for one in self._attempts if one.deadline < now]:
                self._close(attempt)
            if now - checked > MAINTENANCE:
                checked = now
                self.check()
                self._report(now - started)
        for attempt in list(self._attempts):
            self._close(attempt)
        self.check()
        self._report(time.monotonic() - started)

    def _open(self) -> None:
        if self._again:
            frames = self._again.pop()
        else:
            frames = self._mutator.frames(self._chunk, PER_CONNECTION, self._topic_id)
            self._chunk += 1
        attempt = Attempt(self._address, frames)
        self.connections += 1
        self._attempts.add(attempt)
        self._selector.register(attempt.sock, selectors.EVENT_READ, attempt)

    def _close(self, attempt: Attempt) -> None:
        self._selector.unregister(attempt.sock)
        attempt.sock.close()
        self._attempts.remove(attempt)
        self.delivered += attempt.delivered
        if rest := attempt.frames[attempt.delivered :]:
            self._again.append(rest)

    def check(self) -> None:
        if not self.broker.alive:
            raise Failure(f"the broker ended with exit code {self.broker.process.returncode}")
        said = self.broker.log_since(self._log_position)
        self._log_position += len(said.encode())
        if "Traceback" in said:
            raise Failure(f"a traceback in the log:\n{said[said.find('Traceback') :][:4000]}")
        self._topic_id = self._clean.maintain()
        memory = self.broker.rss()
        if not self._memory:
            self._memory = memory
        elif memory - self._memory > MEMORY_GROWTH:
            raise Failure(f"memory grew from {self._memory >> 20} to {memory >> 20} MB")

    def _report(self, seconds: float) -> None:
        print(
            f"{self.delivered:>10} frames {self.delivered / seconds:>8.0f} /s"
            f"{self.connections:>10} connections {self.broker.rss() >> 20:>6} MB",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="fuzz a broker with mutated requests")
    parser.add_argument("--frames", type=int, help="stop after so many (default: never)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="the first chunk of frames to send")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder), settings=SETTINGS) as broker,
    ):
        broker.start()
        fuzzer = Fuzzer(broker, options.seed, options.first)
        try:
            fuzzer.run(options.frames)
        except KeyboardInterrupt:
            return 0
        except (Failure, OSError, struct.error) as failure:
            print(f"\n{failure!r}\n--- the end of the broker's log ---")
            print("\n".join(broker.log().splitlines()[-40:]))
            first = max(0, fuzzer.chunk - 2 * CONNECTIONS)
            print(f"repeat with: --seed {options.seed} --first {first}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
