"""What tools ask of a broker whose state changes while they are connected."""

from __future__ import annotations

from typing import Any

from ottla.client.descriptions import NewTopic
from ottla.client.direct import SET, TOPIC, DirectAdmin
from ottla.client.folder_moves import begin_moves, limit_folder_moves
from ottla.client.groups import Groups
from ottla.client.overview import look
from ottla.model.ids import Replica, TopicPartition
from ottla.testing import Broker

UNSAFE_DOWNGRADE = 3


def test_levels_of_features_are_those_of_now_and_not_of_when_it_connected() -> None:
    def level(broker: int | None) -> int:
        _, features = admin.features(broker)
        [found] = [each for each in features if each.name == "transaction.version"]
        return found.finalized

    with Broker() as broker, DirectAdmin(broker.bootstrap) as admin:
        assert level(None) == level(1) == 2
        admin.update_features({"transaction.version": 1}, kind=UNSAFE_DOWNGRADE)
        assert level(None) == level(1) == 1


def test_a_topic_that_moves_to_another_folder_is_as_large_as_before() -> None:
    orders = Replica(1, TopicPartition("orders", 0))
    with (
        Broker(topics=["orders"], folders=2) as broker,
        DirectAdmin(broker.bootstrap) as admin,
        Groups(broker.bootstrap) as groups,
    ):
        for _ in range(20):
            broker.produce("orders", *[bytes(10_000)] * 20)
        [size] = [each.size for each in look(groups).topics.values()]
        assert size is not None
        assert size > 4_000_000
        [elsewhere] = [folder.path for folder in admin.log_dirs(1) if not folder.replicas]
        limit_folder_moves(admin, [1], 1000)
        assert begin_moves(admin, {orders: elsewhere}) == {orders: None}
        copies = [each for folder in admin.log_dirs(1) for each in folder.replicas if each.future]
        assert len(copies) == 1
        assert copies[0].size < size
        assert look(groups).topics["orders"].size == size


def test_a_size_that_a_broker_does_not_tell_is_not_known() -> None:
    with Broker(topics=["orders"]) as broker, Groups(broker.bootstrap) as groups:
        broker.faults.error("CLUSTER_AUTHORIZATION_FAILED", "DescribeLogDirs")
        assert look(groups).topics["orders"].size is None


def test_a_broker_that_has_closed_idle_connections_is_asked_on_new_ones(eventually: Any) -> None:
    place = TopicPartition("orders", 0)
    with (
        Broker({"connections.max.idle.ms": 1000}, topics=["orders"]) as broker,
        DirectAdmin(broker.bootstrap) as admin,
    ):

        def idle() -> None:
            """Wait until the broker has hung up on all connections."""
            wires = [admin.router.any(), admin.router.node(1), admin.router.controller()]
            eventually(lambda: all(not wire.usable for wire in wires))

        idle()
        assert [each.path for each in admin.log_dirs(1)] == list(broker.data_dirs)
        idle()
        admin.alter_configs(TOPIC, "orders", [("retention.ms", SET, "1000")])
        idle()
        assert admin.create_topics([NewTopic("more", 1)]) == {}
        idle()
        assert admin.delete_records({place: -1}) == {place: 0}
        idle()
        assert admin.groups() == []
