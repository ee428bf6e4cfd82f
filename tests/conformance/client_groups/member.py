"""One librdkafka consumer in a process of its own, so that it can be killed or put to sleep.

    python member.py '{"bootstrap.servers": …, "group.id": …}' topic

It prints a line of JSON for each thing that happens: `{"value": "7"}`, and what it commits when
it finds that its partitions were given to somebody else, `{"lost": error code}`. A line of JSON on
its input, `{"commit": {"0": 5}}`, is offsets to commit, answered with `{"code": error code}`. It
ends when its input does, without a word to the group: call it a crash.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def commit(consumer: Consumer, topic: str, offsets: dict[str, int]) -> int:
    """The error code of a commit; 0 when it went well."""
    wanted = [TopicPartition(topic, int(p), offset) for p, offset in offsets.items()]
    try:
        done = consumer.commit(offsets=wanted, asynchronous=False)
    except KafkaException as error:
        return int(error.args[0].code())
    return next((int(each.error.code()) for each in done if each.error), 0)


def main() -> None:
    settings, topic = json.loads(sys.argv[1]), sys.argv[2]
    consumer = Consumer(settings)

    def on_lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        say(lost=commit(consumer, topic, {str(each.partition): 1 for each in partitions}))

    consumer.subscribe([topic], on_lost=on_lost)
    while True:
        while select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                os._exit(0)
            say(code=commit(consumer, topic, json.loads(line)["commit"]))
        message = consumer.poll(0.05)
        if message is not None and not message.error():
            say(value=message.value().decode())


main()
