"""librdkafka settings, the same for both brokers."""

from __future__ import annotations

Settings = dict[str, str | int | float | bool]


def producer(bootstrap: str, **more: str | int) -> Settings:
    """A throughput producer: acks=1, large batches, no compression, a queue that never starves."""
    return {
        "bootstrap.servers": bootstrap,
        "acks": 1,
        "linger.ms": 5,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 512 * 1024,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def prompt_producer(bootstrap: str, acks: int = 1) -> Settings:
    """A producer that sends every record at once, by itself."""
    return {"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 0}


def consumer(bootstrap: str) -> Settings:
    """A consumer that is never held back by its own queue.

    A fast broker fills librdkafka's queue, after which it pauses a whole second by default before
    it fetches again; that pause would be measured instead of the broker.
    """
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "bench",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "fetch.queue.backoff.ms": 2,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 1_000_000,
    }
