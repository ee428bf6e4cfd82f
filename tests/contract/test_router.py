"""The router, and everybody who goes through it, among brokers that move, die and keep silent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ottla.client.ages import record_times
from ottla.client.damage import first_offset
from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import Groups
from ottla.client.router import NoBrokerAnswers, Router
from ottla.client.topic_offsets import TopicOffsets
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Unreachable
from ottla.pipelines.errors import DataLossError
from ottla.pipelines.sink.columns import columns_of
from ottla.pipelines.sink.encoder import Encoder, Format
from ottla.pipelines.sink.options import WriteOptions
from ottla.pipelines.sink.producer import Producer
from ottla.pipelines.source.fetcher import LeaderSource, Reader
from ottla.pipelines.source.loss import LossPolicy
from ottla.pipelines.source.ranges import Range
from ottla.pipelines.source.task import FetchSettings
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offsets import ListOffsetsResponse
from ottla.testing.process import BrokerProcess

ORDERS = TopicPartition("orders", 0)
END = 10
TIMEOUT = 60.0  # far more than anything here takes
BRIEF = 1.5  # for what is to run into the deadline, and does nothing else
LONGER = 5.0  # for what runs into it, and has been answered before, or is afterwards

Ask = Callable[[], object]


# -- everybody who goes through it: a question that can be asked again and again


@contextmanager
def admin(bootstrap: str) -> Iterator[Ask]:
    with DirectAdmin(bootstrap, timeout=TIMEOUT) as client:
        yield lambda: getattr(client.list_offsets({ORDERS: -1})[ORDERS], "offset", None) == END


@contextmanager
def admin_deletes(bootstrap: str) -> Iterator[Ask]:
    with DirectAdmin(bootstrap, timeout=TIMEOUT) as client:
        yield lambda: client.delete_records({ORDERS: 3}) == {ORDERS: 3}


@contextmanager
def topic_offsets(bootstrap: str) -> Iterator[Ask]:
    with Router(bootstrap, timeout=TIMEOUT) as router:
        yield lambda: TopicOffsets(router).ends([ORDERS]) == {ORDERS: END}


@contextmanager
def ages(bootstrap: str) -> Iterator[Ask]:
    with Router(bootstrap, timeout=TIMEOUT) as router:
        yield lambda: record_times(router, {ORDERS: 3}) == {ORDERS: 3000}


@contextmanager
def damage(bootstrap: str) -> Iterator[Ask]:
    with Router(bootstrap, timeout=TIMEOUT) as router:
        yield lambda: first_offset(router, ORDERS, 3) == 3


@contextmanager
def query(bootstrap: str) -> Iterator[Ask]:
    with Cluster(bootstrap, timeout=TIMEOUT) as cluster:
        yield lambda: cluster.ends([ORDERS])[ORDERS].offset == END


@contextmanager
def task(bootstrap: str) -> Iterator[Ask]:
    part = Range("orders", bytes(range(16)), 0, 0, END)
    settings = FetchSettings(
        LossPolicy(), bootstrap, max_wait=0.0, request_timeout=TIMEOUT, retry_backoff=0.01
    )
    source = LeaderSource(part, settings)

    def read() -> bool:
        return sum(1 for _ in Reader(part, settings, source).pieces()) == 1

    with closing(source):
        yield read


@contextmanager
def sink(bootstrap: str) -> Iterator[Ask]:
    settings = WriteOptions(bootstrap, "orders", backoff=0.01, request_timeout=TIMEOUT)
    producer = Producer(settings, "the rows")
    producer.partitions("orders")
    encoder = Encoder(producer.begin(Format()))
    columns = columns_of(pa.RecordBatch.from_pydict({"value": pa.array([b"x"])}))
    sent = 0

    def write() -> bool:
        nonlocal sent
        sent += 1
        for batch in (
            *encoder.add(("orders", 0), columns, np.arange(1), 0, 1, 0),
            *encoder.finish(),
        ):
            producer.send(batch)
        return producer.flush().records == sent

    with closing(producer):
        yield write


EVERYBODY = [admin, admin_deletes, topic_offsets, ages, damage, query, task, sink]


@pytest.fixture(params=EVERYBODY, ids=lambda each: each.__name__)
def ask_of(request: pytest.FixtureRequest) -> Any:
    """`with ask_of(bootstrap) as ask`: somebody who asks the leader of `orders-0`."""
    return request.param


@pytest.mark.parametrize(
    "refusal",
    ["NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"],
)
def test_a_leader_that_moves_is_followed(scripted: Any, ask_of: Any, refusal: str) -> None:
    scripted.refusal = ErrorCode[refusal]
    with ask_of(scripted.bootstrap) as ask:
        assert ask()
        scripted.move(0, 3)
        assert ask()


@pytest.mark.parametrize("who", [task, sink], ids=lambda each: each.__name__)
def test_a_leader_that_is_named_by_who_refuses_is_asked_at_once(scripted: Any, who: Any) -> None:
    scripted.hints = True
    with who(scripted.bootstrap) as ask:
        assert ask()
        looks = metadata_requests(scripted)
        scripted.move(0, 3)
        assert ask()
        scripted.move(0, 2)
        assert ask()
        assert metadata_requests(scripted) == looks


@pytest.mark.parametrize("who", [task, sink], ids=lambda each: each.__name__)
def test_who_is_behind_the_news_does_not_send_us_back(scripted: Any, who: Any) -> None:
    scripted.hints = True
    with who(scripted.bootstrap) as ask:
        assert ask()
        scripted.lagging[1] = dict(scripted.leaders)  # the leader that was, and names itself
        looks = metadata_requests(scripted)
        scripted.move(0, 3)
        scripted.hooks["METADATA"] = lambda _: bool(scripted.lagging.clear())
        assert ask()
        assert metadata_requests(scripted) > looks


def metadata_requests(scripted: Any) -> int:
    return sum(n for (_, api), n in scripted.asked.items() if api == "METADATA")


def test_one_broker_that_is_gone_is_left_for_the_others(scripted: Any, ask_of: Any) -> None:
    with ask_of(scripted.bootstrap) as ask:
        assert ask()
        scripted.brokers[1].stop()
        scripted.listed.discard(1)
        scripted.move(0, 2)
        assert ask()


def test_the_brokers_learn_of_a_death_only_after_a_while(
    scripted: Any, ask_of: Any, eventually: Any
) -> None:
    with ask_of(scripted.bootstrap) as ask:
        assert ask()
        scripted.brokers[1].stop()
        looks = iter(range(1000))

        def after_five_looks(_number: int) -> bool:
            if next(looks) == 5:
                scripted.listed.discard(1)
                scripted.move(0, 2)
            return False

        scripted.hooks["METADATA"] = after_five_looks
        if ask_of is query:  # raises at once, and is asked again by whoever plans
            eventually(lambda: _or_false(ask))
        assert ask()


def _or_false(ask: Ask) -> object:
    try:
        return ask()
    except KafkaError:
        return False


def test_brokers_heard_of_take_the_place_of_those_to_start_from(scripted: Any, ask_of: Any) -> None:
    with ask_of(scripted.brokers[1].address) as ask:
        assert ask()
        scripted.brokers[1].stop()
        scripted.listed.discard(1)
        scripted.move(0, 2)
        assert ask()


def test_a_broker_that_comes_back_elsewhere_is_found(scripted: Any, ask_of: Any) -> None:
    with ask_of(scripted.bootstrap) as ask:
        assert ask()
        scripted.brokers[1].stop()
        scripted.brokers[1].start()  # at another port
        assert ask()


def test_a_broker_that_another_answered_for_is_asked_where_it_is(
    scripted: Any, ask_of: Any
) -> None:
    right = scripted.brokers[1].port
    scripted.brokers[1].port = scripted.brokers[2].port  # where it was before it restarted
    looks = iter(range(1000))

    def known_at_the_third_look(_number: int) -> bool:
        if next(looks) == 2:
            scripted.brokers[1].port = right
        return False

    scripted.hooks["METADATA"] = known_at_the_third_look
    with ask_of(scripted.brokers[3].address) as ask:
        assert ask()


def test_a_restart_of_the_only_broker_is_survived(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    with DirectAdmin(broker.bootstrap) as client:
        client.create_topic(NewTopic("orders", 1, 1))
    with Router(broker.bootstrap) as router:
        assert router.leader(ORDERS).node == router.nodes()[0].id
        broker.kill()
        with pytest.raises(NoBrokerAnswers, match="refused"):
            router.metadata(())
        broker.start()
        assert TopicOffsets(router).ends([ORDERS]) == {ORDERS: 0}


# -- the router itself


@pytest.fixture
def router(scripted: Any) -> Iterator[Router]:
    with Router(scripted.bootstrap, timeout=TIMEOUT) as router:
        yield router


def test_who_leads_is_asked_once(scripted: Any, router: Router) -> None:
    topics = TopicOffsets(router)
    for _ in range(5):
        assert topics.ends([ORDERS, TopicPartition("orders", 1)]).keys() == {
            ORDERS, TopicPartition("orders", 1),
        }  # fmt: skip
    assert metadata_requests(scripted) == 1
    assert scripted.asked[1, "LIST_OFFSETS"] == scripted.asked[2, "LIST_OFFSETS"] == 5


def test_old_news_does_not_take_the_place_of_newer(scripted: Any) -> None:
    scripted.lagging[1] = dict(scripted.leaders)
    scripted.move(0, 3)
    with Router(scripted.brokers[2].address) as router:
        assert router.leader(ORDERS).node == 3
        scripted.brokers[2].stop()
        scripted.listed.discard(2)
        router.metadata(["orders"])  # of the first, which still believes in itself
        assert scripted.asked[1, "METADATA"]
        assert router.leader(ORDERS).node == 3
        router.forget([ORDERS])
        assert router.leader(ORDERS).node == 1


def test_a_topic_that_is_not_there_is_an_answer_and_not_waited_for(router: Router) -> None:
    stranger, ninth = TopicPartition("no-such", 0), TopicPartition("orders", 9)
    found = TopicOffsets(router).find({ORDERS: -1, stranger: -1, ninth: -1})
    assert getattr(found[ORDERS], "offset", None) == END
    assert [getattr(found[tp], "code", None) for tp in (stranger, ninth)] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ] * 2
    with pytest.raises(KafkaError) as raised:
        router.leader(stranger)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_its_leader_does_not_know_any_more_is_looked_for_once(
    scripted: Any, router: Router
) -> None:
    topics = TopicOffsets(router)
    assert topics.ends([ORDERS]) == {ORDERS: END}
    scripted.leaders[1] = scripted.leaders.pop(0)
    assert topics.ends([ORDERS]) == {}


def test_a_partition_without_a_leader_is_an_answer_unless_one_waits(scripted: Any) -> None:
    scripted.move(0, -1)
    with Router(scripted.bootstrap, timeout=TIMEOUT) as router:
        topics = TopicOffsets(router)
        [error] = topics.find({ORDERS: -1}).values()
        assert getattr(error, "code", None) is ErrorCode.LEADER_NOT_AVAILABLE
        scripted.hooks["METADATA"] = lambda _: bool(scripted.move(0, 2))
        assert topics.find({ORDERS: -1}, wait_for_leader=True).keys() == {ORDERS}


@pytest.mark.parametrize("refusal", ["UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_SERVER_ERROR"])
def test_to_a_query_a_partition_that_its_leader_cannot_serve_yet_is_not_gone(
    scripted: Any, refusal: str
) -> None:
    scripted.refusal = ErrorCode[refusal]
    scripted.lagging = {number: {0: (3, 0), 1: (2, 0)} for number in scripted.brokers}
    with (
        Cluster(scripted.bootstrap, timeout=BRIEF) as cluster,
        pytest.raises(Unreachable, match="orders-0"),
    ):
        cluster.ends([ORDERS])


def test_to_a_query_a_partition_that_is_left_out_of_an_answer_is_not_gone(scripted: Any) -> None:
    scripted._list_offsets = lambda _number, _request: ListOffsetsResponse(topics=[])
    with (
        Cluster(scripted.bootstrap, timeout=BRIEF) as cluster,
        pytest.raises(Unreachable, match=r"orders-0 .*left out of the answer"),
    ):
        cluster.ends([ORDERS])


def test_a_topic_that_is_deleted_while_a_task_looks_what_it_lost_is_a_loss(scripted: Any) -> None:
    list_offsets, fetch = scripted._list_offsets, scripted._fetch
    fetches = iter(range(1000))

    def begins_at_5(number: int, request: Any) -> Any:
        answer = list_offsets(number, request)
        for each in answer.topics[0].partitions:
            each.offset = each.offset or 5
        return answer

    def out_of_range_and_then_deleted(number: int, request: Any) -> Any:
        if next(fetches) > 0:
            scripted.leaders.clear()
            scripted.TOPIC = "another"
            return fetch(number, request)
        answer = fetch(number, request)
        [part] = answer.responses[0].partitions
        part.error_code, part.records = int(ErrorCode.OFFSET_OUT_OF_RANGE), None
        return answer

    scripted._list_offsets, scripted._fetch = begins_at_5, out_of_range_and_then_deleted
    part = Range("orders", bytes(range(16)), 0, 0, END)

    def read(on_loss: str) -> list[Any]:
        settings = FetchSettings(
            LossPolicy.parse(on_loss), scripted.bootstrap, max_wait=0.0, retry_backoff=0.01
        )
        with closing(LeaderSource(part, settings)) as source:
            return list(Reader(part, settings, source).pieces())

    assert read("false") == []
    with pytest.raises(DataLossError, match="the topic was deleted"):
        read("true")


def test_a_record_that_nobody_sends_leaves_the_times_of_others(scripted: Any) -> None:
    scripted.lagging = {number: {0: (3, 0), 1: (2, 0)} for number in scripted.brokers}
    other = TopicPartition("orders", 1)
    with Router(scripted.bootstrap, timeout=LONGER) as router:
        assert record_times(router, {ORDERS: 3, other: 3}) == {other: 3000}


def test_one_that_was_led_a_moment_ago_is_waited_for(scripted: Any, router: Router) -> None:
    topics = TopicOffsets(router)
    assert topics.ends([ORDERS]) == {ORDERS: END}
    scripted.move(0, -1)
    looks = iter(range(100))

    def elected_at_the_third_look(_number: int) -> bool:
        if next(looks) == 2:
            scripted.move(0, 2)
        return False

    scripted.hooks["METADATA"] = elected_at_the_third_look
    assert topics.ends([ORDERS]) == {ORDERS: END}


def test_silence_ends_at_the_deadline_and_then_others_are_asked(scripted: Any) -> None:
    with Router(scripted.bootstrap, timeout=LONGER) as router:
        router.metadata(())
        scripted.brokers[1].silent = True
        with pytest.raises(KafkaError) as raised:
            router.metadata(())
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        router.metadata(())
        assert scripted.asked[2, "METADATA"] == 1


def test_brokers_that_are_all_silent_are_not_waited_for_one_after_the_other(scripted: Any) -> None:
    with Router(scripted.bootstrap, timeout=BRIEF) as router:
        topics = TopicOffsets(router)
        router.metadata(["orders"])
        for broker in scripted.brokers.values():
            broker.silent = True
        first, second = ORDERS, TopicPartition("orders", 1)  # of broker 1, and of broker 2
        before = scripted.asked.copy()
        with pytest.raises(KafkaError) as raised:
            topics.find({first: -1, second: -1})
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        asked = {number for number, _ in scripted.asked - before}
        assert asked == {1}


def test_a_silent_broker_among_those_to_start_from_leaves_time_for_the_others(
    scripted: Any,
) -> None:
    scripted.brokers[1].silent = True
    with Router(scripted.bootstrap, timeout=2 * LONGER) as router:
        assert len(router.nodes()) == 3


def test_what_passes_is_tried_until_the_deadline_and_then_raised(scripted: Any) -> None:
    scripted.coordinator = 2
    with Groups(scripted.bootstrap, timeout=LONGER) as groups:
        assert groups.offsets("g")[ORDERS].offset == 4
        real = scripted._offset_fetch
        scripted._offset_fetch = lambda _number, request: real(3, request)
        with pytest.raises(KafkaError) as raised:
            groups.offsets("g")
        assert raised.value.code is ErrorCode.NOT_COORDINATOR
    assert scripted.asked[2, "OFFSET_FETCH"] > 2


def test_nobody_at_all_is_told_at_once() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    with (
        Router(f"127.0.0.1:{port},localhost:{port}", timeout=TIMEOUT) as router,
        pytest.raises(NoBrokerAnswers, match=r"refused.*; .*refused"),
    ):
        router.retried(router.nodes)


def test_the_only_broker_is_not_waited_for(scripted: Any) -> None:
    scripted.listed = {1}
    with Router(scripted.brokers[1].address, timeout=TIMEOUT) as router:
        assert TopicOffsets(router).ends([ORDERS]) == {ORDERS: END}
        scripted.brokers[1].stop()
        with pytest.raises(KafkaError):
            TopicOffsets(router).ends([ORDERS])


def test_an_address_that_is_advertised_and_wrong_is_named(scripted: Any) -> None:
    scripted.listed = {1, 2}
    scripted.brokers[2].stop()
    with (
        Router(scripted.brokers[1].address, timeout=BRIEF) as router,
        pytest.raises(KafkaError, match=r"broker 2 is advertised as .*--advertise"),
    ):
        TopicOffsets(router).ends([TopicPartition("orders", 1)])


def test_whoever_is_no_broker_is_named() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        port = listening.getsockname()[1]
        with (
            Router(f"127.0.0.1:{port}", timeout=TIMEOUT) as router,
            pytest.raises(NoBrokerAnswers, match=r"is not a Kafka broker \(an HTTP server\)"),
        ):
            router.any()


# -- coordinators, controllers, and all of them


def test_a_coordinator_that_moves_or_dies_is_followed(scripted: Any) -> None:
    with Groups(scripted.bootstrap, timeout=TIMEOUT) as groups:
        assert groups.offsets("g")[ORDERS].offset == 4
        scripted.coordinator = 2
        assert groups.offsets("g")[ORDERS].offset == 4
        scripted.brokers[2].stop()
        looks = iter(range(1000))

        def after_five_looks(_number: int) -> bool:
            if next(looks) == 5:
                scripted.coordinator = 3
            return False

        scripted.hooks["FIND_COORDINATOR"] = after_five_looks
        assert groups.offsets("g")[ORDERS].offset == 4


def test_all_brokers_are_asked_also_by_whoever_has_met_only_one(scripted: Any) -> None:
    with Groups(scripted.brokers[2].address, timeout=TIMEOUT) as groups:
        groups.offsets("g")
        assert len(groups.list_groups()) == 3


def test_groups_of_a_broker_that_leaves_are_left_out(scripted: Any) -> None:
    with Groups(scripted.bootstrap, timeout=TIMEOUT) as groups:
        assert len(groups.list_groups()) == 3
        scripted.brokers[2].stop()
        looks = iter(range(1000))

        def after_five_looks(_number: int) -> bool:
            if next(looks) == 5:
                scripted.listed.discard(2)
            return False

        scripted.hooks["METADATA"] = after_five_looks
        assert [each.name for each in groups.list_groups()] == ["group-1", "group-3"]


def test_groups_that_moved_to_a_broker_asked_before_are_found_there(scripted: Any) -> None:
    real = scripted._list_groups

    def also_of_the_dead(number: int, request: Any) -> Any:
        answer = real(number, request)
        if number == 1 and 2 not in scripted.listed:
            answer.groups += real(2, request).groups
        return answer

    scripted._list_groups = also_of_the_dead
    with Groups(scripted.bootstrap, timeout=TIMEOUT) as groups:
        assert len(groups.list_groups()) == 3
        scripted.brokers[2].stop()
        looks = iter(range(1000))

        def after_five_looks(_number: int) -> bool:
            if next(looks) == 5:
                scripted.listed.discard(2)
            return False

        scripted.hooks["METADATA"] = after_five_looks
        assert {each.name for each in groups.list_groups()} == {"group-1", "group-2", "group-3"}


def test_a_broker_that_was_lost_and_is_back_is_one_of_all_again(scripted: Any) -> None:
    with Router(scripted.brokers[1].address, timeout=TIMEOUT) as router:
        assert len(router.nodes()) == 3
        scripted.brokers[2].stop()
        with pytest.raises(KafkaError):
            router.node(2)
        scripted.brokers[2].start()
        assert [node.id for node in router.nodes()] == [1, 2, 3]
        assert router.node(2).port == scripted.brokers[2].port


def test_a_controller_that_moves_is_followed(scripted: Any) -> None:
    with DirectAdmin(scripted.bootstrap, timeout=TIMEOUT) as client:
        client.create_topic(NewTopic("a"))
        scripted.controller = 3
        client.create_topic(NewTopic("b"))
    assert scripted.asked[3, "CREATE_TOPICS"] == 1


def test_what_may_have_been_done_is_not_done_twice(scripted: Any) -> None:
    scripted.hooks["CREATE_TOPICS"] = lambda _: True
    scripted.hooks["DELETE_GROUPS"] = lambda _: True
    with (
        DirectAdmin(scripted.bootstrap, timeout=TIMEOUT) as client,
        pytest.raises(KafkaError, match="closed the connection"),
    ):
        client.create_topic(NewTopic("a"))
    with (
        Groups(scripted.bootstrap, timeout=TIMEOUT) as groups,
        pytest.raises(KafkaError, match="closed the connection"),
    ):
        groups.delete("g")
    assert scripted.asked[1, "CREATE_TOPICS"] == scripted.asked[1, "DELETE_GROUPS"] == 1


def test_a_connection_that_was_closed_meanwhile_is_made_anew(scripted: Any) -> None:
    with Router(scripted.brokers[1].address, timeout=TIMEOUT) as router:
        once = iter([True])
        router.any()
        scripted.hooks["METADATA"] = lambda _: next(once, False)
        assert len(router.nodes()) == 3


def test_it_is_made_to_the_same_broker_and_not_to_one_that_may_keep_silent(scripted: Any) -> None:
    scripted.brokers[2].silent = True
    addresses = f"{scripted.brokers[1].address},{scripted.brokers[2].address}"
    with Router(addresses, timeout=TIMEOUT) as router:
        router.metadata(())
        once = iter([True])
        scripted.hooks["METADATA"] = lambda _: next(once, False)
        router.metadata(())
    assert scripted.asked[2, "API_VERSIONS"] == 0


def test_a_broker_that_hangs_up_on_every_question_is_left_for_another(scripted: Any) -> None:
    with Router(scripted.bootstrap, timeout=TIMEOUT) as router:
        router.metadata(())
        scripted.hooks["METADATA"] = lambda number: number == 1
        router.metadata(())
    assert scripted.asked[2, "METADATA"] == 1


# -- threads


def test_threads_share_a_router(scripted: Any, router: Router, eventually: Any) -> None:
    partitions = [ORDERS, TopicPartition("orders", 1)]
    failures: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                assert TopicOffsets(router).ends(partitions) == dict.fromkeys(partitions, END)
                router.any().ask(MetadataRequest(topics=[]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for number in range(20):
        scripted.move(0, number % 3 + 1)
        scripted.move(1, (number + 1) % 3 + 1)
        leader = number % 3 + 1
        before = scripted.asked[leader, "LIST_OFFSETS"]
        eventually(lambda: failures or scripted.asked[leader, "LIST_OFFSETS"] > before)  # noqa: B023 - called before they change
    over.set()
    for thread in threads:
        thread.join(TIMEOUT)
    assert failures == []


def test_threads_that_wait_behind_a_silent_broker_are_told_what_happened(scripted: Any) -> None:
    errors: list[KafkaError] = []
    with Router(scripted.bootstrap, timeout=BRIEF) as router:
        wire = router.any()
        scripted.brokers[1].silent = True

        def ask() -> None:
            try:
                wire.ask(MetadataRequest(topics=[]))
            except KafkaError as error:
                errors.append(error)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
    texts = sorted(str(error) for error in errors)
    assert len(texts) == 3
    assert "did not answer METADATA in time" in texts.pop()
    assert all("the connection ended while others waited for an answer" in each for each in texts)


@pytest.mark.parametrize("question", ["metadata", "leaders", "coordinator"])
def test_closing_ends_what_another_thread_waits_for(
    scripted: Any, router: Router, question: str, eventually: Any
) -> None:
    ask: dict[str, tuple[str, Ask]] = {
        "metadata": ("METADATA", lambda: router.metadata(())),
        "leaders": ("LIST_OFFSETS", lambda: TopicOffsets(router).find({ORDERS: -1})),
        "coordinator": ("FIND_COORDINATOR", lambda: router.coordinator_node("g")),
    }
    api, call = ask[question]
    call()  # who is still being connected to cannot be left at once
    for broker in scripted.brokers.values():
        broker.silent = True
    asked = scripted.asked[1, api]
    ended: list[KafkaError] = []

    def wait() -> None:
        try:
            call()
        except KafkaError as error:
            ended.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    eventually(lambda: scripted.asked[1, api] > asked)
    connections = scripted.asked.total()
    router.close()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert scripted.asked.total() == connections
    assert [error.code for error in ended] == [ErrorCode.NETWORK_EXCEPTION]
