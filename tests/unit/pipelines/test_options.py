"""The options of Spark's Kafka guide: each is accepted, without effect, or refused with reason."""

from __future__ import annotations

import pytest

from ottla.pipelines.errors import OptionError
from ottla.pipelines.option_table import OPTIONS, Option, Status, Use
from ottla.pipelines.options import Options, choice, duration, shown, truth, whole
from ottla.pipelines.reference import harmless_table, kafka_table, options_table
from ottla.pipelines.source.options import ReadOptions

# As the "Structured Streaming + Kafka Integration Guide" lists them, with the kinds of query that
# it lists them for.
GUIDE = {
    "assign": "both",
    "subscribe": "both",
    "subscribePattern": "both",
    "kafka.bootstrap.servers": "all",
    "startingTimestamp": "both",
    "startingOffsetsByTimestamp": "both",
    "startingOffsets": "both",
    "endingTimestamp": "batch",
    "endingOffsetsByTimestamp": "batch",
    "endingOffsets": "batch",
    "failOnDataLoss": "both",
    "kafkaConsumer.pollTimeoutMs": "both",
    "fetchOffset.numRetries": "both",
    "fetchOffset.retryIntervalMs": "both",
    "partition.metadata.cache.ttl.ms": "both",
    "maxOffsetsPerTrigger": "stream",
    "minOffsetsPerTrigger": "stream",
    "maxTriggerDelay": "stream",
    "minPartitions": "both",
    "maxRecordsPerPartition": "both",
    "groupIdPrefix": "both",
    "kafka.group.id": "both",
    "includeHeaders": "both",
    "startingOffsetsByTimestampStrategy": "both",
    "topic": "write",
}
GUIDE_OF_SPARK = [
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
    "spark.kafka.consumer.cache.capacity",
    "spark.kafka.consumer.cache.timeout",
    "spark.kafka.consumer.cache.evictorThreadRunInterval",
    "spark.kafka.consumer.cache.jmx.enable",
    "spark.kafka.consumer.fetchedData.cache.timeout",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval",
    "spark.kafka.producer.cache.timeout",
    "spark.kafka.producer.cache.evictorThreadRunInterval",
    "spark.security.credentials.kafka.enabled",
    "spark.kafka.clusters.east.auth.bootstrap.servers",
    "spark.kafka.clusters.east.target.bootstrap.servers.regex",
    "spark.kafka.clusters.east.security.protocol",
    "spark.kafka.clusters.east.sasl.kerberos.service.name",
    "spark.kafka.clusters.east.ssl.truststore.type",
    "spark.kafka.clusters.east.ssl.truststore.location",
    "spark.kafka.clusters.east.ssl.truststore.password",
    "spark.kafka.clusters.east.ssl.keystore.type",
    "spark.kafka.clusters.east.ssl.keystore.location",
    "spark.kafka.clusters.east.ssl.keystore.password",
    "spark.kafka.clusters.east.ssl.key.password",
    "spark.kafka.clusters.east.sasl.token.mechanism",
    "spark.kafka.clusters.east.kafka.retries",
]
SAMPLES = {
    "assign": '{"orders":[0]}',
    "subscribe": "orders",
    "subscribePattern": "orders",
    "startingTimestamp": "1000",
    "startingOffsetsByTimestamp": '{"orders":{"0":1000}}',
    "startingOffsets": '{"orders":{"0":5}}',
    "endingTimestamp": "2000",
    "endingOffsetsByTimestamp": '{"orders":{"0":2000}}',
    "endingOffsets": '{"orders":{"0":9}}',
    "failOnDataLoss": "false",
    "maxTriggerDelay": "3m",
    "includeHeaders": "true",
    "startingOffsetsByTimestampStrategy": "latest",
    "groupIdPrefix": "mine",
    "kafka.group.id": "mine",
    "kafka.bootstrap.servers": "other:1",
}
BY_NAME = {option.name: option for option in OPTIONS}


def refusal(given: dict[str, str], use: Use = Use.STREAM) -> OptionError:
    with pytest.raises(OptionError) as caught:
        Options(given, use)
    return caught.value


@pytest.mark.parametrize(("name", "applies_to"), GUIDE.items())
def test_each_option_of_the_guide_is_in_the_table(name: str, applies_to: str) -> None:
    option = BY_NAME[name]
    assert option.status is Status.ACCEPTED
    assert option.applies_to == applies_to
    assert option.meaning


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", GUIDE)
def test_each_option_of_the_guide_is_taken_or_refused_by_name(name: str, streaming: bool) -> None:
    brokers = {"kafka.bootstrap.servers": "h:1"}
    plain = brokers | {"subscribe": "orders"}
    chooses = name in ("assign", "subscribe", "subscribePattern")
    given = (brokers if chooses else plain) | {name: SAMPLES.get(name, "7")}
    status, reason = BY_NAME[name].status_in(Use.STREAM if streaming else Use.BATCH)
    if status is Status.REFUSED:
        with pytest.raises(OptionError) as caught:
            ReadOptions.of(given, streaming=streaming)
        assert caught.value.option == name
        assert str(caught.value) == f"{name} is refused, {reason}."
        return
    read = ReadOptions.of(given, streaming=streaming)
    if status is Status.HARMLESS:
        assert any(notice.startswith(f"{name} has no effect") for notice in read.notices)
    elif chooses:
        assert read.strategy.option == name
    else:
        assert read != ReadOptions.of(plain, streaming=streaming), "it must arrive somewhere"


