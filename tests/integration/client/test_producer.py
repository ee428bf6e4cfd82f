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


def test_nothing_that_a_forked_child_asks_of_its_parents_clients_waits_for_ever() -> None:
    program = """
import os, sys
import ottla
producer, consumer = ottla.Producer("127.0.0.1:1"), ottla.Consumer("127.0.0.1:1", group="g")
mover, admin = ottla.Producer("127.0.0.1:1", transactional_id="mover"), ottla.Admin("127.0.0.1:1")
future = producer.send("t", "v")
child = os.fork()
if child == 0:
    place = ("t", 0)
    uses = {
        "result": future.result,
        "partitions": lambda: producer.partitions("t"),
        "transaction": lambda: mover.transaction().__enter__(),
        "assign": lambda: consumer.assign([place], 0),
        "assignment": consumer.assignment,
        "commit": lambda: consumer.commit({ottla.TopicPartition("t", 0): 1}),
        "committed": lambda: consumer.committed(place),
        "offsets": lambda: consumer.offsets([place], "latest"),
        "pause": lambda: consumer.pause(place),
        "subscribe": lambda: consumer.subscribe("t"),
        "unsubscribe": consumer.unsubscribe,
        "list_topics": admin.list_topics,
        "create_topic": lambda: admin.create_topic("t"),
    }
    for name, use in uses.items():
        try:
            use()
        except RuntimeError as error:
            print(name, error, flush=True)
    consumer.close()
    for each in (producer, mover):
        each.close()
    sys.exit(0)
print(os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True
    )
    *refusals, status = done.stdout.splitlines()
    assert status == "0"
    assert len(refusals) == 13
    assert all(line.endswith(LEFT_BEHIND) for line in refusals)


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
