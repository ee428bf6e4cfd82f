"""While the metadata store is away every request is answered, with an error that passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.cli import patience
from ottla.cli.main import cli
from ottla.client import direct, router
from ottla.client.wire import Wire
from ottla.cluster.registry import Registry
from ottla.controller import remote
from ottla.controller.service import Controller
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers import metadata
from ottla.testing import Cluster, NewTopic

SOON_MS = 300
BLOCK = 3
MOST_SECONDS = 5.0  # that a command is given
TOPIC = {
    "name": "new",
    "num_partitions": 1,
    "replication_factor": 1,
    "assignments": [],
    "configs": [],
}
CHANGE = {"name": "retention.ms", "config_operation": 0, "value": "5"}
# There is no controller; it has not noticed yet that the store is away; it did not answer in time.
PASSING = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
}
Ask = Callable[..., Any]


@pytest.fixture
def address() -> list[str]:
    """Of the broker that `ask` asks."""
    return []


@pytest.fixture
def ask(
    wire: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, address: list[str]
) -> Iterator[Ask]:
    """Asks a broker that is not the controller, and never gave a producer id to anybody."""
    monkeypatch.setattr(remote, "TIMEOUT_MS", SOON_MS)
    monkeypatch.setattr(metadata, "AUTO_CREATE_MS", SOON_MS)
    monkeypatch.setattr(Registry.allocate_producer_ids, "__defaults__", (BLOCK,))
    with Cluster(2, topics=[NewTopic("t", 1, 2)]) as cluster:
        broker = next(each for each in cluster if each is not cluster.controller)
        connection = wire(broker.bootstrap)
        address.append(broker.bootstrap)
        reserve = broker._services().producer_ids
        cluster.wait_until(lambda: reserve._reserve is not None)
        cluster.stop_metadata()
        yield connection.ask


def test_producers_begin_with_the_ids_in_reserve_then_are_told_to_try_again(ask: Ask) -> None:
    def init() -> Any:
        return ask(
            "init_producer_id", 4, transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1
        )

    answers = [init() for _ in range(BLOCK)]
    assert not any(answer.error_code for answer in answers)
    assert len({answer.producer_id for answer in answers}) == BLOCK
    assert ErrorCode.of(init().error_code) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_what_only_the_controller_does_is_refused_for_a_reason_that_passes(ask: Ask) -> None:
    topic = {"name": "t", "count": 3, "assignments": None}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [CHANGE]}
    old = {"resource_type": 2, "resource_name": "t", "configs": []}
    outcomes = [
        *ask("create_topics", 7, topics=[TOPIC], timeout=SOON_MS).topics,
        *ask("delete_topics", 6, topics=[{"name": "t"}], timeout=SOON_MS).responses,
        *ask("create_partitions", 3, topics=[topic], timeout=SOON_MS).results,
        *ask("incremental_alter_configs", 1, resources=[resource]).responses,
        *ask("alter_configs", 2, resources=[old]).responses,
        ask("elect_leaders", 2, election_type=0, topic_partitions=None, timeout=SOON_MS),
    ]
    codes = {ErrorCode.of(each.error_code) for each in outcomes}
    assert len(outcomes) == 6
    assert codes <= PASSING


@pytest.mark.parametrize("command", ["create new", "delete t", "alter t -p 3"])
def test_a_command_that_waits_for_the_controller_says_so(
    ask: Ask,
    address: list[str],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
    command: str,
) -> None:
    def is_without_controller() -> bool:
        [answer] = ask("create_topics", 7, topics=[TOPIC], timeout=SOON_MS).topics
        return ErrorCode.of(answer.error_code) is ErrorCode.NOT_CONTROLLER

    eventually(is_without_controller)
    monkeypatch.setattr(patience, "AFTER", 0.1)
    asked = []

    class Quick(direct.DirectAdmin):
        """One with less patience, which remembers how long brokers were allowed to take."""

        def __init__(self, bootstrap: str, **options: Any) -> None:
            super().__init__(bootstrap, timeout=MOST_SECONDS, **options)

        def _change(self, request: Any, results: Any) -> Any:
            def noted(answer: Any) -> Any:
                asked.append(request.timeout_ms)
                return results(answer)

            return super()._change(request, noted)

    def unhurried(*place: Any, **options: Any) -> Wire:
        """An answer that a busy machine brings late is waited for all the same."""
        return Wire(*place, **{**options, "timeout": 60.0})

    monkeypatch.setattr(direct, "DirectAdmin", Quick)
    monkeypatch.setattr(router, "Wire", unhurried)
    ended = CliRunner().invoke(cli, ["topic", *command.split(), "--bootstrap", address[0]])
    assert ended.exit_code == 1
    waiting, error = ended.stderr.splitlines()
    assert waiting == patience.FOR_CONTROLLER
    assert "there is no controller that can do it (" in error
    assert "`ottla cluster status` tells why, try again when there is one" in error
    # A broker answers before nobody waits any more; a second request has what the first has left.
    assert asked[0] < MOST_SECONDS * 1000
    assert asked == sorted(asked, reverse=True)
    assert len(asked) == len(set(asked))


def test_a_topic_that_cannot_be_created_hides_no_other(ask: Ask) -> None:
    topics = [{"name": "t"}, {"name": "new"}]
    answer = ask("metadata", 9, topics=topics, allow_auto_topic_creation=True)
    codes = {topic.name: ErrorCode.of(topic.error_code) for topic in answer.topics}
    assert codes == {"t": ErrorCode.NONE, "new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert answer.brokers


@pytest.mark.parametrize("name", ["new", "__consumer_offsets"])
@pytest.mark.parametrize("code", sorted(PASSING))
def test_a_topic_is_unknown_whatever_keeps_the_controller_from_creating_it(
    wire: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, code: ErrorCode
) -> None:
    async def refuse(*_arguments: object, **_named: object) -> None:
        raise KafkaError(code, "not now")

    monkeypatch.setattr(remote, "TIMEOUT_MS", SOON_MS)
    monkeypatch.setattr(metadata, "AUTO_CREATE_MS", SOON_MS)
    with Cluster(2) as cluster:
        monkeypatch.setattr(Controller, "create_topics", refuse)
        for broker in cluster:
            asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
            [topic] = wire(broker.bootstrap).ask("metadata", 9, **asked).topics
            assert ErrorCode.of(topic.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_coordinator_that_cannot_be_made_is_not_available(ask: Ask) -> None:
    (answer,) = ask("find_coordinator", 4, key_type=0, coordinator_keys=["g"]).coordinators
    assert ErrorCode.of(answer.error_code) is ErrorCode.COORDINATOR_NOT_AVAILABLE
