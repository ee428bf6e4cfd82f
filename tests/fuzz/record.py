"""Record the corpus: what real clients send, taken down by a proxy between them and a broker.

    python tests/fuzz/record.py                 run the conformance tests through the proxy
    python tests/fuzz/record.py --upstream HOST:PORT --port PORT    against another broker, which
                                                must advertise the proxy's port

The conformance tests drive librdkafka, kafka-python, aiokafka, kafkajs and kio, so together
they send every API at every version. Of each, a few requests of different lengths are kept,
with the random names and ids of topics, groups and members replaced by fixed ones of the same
length, and written to corpus.txt: one line per request, `api version hexadecimal`.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from kio.index import load_request_schema
from kio.serial import entity_reader
from mutate import CORPUS, TOPIC_ID, TOPIC_NAME

from ottla.testing.process import BrokerProcess, free_port

ROOT = Path(__file__).parent.parent.parent

QUICK_GROUPS = ROOT / "tests" / "conformance" / "quick-groups.properties"

# What differs from run to run, and what stands for it: of the same length.
FIXED = {
    re.compile(rb"topic-[0-9a-f]{12}"): TOPIC_NAME,
    re.compile(rb"group-[0-9a-f]{12}"): b"group-000000000000",
    re.compile(rb"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"): b"-".join(
        b"0" * length for length in (8, 4, 4, 4, 12)
    ),
}

KEEP, LONGEST = 3, 1_500
# Changing a broker's settings at random breaks the broker, rightly.
ALTER_CONFIGS, BROKER_RESOURCE = (33, 44), 4


class Recorder:
    """Distinct requests by API and version, one of each length."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: dict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)

    def add(self, frame: bytes) -> None:
        if len(frame) > LONGEST or len(frame) < 8:
            return
        api, version = struct.unpack_from(">hh", frame)
        try:
            body, ids = self._read(api, version, frame)
        except Exception:  # what a test sent to be refused; the mutator makes such by itself
            return
        if api in ALTER_CONFIGS and any(r.resource_type == BROKER_RESOURCE for r in body.resources):
            return
        for random, fixed in FIXED.items():
            frame = random.sub(fixed, frame)
        for topic_id in ids:
            frame = frame.replace(topic_id.bytes, TOPIC_ID)
        with self._lock:
            self._frames[api, version].setdefault(len(frame), frame)

    @staticmethod
    def _read(api: int, version: int, frame: bytes) -> tuple[Any, list[Any]]:
        schema: Any = load_request_schema(api, version)
        _, position = entity_reader(schema.__header_schema__)(frame, 0)
        body: Any
        body, _ = entity_reader(schema)(frame, position)
        lists = (getattr(body, each, None) for each in ("topics", "topic_data", "topic_partitions"))
        topics = [topic for them in lists for topic in them or ()]
        ids = [getattr(topic, "topic_id", None) for topic in topics]
        return body, [topic_id for topic_id in ids if topic_id]

    def lines(self) -> list[str]:
        chosen = []
        for (api, version), by_length in sorted(self._frames.items()):
            lengths = sorted(by_length)
            step = max(1, (len(lengths) - 1) // (KEEP - 1)) if len(lengths) > 1 else 1
            kept = sorted({*lengths[::step][: KEEP - 1], lengths[-1]})
            chosen += [f"{api} {version} {by_length[length].hex()}" for length in kept]
        return chosen


def proxy(port: int, upstream: tuple[str, int], recorder: Recorder) -> None:
    """Accept for ever; each connection is copied both ways and its requests are noted."""
    with socket.create_server(("127.0.0.1", port), backlog=256) as server:
        while True:
            client, _ = server.accept()
            broker = socket.create_connection(upstream)
            threading.Thread(target=_requests, args=(client, broker, recorder), daemon=True).start()
            threading.Thread(target=_copy, args=(broker, client), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _requests(client: socket.socket, broker: socket.socket, recorder: Recorder) -> None:
    pending = bytearray()
    with suppress(OSError):
        while data := client.recv(1 << 16):
            broker.sendall(data)
            pending += data
            while len(pending) >= 4:
                size = struct.unpack_from(">i", pending)[0]
                if size < 0 or len(pending) < 4 + size:
                    break
                recorder.add(bytes(pending[4 : 4 + size]))
                del pending[: 4 + size]
    for one in (client, broker):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def main() -> None:
    parser = argparse.ArgumentParser(description="record the fuzz corpus")
    parser.add_argument("--upstream", metavar="HOST:PORT")
    parser.add_argument("--port", type=int, default=free_port())
    options = parser.parse_args()
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        broker = None
        upstream = options.upstream
        if upstream is None:
            broker = BrokerProcess(
                Path(folder),
                arguments=[
                    *("--config", str(QUICK_GROUPS)),
                    *("--advertise", f"127.0.0.1:{options.port}"),
                ],
            )
            broker.start()
            upstream = broker.bootstrap
        host, _, port = upstream.rpartition(":")
        threading.Thread(
            target=proxy, args=(options.port, (host, int(port)), recorder), daemon=True
        ).start()
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        variables = ("OTTLA_TEST_BOOTSTRAP", "OTTLA_TEST_BOOTSTRAP_QUICK_GROUPS")
        subprocess.run(
            [*tests, str(ROOT / "tests" / "conformance")],
            env={**os.environ, **dict.fromkeys(variables, f"127.0.0.1:{options.port}")},
            cwd=ROOT,
            check=False,
        )
        if broker is not None:
            broker.kill()
    lines = recorder.lines()
    CORPUS.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} requests written to {CORPUS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
