"""From files and flags to a configuration, or to every mistake at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.config.load import Given, InvalidConfig, assignment, is_known, load

REPOSITORY = Path(__file__).parents[3]


def write(folder: Path, text: str) -> Path:
    file = folder / "server.properties"
    file.write_text(text)
    return file


def test_nothing_at_all_is_a_configuration() -> None:
    loaded = load()
    assert loaded.config.node_id == 1
    assert (loaded.warnings, loaded.unknown, loaded.ignored, loaded.later) == ((), (), (), ())


def test_the_shipped_file_of_kafka_4_2_loads_unchanged(data: Path) -> None:
    loaded = load(data / "apache-4.2-server.properties", strict=True)
    config = loaded.config
    assert loaded.warnings == ()
    assert config.node_id == 1
    assert [str(one) for one in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(one) for one in config.listener_plan.advertised] == ["PLAINTEXT://localhost:9092"]
    assert [str(one) for one in config.listener_plan.ignored] == ["CONTROLLER://:9093"]
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)
    assert loaded.ignored == (
        "controller.quorum.bootstrap.servers",
        "num.io.threads",
        "num.network.threads",
    )
    assert "share.coordinator.state.topic.replication.factor" in loaded.later


def test_the_shipped_file_of_kafka_3_9_loads_unchanged(data: Path) -> None:
    loaded = load(data / "apache-3.9-server.properties", strict=True)
    assert loaded.warnings == ()
    assert loaded.config.node_id == loaded.config.broker_id == 0
    assert [str(one) for one in loaded.config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert loaded.ignored == (
        "num.io.threads",
        "num.network.threads",
    )
    assert loaded.config.zookeeper_connect == "localhost:2181"


def test_the_shipped_kraft_file_of_kafka_3_9_loads_unchanged(data: Path) -> None:
    loaded = load(data / "apache-3.9-kraft-server.properties", strict=True)
    assert [str(one) for one in loaded.config.listeners] == ["PLAINTEXT://:9092"]
    assert "controller.quorum.voters" in loaded.ignored


def test_our_own_shipped_file_says_what_the_defaults_say() -> None:
    loaded = load(REPOSITORY / "config" / "standalone.properties", strict=True)
    assert loaded.warnings == ()
    assert loaded.ignored == ()
    assert loaded.config.log_dirs == load().config.log_dirs
    assert loaded.config.listeners == load().config.listeners


def test_the_file_for_a_cluster_says_what_the_old_documents_say() -> None:
    loaded = load(REPOSITORY / "config" / "server.properties", strict=True)
    assert (loaded.warnings, loaded.ignored, loaded.later) == ((), (), ())
    given = set(loaded.config.static)
    assert {"broker.id", "port", "log.dir", "zookeeper.connect"} <= given
    text = (REPOSITORY / "config" / "server.properties").read_text()
    for stronger in ("listeners=", "log.dirs="):
        assert not any(line.startswith(stronger) for line in text.splitlines())
    assert loaded.config.zookeeper_connect == "localhost:2181"
    assert loaded.config.listeners == load().config.listeners


def test_a_port_alone_is_a_listener(tmp_path: Path) -> None:
    for text, expected in (
        ("port=9093", "PLAINTEXT://127.0.0.1:9093"),
        ("port=9093\nhost.name=localhost", "PLAINTEXT://localhost:9093"),
        ("port=9093\nlisteners=PLAINTEXT://localhost:1", "PLAINTEXT://localhost:1"),
    ):
        assert load(write(tmp_path, text)).config.listener_addresses == (expected,)


def test_flags_come_before_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "num.partitions=3\nlog.retention.hours=1\n")
    config = load(file, {"num.partitions": "5"}).config
    assert (config.num_partitions, config.log_retention_ms) == (5, 3_600_000)


def test_all_mistakes_are_told_at_once_with_place_value_and_what_is_allowed(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "num.partitions=0\n"
        "auto.create.topics.enable=maybe\n"
        "compression.type=rar\n"
        "# a comment\n"
        "log.retention.hours=0\n"
        "listeners=SSL://:9093\n",
    )
    with pytest.raises(InvalidConfig) as caught:
        load(file, [assignment("log.roll.ms=soon"), Given("log.dirs", "", "--data-dir")])
    assert list(caught.value.problems) == [
        f"{file} line 1: Invalid value 0 for configuration num.partitions: "
        "Value must be at least 1 (INT, at least 1)",
        f"{file} line 2: Invalid value maybe for configuration auto.create.topics.enable: "
        "Expected value to be either true or false (BOOLEAN, true or false)",
        f"{file} line 3: Invalid value rar for configuration compression.type: String must be one "
        "of: uncompressed, zstd, lz4, snappy, gzip, producer "
        "(STRING, one of uncompressed, zstd, lz4, snappy, gzip, producer)",
        "--set log.roll.ms: Invalid value soon for configuration log.roll.ms: "
        "Not a number of type LONG",
        "--data-dir: log.dirs=: Configuration 'log.dirs' must not be empty. Valid values include: "
        "any non-empty value (LIST, a list without repetitions; not empty)",
        f"{file} line 5: log.retention.hours=0: log.retention.ms must be unlimited (-1) or, "
        "greater than or equal to 1",
        f"{file} line 6: Invalid value SSL://:9093 for configuration listeners: "
        "SSL listeners are not supported yet; only PLAINTEXT is",
    ]
    assert str(caught.value).count("\n") == 6


def test_an_unknown_name_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    file = write(tmp_path, "log.retention.hour=1\nretention.ms=5\nzzzzzzzz=1\n")
    loaded = load(file)
    assert loaded.unknown == ("log.retention.hour", "retention.ms", "zzzzzzzz")
    assert loaded.warnings == (
        f"{file} line 1: unknown setting log.retention.hour; did you mean log.retention.hours?",
        f"{file} line 2: unknown setting retention.ms, which belongs to topics; "
        "for a broker it is log.retention.ms",
        f"{file} line 3: unknown setting zzzzzzzz",
    )
    with pytest.raises(InvalidConfig, match=r"did you mean log\.retention\.hours\?"):
        load(file, strict=True)


def test_a_name_given_twice_is_a_warning_and_the_last_counts(tmp_path: Path) -> None:
    file = write(tmp_path, "num.partitions=3\nnum.partitions=4\nlog.dirs=a\nlog.dirs=a\n")
    loaded = load(file)
    assert loaded.config.num_partitions == 4
    assert loaded.warnings == (
        f"{file} line 2: num.partitions replaces the value of {file} line 1",
    )


def test_node_id_and_broker_id_must_agree(tmp_path: Path) -> None:
    assert load(write(tmp_path, "node.id=3\nbroker.id=3\n")).config.node_id == 3
    file = write(tmp_path, "node.id=3\nbroker.id=4\n")
    with pytest.raises(InvalidConfig) as caught:
        load(file)
    assert caught.value.problems == (
        f"{file} line 2: broker.id=4: You must set `node.id` to the same value as `broker.id`.",
    )


def test_a_process_that_is_no_broker_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="include broker"):
        load(None, {"process.roles": "controller"})


def test_a_secret_is_not_repeated_in_a_message(tmp_path: Path) -> None:
    file = write(tmp_path, "ssl.key.password=hush\nssl.key.password=hush2\nnum.partitions=0\n")
    with pytest.raises(InvalidConfig) as caught:
        load(file)
    assert "hush" not in str(caught.value)
    assert "hush" not in str(load(None, {"ssl.key.password": "hush"}))


@pytest.mark.parametrize("text", ["", "x", "=3", "  =3"])
def test_a_flag_that_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="expected key=value"):
        assignment(text)


def test_a_flags_value_may_contain_anything() -> None:
    assert assignment("a=b=c, d ") == Given("a", "b=c, d ", "--set a")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"nowhere\.properties: No such file"):
        load(tmp_path / "nowhere.properties")
    with pytest.raises(InvalidConfig, match=r"server\.properties line 1: .*four hex digits"):
        load(write(tmp_path, "a=\\u1"))


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.inside.ssl.keystore.location",
        "listener.name.inside.scram-sha-256.sasl.jaas.config",
        "rsm.config.bucket",
        "config.providers.file.class",
        "super.users",
        "zookeeper.connect",
        "inter.broker.protocol.version",
    ],
)
def test_what_kafka_reads_elsewhere_is_known(name: str) -> None:
    assert is_known(name)


@pytest.mark.parametrize(
    "name", ["listener.name.inside.colour", "zookeeper.colour", "retention.ms"]
)
def test_what_nothing_reads_is_unknown(name: str) -> None:
    assert not is_known(name)
