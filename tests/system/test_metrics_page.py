"""/metrics, /healthz and /readyz of real brokers."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import confluent_kafka as rd
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.errors import KafkaError
from ottla.testing import Broker, Cluster, NewTopic
from ottla.testing.process import free_port

SERVED = {"metrics.listen": "127.0.0.1:0"}
TOPICS = "kafka_server_broker_topic_metrics_"
REPLICAS = "kafka_server_replica_manager_"
CONTROLLER = "kafka_controller_kafka_controller_"


def ask(broker: Broker, path: str) -> tuple[int, str]:
    assert broker.metrics_url is not None
    url = broker.metrics_url.replace("/metrics", path)
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(broker: Broker) -> dict[str, float]:
    """Every sample, by its name and the values of its labels."""
    status, text = ask(broker, "/metrics")
    assert status == 200
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def missing(broker: Broker) -> dict[str, str]:
    status, text = ask(broker, "/readyz")
    told: dict[str, Any] = json.loads(text)
    assert told["ready"] is (status == 200)
    found: dict[str, str] = told.get("missing", {})
    return found


def test_what_clients_do_can_be_scraped() -> None:
    with Broker(SERVED, topics={"t": 2}) as broker:
        broker.produce("t", b"a", b"b", b"c", partition=0)
        assert len(broker.consume("t")) == 3
        found = scrape(broker)
        assert found[f"{TOPICS}messages_in_total t"] == 3
        assert found[f"{TOPICS}bytes_in_total t"] > 0
        assert found["kafka_log_log_size t"] == found[f"{TOPICS}bytes_in_total t"]
        assert found[f"{REPLICAS}leader_count"] == 2
        assert found[f"{REPLICAS}under_replicated_partitions"] == 0
        assert found[f"{CONTROLLER}active_controller_count"] == 1
        assert found[f"{CONTROLLER}global_partition_count"] == 2
        assert found["ottla_log_directory_free_bytes " + broker.data_dirs[0]] > 0
        broker.delete_topic("t")
        assert f"{TOPICS}messages_in_total t" not in scrape(broker)


def test_bytes_out_and_lag_are_those_of_consumers(wire: Any, eventually: Any) -> None:
    with Broker(SERVED, topics={"t": 1}) as broker:
        broker.produce("t", b"a", b"b", b"c")
        connection = wire(broker.bootstrap)
        wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        connection.ask(
            "fetch",
            12,
            max_wait=0,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[{"topic": "t", "partitions": [wanted]}],
        )
        found = scrape(broker)
        assert found[f"{TOPICS}bytes_out_total t"] == found[f"{TOPICS}bytes_in_total t"]
        assert found["kafka_network_request_metrics_requests_total Fetch"] == 1
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        consumer.close()
        assert scrape(broker)["ottla_group_lag_records g t"] == 2


def test_a_broker_that_lost_a_folder_lives_and_is_not_ready(eventually: Any) -> None:
    with Broker(SERVED, topics={"t": 4}, folders=2) as broker:
        assert missing(broker) == {}
        assert ask(broker, "/healthz")[0] == 200
        place = broker.data_dirs[1]  # the metadata is in the other one
        broker.faults.full_disk(folder=place)
        for partition in range(4):
            with suppress(KafkaError):
                broker.produce("t", b"a", partition=partition)
        eventually(lambda: "log_dirs" in missing(broker))
        assert place in missing(broker)["log_dirs"]
        assert ask(broker, "/healthz")[0] == 200
        assert scrape(broker)["kafka_log_log_manager_offline_log_directory_count"] == 1


def test_a_taken_port_is_told_and_does_not_stop_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Broker({"metrics.listen": f"127.0.0.1:{port}"}, topics=["t"]) as broker:
            assert broker.metrics_url is None
            broker.produce("t", b"a")
            assert len(broker.consume("t")) == 1
    [line] = [one for one in caplog.records if "metrics are not served" in one.message]
    assert line.levelname == "WARNING"
    assert f"127.0.0.1:{port}: another program uses this port" in line.message
    assert "metrics.listen" in line.message


def test_the_port_is_free_again_after_a_crash_and_a_stop() -> None:
    port = free_port()
    with Broker({"metrics.listen": f"127.0.0.1:{port}"}) as broker:
        for end in (broker.crash, broker.stop):
            assert ask(broker, "/readyz")[0] == 200
            end()
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", port), 10)
            broker.start()
        assert ask(broker, "/readyz")[0] == 200


def test_nothing_is_served_unless_it_is_asked_for() -> None:
    with Broker() as broker:
        assert broker.metrics_url is None


def test_a_cluster_tells_who_is_missing(eventually: Callable[..., Any]) -> None:
    topic = NewTopic("t", 3, 3, config={"min.insync.replicas": "2"})
    with Cluster(3, SERVED, topics=[topic]) as cluster:
        cluster.wait_in_sync("t")

        def total(name: str) -> float:
            return sum(scrape(broker)[name] for broker in cluster.running)

        eventually(lambda: total(f"{REPLICAS}leader_count") == 3)  # each follows the image itself
        eventually(lambda: total(f"{REPLICAS}under_replicated_partitions") == 0)
        eventually(lambda: total(f"{CONTROLLER}active_controller_count") == 1)
        eventually(lambda: total(f"{CONTROLLER}active_broker_count") == 3)
        leader = cluster.leader("t", 0)
        leader.produce("t", b"a" * 1000, partition=0)
        cluster.wait_in_sync("t")
        eventually(lambda: total(f"{TOPICS}replication_bytes_in_total t") > 2000)
        eventually(lambda: total(f"{TOPICS}replication_bytes_out_total t") > 2000)

        leader.crash()
        eventually(lambda: total(f"{REPLICAS}under_replicated_partitions") == 3)
        eventually(lambda: total(f"{REPLICAS}at_min_isr_partition_count") == 3)
        assert total(f"{REPLICAS}under_min_isr_partition_count") == 0
        eventually(lambda: total("ottla_leader_elections_total") >= 1)
        eventually(lambda: total(f"{CONTROLLER}offline_partitions_count") == 0)
        leader.start()
        cluster.wait_in_sync("t")
        eventually(lambda: total(f"{REPLICAS}under_replicated_partitions") == 0)
        eventually(lambda: total(f"{REPLICAS}isr_expands_total") >= 3)


def test_strangers_on_the_port_hold_up_no_client(start_broker: Any, neighbour: Any) -> None:
    port = free_port()
    broker = start_broker(settings={"metrics.listen": f"127.0.0.1:{port}"})
    clients = neighbour(broker)
    strangers = []
    for number in range(200):
        one = socket.create_connection(("127.0.0.1", port), 30)
        with suppress(OSError):  # refused already
            one.sendall((b"GET /met", b"\xff" * 9000, b"GET /metrics HTTP/1.1\r\n\r\n")[number % 3])
        strangers.append(one)
    clients.served(rounds=5)
    for one in strangers:
        one.close()
    clients.served()
    broker.wait_log("the page for metrics refused")
    assert "Traceback" not in broker.log()


def test_transactions_can_be_scraped(eventually: Callable[..., None]) -> None:
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    late = f"{REPLICAS}partitions_with_late_transactions_count"
    with Broker({**SERVED, **soon}, topics={"t": 1}) as broker:

        def begin(name: str, timeout_ms: int) -> rd.Producer:
            settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
            producer = rd.Producer(
                {**settings, "transactional.id": name, "transaction.timeout.ms": timeout_ms}
            )
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce("t", b"a")
            assert producer.flush(60) == 0
            return producer

        done = begin("done", 60_000)
        found = scrape(broker)
        assert found["ottla_transactions Ongoing"] == 1
        assert found["ottla_transaction_log_partitions active"] == 1
        load = "kafka_server_transaction_coordinator_metrics_partition_load_time_seconds_count"
        assert found[load] == 1
        assert found[late] == found["ottla_transactions_timed_out_total"] == 0
        done.commit_transaction(60)
        eventually(lambda: scrape(broker)["ottla_transactions CompleteCommit"] == 1)
        slow = begin("slow", 1_000)
        eventually(lambda: scrape(broker)["ottla_transactions_timed_out_total"] == 1)
        eventually(lambda: scrape(broker)["ottla_transactions CompleteAbort"] == 1)
        found = scrape(broker)
        assert (
            found["ottla_transactions Ongoing"] == found["ottla_transaction_markers_pending"] == 0
        )
        queues = "kafka_coordinator_transaction_transaction_marker_channel_manager_"
        assert found[f"{queues}unknown_destination_queue_size"] == 0
        assert found[f"{queues}log_append_retry_queue_size"] == 0
        del slow