@pytest.mark.parametrize("name", GUIDE_OF_SPARK)
def test_settings_of_spark_for_its_own_connector_are_known(name: str) -> None:
    for use in Use:
        if ".clusters." in name:
            assert "delegation tokens" in str(refusal({name: "x"}, use))
        else:
            (notice,) = Options({name: "1"}, use).notices
            assert notice.lower().startswith(name.lower())


def test_names_have_no_case_and_errors_have_the_documented_one() -> None:
    options = Options({"MAXOFFSETSPERTRIGGER": "5", "kafka.Group.Id": "g"}, Use.STREAM)
    assert options.whole("maxOffsetsPerTrigger", least=1) == 5
    assert options.kafka == {"group.id": "g"}
    with pytest.raises(OptionError, match=r"^maxOffsetsPerTrigger=-5 is not right"):
        Options({"maxoffsetspertrigger": "-5"}, Use.STREAM).whole("maxOffsetsPerTrigger", least=1)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("startingOffset", "startingOffsets"),
        ("subscribes", "subscribe"),
        ("failOnDataLos", "failOnDataLoss"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_name(wrong: str, right: str) -> None:
    error = refusal({wrong.lower(): "1"})
    assert str(error) == f"There is no option {wrong.lower()}: did you mean {right}?"


def test_an_option_like_no_other_is_answered_with_where_to_look() -> None:
    assert "docs/spark.md" in str(refusal({"zzzzzz": "1"}))


def test_a_path_is_refused_with_what_names_a_topic() -> None:
    sentence = str(refusal({"path": "/data"}, Use.WRITE))
    assert "subscribe" in sentence
    assert "topic" in sentence


def test_an_option_of_another_use_has_no_effect() -> None:
    options = Options({"maxOffsetsPerTrigger": "rubbish", "topic": "t"}, Use.BATCH)
    assert not options.given("maxOffsetsPerTrigger")
    assert options.text("topic") is None
    assert options.notices == [
        "maxOffsetsPerTrigger has no effect, it is not for a batch read.",
        "topic has no effect, it is not for a batch read.",
    ]


def test_what_spark_itself_reads_is_passed_by_in_silence() -> None:
    given = {"checkpointLocation": "/x", "queryName": "q"}
    assert Options(given, Use.WRITE).notices == []


def test_defaults_are_taken_when_nothing_is_given() -> None:
    options = Options({}, Use.STREAM)
    assert options.text("subscribe") is None
    assert options.whole("minPartitions", least=1) is None
    assert options.truth("includeHeaders") is False
    assert options.choice("startingOffsetsByTimestampStrategy", ["error"], "error") == "error"
    assert options.seconds("maxTriggerDelay", 900.0) == 900.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("15min", 900),
        ("10 s", 10),
        ("250ms", 0.25),
        ("250", 0.25),
        ("2H", 7200),
        ("1d", 86400),
        ("5us", 5e-6),
    ],
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert duration("x", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "15 moons", "-5s", "1.5s"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="give a time such as"):
        duration("maxTriggerDelay", text)


@pytest.mark.parametrize("text", ["", "x", "1.0", "0x10", "1_000", "9" * 30, "-1", str(2**63)])
def test_what_is_no_whole_number_in_range_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^n=.*: give a whole number from 0[.]$"):
        whole("n", text, least=0)


def test_a_whole_number_may_have_a_sign_and_blanks() -> None:
    assert whole("n", " +12 ", least=0) == 12
    assert whole("n", "-12", least=-20) == -12
    with pytest.raises(OptionError, match="not below -20"):
        whole("n", "-21", least=-20)


def test_truth_is_true_or_false() -> None:
    assert truth("t", "TRUE") is True
    assert truth("t", " false ") is False
    with pytest.raises(OptionError, match="t=1 is not right: give true or false"):
        truth("t", "1")


def test_a_choice_names_the_choices() -> None:
    assert choice("c", "B", ["a", "b"]) == "b"
    with pytest.raises(OptionError, match=r"give a, b or c[.]$"):
        choice("c", "x", ["a", "b", "c"])
    with pytest.raises(OptionError, match=r"give only[.]$"):
        choice("c", "x", ["only"])


def test_long_values_are_cut_where_they_are_shown() -> None:
    assert len(shown("x" * 500)) == 80
    assert shown("") == "''"
    assert shown("a b") == "'a b'"


def test_the_documentation_has_every_option_and_every_setting() -> None:
    page = options_table()
    for option in OPTIONS:
        assert f"| `{option.name}` |" in page
        assert option.reason in page
    assert "`kafka.isolation.level` | yes |  | `read_committed`" in kafka_table()
    assert "`linger.ms`" in harmless_table()
    assert all(line.count(" | ") == 3 for line in page.splitlines())


def test_an_option_for_reads_says_what_it_is_not_for() -> None:
    option = Option("x", frozenset({Use.BATCH}), "", "m", elsewhere="never")
    assert option.status_in(Use.BATCH) == (Status.ACCEPTED, "")
    assert option.status_in(Use.STREAM) == (Status.REFUSED, "never")
