"""A broker with and without the native record walker: the same answers, and a word if without."""

from __future__ import annotations

import pytest

from ottla.records import walker

KEYS = [b"k%d" % number for number in range(20_000)]
VALUES = [b"v" * 90] * len(KEYS)


@pytest.mark.parametrize("environment", [{}, {"OTTLA_NATIVE": "0"}], ids=["as built", "plain"])
def test_large_batches_of_topics_with_rules_are_judged_the_same(
    environment, start_broker, wire, raw, batch
):
    broker = start_broker(environment=environment, settings={"message.max.bytes": 10_000_000})
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "compacted", cleanup_policy="compact")
    raw.create_topic(connection, "repacked", compression_type="zstd")
    for topic in ("compacted", "repacked"):
        for codec in ("none", "gzip", "zstd"):
            answer = raw.produce(connection, topic, batch(VALUES, keys=KEYS, codec=codec))
            assert answer.error_code == 0
        assert raw.fetch(connection, topic).high_watermark == 3 * len(KEYS)
    refused = raw.produce(
        connection, "compacted", batch([*VALUES, b"v"], keys=[*KEYS, None], codec="zstd")
    )
    assert refused.error_code.name == "invalid_record"
    assert [each.batch_index for each in refused.record_errors] == [len(KEYS)]
    assert raw.fetch(connection, "compacted").high_watermark == 3 * len(KEYS)


def test_what_is_missing_is_said_once_at_the_start(start_broker):
    assert ("walked in Python" in start_broker("as built").log()) is not walker.NATIVE
    log = start_broker("plain", environment={"OTTLA_NATIVE": "0"}).log()
    assert log.count("walked in Python") == 1
    assert "OTTLA_NATIVE=0 turns the native code off" in log
    assert "Unset it" in log
    assert "install a C compiler" not in log
