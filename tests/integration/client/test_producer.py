from __future__ import annotations

import logging
import subprocess
import sys

import ottla
from ottla.client.forks import LEFT_BEHIND
from ottla.errors import ErrorCode, KafkaError


def test_a_forked_child_finds_its_parents_clients_closed() -> None:
    program = """
import os, sys
import ottla
producer, consumer = ottla.Producer("127.0.0.1:1"), ottla.Consumer("127.0.0.1:1", group="g")
producer.post("t", "v")
child = os.fork()
if child == 0:
    for use in (lambda: producer.post("t", "v"), consumer.poll):
        try:
            use()
        except RuntimeError as error:
            print(error, flush=True)
    producer.flush()
    sys.exit(0)
print(os.waitpid(child, 0)[1], len(producer), flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True
    )
    assert done.stdout.splitlines() == [LEFT_BEHIND, LEFT_BEHIND, "0 1"]


def test_without_a_broker_a_record_fails_after_the_delivery_timeout() -> None:
    quiet = logging.getLogger("ottla.client")
    quiet.setLevel(logging.CRITICAL)
    try:
        with ottla.Producer("127.0.0.1:1", delivery_timeout=0.1, linger=0) as producer:
            error = producer.send("t", "v").exception(30)
    finally:
        quiet.setLevel(logging.NOTSET)
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.REQUEST_TIMED_OUT
