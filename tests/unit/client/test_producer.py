from __future__ import annotations

import gc
import logging
import signal
import threading
from datetime import UTC, datetime
from typing import Any

import confluent_kafka as rd
import pytest

import ottla
from ottla.client.errors import DeliveryFailedError
from ottla.client.outbox import Outbox
from ottla.client.records import Delivery
from ottla.errors import ErrorCode, KafkaError

TOO_LARGE = 10


def test_a_future_gives_where_the_record_is_stored(made: list[Any]) -> None:
    with ottla.Producer() as producer:
        future = producer.send("t", "v", partition=2)
        made[0].decide()
        assert future.result(60) == Delivery("t", 2, 7, 1234)


def test_a_future_raises_why_the_record_is_not_stored(made: list[Any]) -> None:
    with ottla.Producer() as producer:
        future = producer.send("t", "v")
        made[0].decide(TOO_LARGE)
        with pytest.raises(KafkaError) as caught:
            future.result(60)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_future_settles_while_nobody_calls_anything(made: list[Any]) -> None:
    with ottla.Producer() as producer:
        settled = threading.Event()
        future = producer.send("t", "v")
        future.add_done_callback(lambda _: settled.set())
        made[0].decide()
        assert settled.wait(60)


def test_a_future_that_nothing_settles_times_out(made: list[Any]) -> None:
    producer = ottla.Producer()
    future = producer.send("t", "v")
    with pytest.raises(TimeoutError):
        future.result(0.01)
    producer.close()


def test_a_sent_record_cannot_be_called_back(made: list[Any]) -> None:
    with ottla.Producer() as producer:
        future = producer.send("t", "v")
        assert not future.cancel()
    assert future.result().offset == 7


def test_a_callback_is_told_of_success_and_failure_after_the_future(made: list[Any]) -> None:
    told: list[Any] = []
    with ottla.Producer() as producer:
        future = producer.send("t", "a", on_delivery=lambda *what: told.append(what))
        producer.post("t", "b", on_delivery=lambda *what: told.append(what))
        made[0].decide()
        made[0].decide(TOO_LARGE)
        producer.flush()
        assert future.done()
    assert told[0] == (Delivery("t", 0, 7, 1234), None)
    assert told[1][0] is None
    assert told[1][1].code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_callback_that_fails_is_logged_and_stops_nothing(
    made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR, "ottla.client"), ottla.Producer() as producer:
        producer.post("t", "a", on_delivery=broken)
        later = producer.send("t", "b")
    assert later.result().offset == 7
    assert "a delivery callback failed" in caplog.text


def test_ctrl_c_waits_for_the_end_of_a_callback(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outbox, "_start", lambda self: None)
    told: list[int] = []

    def callback(delivery: ottla.Delivery | None, error: KafkaError | None) -> None:
        if not told:
            signal.raise_signal(signal.SIGINT)
        told.append(len(told))

    producer = ottla.Producer()
    for _ in range(3):
        producer.post("t", "v", on_delivery=callback)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    assert told == [0, 1, 2]
    assert len(producer) == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("accepted", [True, False])
