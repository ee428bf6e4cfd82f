from __future__ import annotations

import ottla


def test_librdkafka_accepts_every_option() -> None:
    with ottla.Consumer(
        "127.0.0.1:1",
        group="g",
        reset="error",
        auto_commit=False,
        read_uncommitted=True,
        client_id="c",
        config={"fetch.min.bytes": 1},
    ) as consumer:
        assert consumer.assignment() == ()