def test_ctrl_c_while_a_record_is_handed_over_does_not_confuse_flush(
    made: list[Any], monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    monkeypatch.setattr("ottla.client.outbox._NEVER_OFFERED", 0.05)
    with ottla.Producer() as producer:
        produce = made[0].produce

        def interrupted(*args: Any, **kwargs: Any) -> None:
            if accepted:
                produce(*args, **kwargs)
            raise KeyboardInterrupt

        monkeypatch.setattr(made[0], "produce", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.post("t", "v")
        assert len(producer) == 1
        producer.flush()
        assert len(producer) == 0


def test_a_statistics_callback_that_fails_ends_nothing(
    made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(statistics: dict[str, Any]) -> None:
        raise ZeroDivisionError

    # commands that ran before in this process may have silenced it
    with caplog.at_level(logging.ERROR, "ottla.client"), ottla.Producer(on_statistics=fail):
        made[0].config["stats_cb"]("{}")
    assert "a statistics callback failed" in caplog.text


def test_a_callback_that_flushes_is_refused_instead_of_hanging(made: list[Any]) -> None:
    refusals: list[BaseException] = []

    def flush(*_: object) -> None:
        try:
            producer.flush()
        except RuntimeError as error:
            refusals.append(error)

    with ottla.Producer() as producer:
        producer.post("t", "a", on_delivery=flush)
    [refusal] = refusals
    assert "inside a delivery callback" in str(refusal)


def test_flush_raises_the_failures_that_nobody_was_told_about_and_only_once(
    made: list[Any],
) -> None:
    with ottla.Producer() as producer:
        for _ in range(3):
            producer.post("t", "v")
        made[0].decide(TOO_LARGE)
        made[0].decide(TOO_LARGE)
        with pytest.raises(DeliveryFailedError, match="2 records were not delivered") as caught:
            producer.flush()
        assert [error.code for error in caught.value.failures] == [ErrorCode.MESSAGE_TOO_LARGE] * 2
        producer.flush()


def test_leaving_the_block_raises_them_too(made: list[Any]) -> None:
    with (  # noqa: PT012 - it is the end of the block that raises
        pytest.raises(DeliveryFailedError, match="1 record was not delivered"),
        ottla.Producer() as producer,
    ):
        producer.post("t", "v")
        made[0].decide(TOO_LARGE)


def test_flush_that_runs_out_of_time_says_how_many_are_out(made: list[Any]) -> None:
    producer = ottla.Producer()
    made[0].deliver_on_flush = False
    producer.send("t", "v")
    producer.send("t", "v")
    with pytest.raises(KafkaError, match=r"2 records were not delivered within 0.02 s"):
        producer.flush(0.02)
    made[0].deliver_on_flush = True
    producer.close()


def test_close_that_runs_out_of_time_fails_what_is_left_and_says_so(made: list[Any]) -> None:
    producer = ottla.Producer()
    made[0].deliver_on_flush = False
    future = producer.send("t", "v")
    with pytest.raises(KafkaError, match="1 record was not delivered"):
        producer.close(0.02)
    assert isinstance(future.exception(0), KafkaError)


def test_a_closed_producer_sends_nothing_and_closes_again_in_silence(made: list[Any]) -> None:
    producer = ottla.Producer()
    producer.close()
    producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.send("t", "v")


def test_a_forgotten_producer_delivers_before_it_goes(made: list[Any]) -> None:
    producer = ottla.Producer()
    future = producer.send("t", "v")
    del producer
    gc.collect()
    assert future.result(0).offset == 7


def test_a_forgotten_producer_logs_what_it_could_not_deliver(
    made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    producer = ottla.Producer()
    producer.post("t", "v")
    made[0].decide(TOO_LARGE)
    with caplog.at_level(logging.ERROR, "ottla.client"):
        del producer
        gc.collect()
    assert "1 records were not delivered; the first: MESSAGE_TOO_LARGE" in caplog.text


def test_a_full_buffer_makes_send_wait_until_there_is_room(made: list[Any]) -> None:
    with ottla.Producer() as producer:
        made[0].room = 1
        first = producer.send("t", "a")
        made[0].decide()
        second = producer.send("t", "b")
        assert first.done()
        assert not second.done()
    assert [record[1] for record in made[0].accepted] == [b"a", b"b"]


def test_a_buffer_that_stays_full_is_an_error_that_says_where_to_look(made: list[Any]) -> None:
    producer = ottla.Producer(max_block=0.02)
    made[0].room = 1
    producer.send("t", "a")
    with pytest.raises(KafkaError, match=r"no room for 0.02 s, 1 records? wait"):
        producer.send("t", "b")
    producer.close()
    assert len(producer) == 0


def test_records_are_handed_over_as_bytes_with_headers_and_timestamp(made: list[Any]) -> None:
    with ottla.Producer(key=ottla.STRING, value=ottla.JSON) as producer:
        producer.post("t", {"a": 1}, key="k", headers={"h": "1"}, timestamp=5, partition=3)
        producer.post("t", None, key=None)
    assert made[0].accepted == [
        ("t", b'{"a":1}', b"k", 3, 5, [("h", b"1")]),
        ("t", None, None, -1, 0, None),
    ]


def test_a_python_partitioner_decides_unless_a_partition_is_given(made: list[Any]) -> None:
    with ottla.Producer(partitioner=lambda key, partitions: partitions - 1) as producer:
        made[0].partitions["t"] = 4
        producer.post("t", "v", key="k")
        producer.post("t", "v", partition=0)
    assert [record[3] for record in made[0].accepted] == [3, 0]


def test_a_value_that_cannot_be_serialized_is_refused_before_anything_is_sent(
    made: list[Any],
) -> None:
    with ottla.Producer() as producer:
        with pytest.raises(TypeError, match="a value is bytes or str"):
            producer.send("t", 7)
        assert len(producer) == 0


def test_the_defaults_are_javas(made: list[Any]) -> None:
    ottla.Producer("b:1").close()
    config = made[0].config
    assert config["acks"] == "all"
    assert config["enable.idempotence"] is True
    assert config["partitioner"] == "murmur2_random"
    assert config["delivery.timeout.ms"] == 120_000
    assert config["bootstrap.servers"] == "b:1"


def test_fewer_acks_turn_idempotence_off_by_themselves(made: list[Any]) -> None:
    ottla.Producer(acks=1).close()
    assert made[0].config["enable.idempotence"] is False


@pytest.mark.parametrize(
    ("options", "kind", "complaint"),
    [
        ({"acks": 2}, ValueError, 'acks is "all", 1 or 0, not 2'),
        ({"acks": 1, "idempotent": True}, ValueError, 'needs acks="all"'),
        ({"compression": "brotli"}, ValueError, "no compression 'brotli'; give one of none, gzip"),
        ({"partitioner": "java"}, ValueError, "no partitioner 'java'"),
        ({"linger": 5, "delivery_timeout": 1}, ValueError, "must be less than delivery_timeout"),
        ({"ack": 1}, TypeError, "no option 'ack'; did you mean 'acks'"),
        ({"zzz": 1}, TypeError, "no option 'zzz'; it has partitioner, acks"),
        ({"config": {"acks": 1}}, ValueError, "config may not set 'acks': use acks="),
        ({"bootstrap": "a:b"}, ValueError, "give HOST:PORT"),
        ({"value": "json"}, TypeError, "value= takes a Serde"),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_ones(
    made: list[Any], options: dict[str, Any], kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        ottla.Producer(**options)
    assert not made


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"topic": ""}, "a topic's name"),
        ({"topic": "t", "partition": -1}, "count from 0"),
        ({"topic": "t", "timestamp": -5}, "not negative"),
        ({"topic": "t", "timestamp": 0}, "librdkafka takes 0 for now"),
        ({"topic": "t", "timestamp": datetime(1960, 1, 1, tzinfo=UTC)}, "timestamp 1960-01-01"),
        ({"topic": "t", "headers": {"a\0b": b"v"}}, "first null character"),
    ],
)
def test_wrong_records_are_refused(
    made: list[Any], arguments: dict[str, Any], complaint: str
) -> None:
    with ottla.Producer() as producer, pytest.raises(ValueError, match=complaint):
        producer.send(**arguments)


def test_a_property_that_librdkafka_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match=r"No such configuration property.*foo\.bar"):
        ottla.Producer(config={"foo.bar": 1})


def test_librdkafka_accepts_every_option() -> None:
    with ottla.Producer(
        "127.0.0.1:1", acks=0, compression="zstd", linger=0.1, client_id="c", idempotent=False
    ) as producer:
        assert isinstance(producer._outbox.producer, rd.Producer)
