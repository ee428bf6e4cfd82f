from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.loaded_logs import MOST_LOST
from ottla.cluster import layout
from ottla.cluster.store import MAX_COMMIT_BYTES, check_key
from ottla.model.broker import Broker, BrokerState, Endpoint, LostPartition
from ottla.model.features import FORMATS
from ottla.model.ids import TopicId
from ottla.model.topic import PartitionState

ID = TopicId(bytes(range(16)))
OTHER = TopicId(bytes(range(1, 17)))


def test_every_key_is_a_valid_one_and_is_recognised() -> None:
    keys = {
        layout.broker_key(7): layout.parse_broker_key,
        layout.broker_config_key("7"): layout.parse_broker_config_key,
        layout.broker_config_key(""): layout.parse_broker_config_key,
        layout.group_config_key("a/b c"): layout.parse_group_config_key,
        layout.topic_key("orders.eu_1"): layout.parse_topic_key,
        layout.partitions_key(ID, 3): layout.parse_partitions_key,
    }
    parsers = set(keys.values())
    for key, own in keys.items():
        check_key(key)
        for parse in parsers:
            assert (parse(key) is not None) == (parse is own), key
    for key in (layout.CLUSTER, layout.FEATURES, layout.PRODUCER_IDS, layout.BROKER_EPOCH):
        check_key(key)
        assert all(parse(key) is None for parse in parsers), key


def test_keys_read_back_as_what_they_were_made_of() -> None:
    assert layout.parse_broker_key(layout.broker_key(7)) == 7
    assert layout.parse_broker_config_key(layout.broker_config_key("7")) == "7"
    assert layout.parse_broker_config_key(layout.broker_config_key("")) == ""
    assert layout.group_config_key("orders.eu-1") == "configs/groups/orders.eu-1"
    assert layout.parse_topic_key(layout.topic_key("a.b")) == "a.b"
    assert layout.parse_partitions_key(layout.partitions_key(ID, 12)) == (ID, 12)


def test_what_is_remembered_of_a_broker_reads_back() -> None:
    lost = frozenset({LostPartition(ID, 0), LostPartition(ID, 7), LostPartition(OTHER, 1)})
    state = BrokerState(9, ("d",), "boot", "me", clean=True, lost_partitions=lost, failed=True)
    key, value = layout.broker_state_key(4), layout.encode_broker_state(state)
    assert layout.decode_broker_state(key, value) == state
    fields = json.loads(value)
    del fields["lost_partitions"], fields["failed"]  # as written by a broker before these came
    before = layout.decode_broker_state(key, json.dumps(fields).encode())
    assert before == replace(state, lost_partitions=frozenset(), failed=False)


def test_a_registration_has_room_for_as_many_lost_partitions_as_there_may_be() -> None:
    lost = frozenset(
        LostPartition(TopicId(number.to_bytes(16, "big")), number) for number in range(MOST_LOST)
    )
    assert len(layout.encode_broker_state(BrokerState(1, lost_partitions=lost))) < MAX_COMMIT_BYTES


broker_ids = st.integers(0, 2**31 - 1)
id_lists = st.lists(broker_ids, max_size=4).map(tuple)
partition_states = st.builds(
    PartitionState,
    leader=st.integers(-1, 2**31 - 1),
    leader_epoch=broker_ids,
    partition_epoch=broker_ids,
    replicas=id_lists,
    isr=id_lists,
    elr=id_lists,
)
settings_maps = st.dictionaries(st.text(), st.text())


@given(
    st.one_of(st.text(min_size=1), st.sampled_from([".", "..", "...", "%2E", "a/./b", "ö", "/"]))
)
def test_a_group_may_be_called_anything_and_has_a_key_of_its_own(group: str) -> None:
    key = layout.group_config_key(group)
    check_key(key)
    assert key.count("/") == 2
    assert layout.parse_group_config_key(key) == group


@given(st.lists(partition_states, max_size=70))
def test_partition_states_read_back_as_written(states: list[PartitionState]) -> None:
    assert layout.decode_partitions("k", layout.encode_partitions(states)) == tuple(states)


@given(settings_maps)
def test_settings_read_back_as_written_whatever_they_contain(config: dict[str, str]) -> None:
    assert layout.decode_config("k", layout.encode_config(config)) == config
    entry = layout.decode_topic("k", layout.encode_topic(ID, config))
    assert entry == (ID, config)


def test_single_values_read_back_as_written() -> None:
    assert layout.decode_cluster(layout.encode_cluster("abc")) == "abc"
    assert layout.decode_counter("k", layout.encode_counter(2**62)) == 2**62
    assert layout.decode_holder("k", layout.encode_holder(3)) == 3
    for levels in ({"f": 2}, {FORMATS: 1}):
        assert layout.decode_features(layout.encode_features(levels)) == levels
    endpoints = {
        "INSIDE": Endpoint("INSIDE", "h", 9092, "SSL"),
        "OUT": Endpoint("OUT", "::1", 9093),
    }
    for rack in (None, "r1"):
        broker = Broker(4, 17, endpoints, rack, features={"f": (0, 2)})
        assert layout.decode_broker(layout.broker_key(4), layout.encode_broker(broker)) == broker


def test_states_come_64_to_a_key() -> None:
    state = PartitionState(1, 0, 0, (1,), (1,))
    assert [len(chunk) for chunk in layout.chunks([state] * 130)] == [64, 64, 2]
    assert layout.chunks([]) == []


def test_the_largest_topic_a_request_can_create_fits_into_one_commit() -> None:
    state = PartitionState(100_001, 0, 0, (100_001, 100_002, 100_003), (100_001, 100_002, 100_003))
    size = sum(
        len(layout.encode_partitions(chunk)) + 40 for chunk in layout.chunks([state] * 9_999)
    )
    assert size < MAX_COMMIT_BYTES


def test_values_are_ascii() -> None:
    assert layout.encode_config({"caf\u00e9": "\U0001f600"}).isascii()


def test_fields_of_a_later_minor_change_are_ignored() -> None:
    written = PartitionState(1, 2, 3, (1,), (1,), (4,), (5,), (6,), (7,))
    value = json.loads(layout.encode_partitions([written]))
    value["p"][0].append("later")
    value["later"] = True
    (state,) = layout.decode_partitions("k", json.dumps(value).encode())
    assert state == written


def test_partitions_that_are_reassigned_are_of_a_version_that_older_readers_refuse() -> None:
    moved = PartitionState(1, 2, 3, (2, 1), (1,), adding=(2,), removing=(1,))
    still = PartitionState(1, 2, 3, (1,), (1,))
    assert json.loads(layout.encode_partitions([still]))["v"] == 1
    value = layout.encode_partitions([still, moved])
    assert json.loads(value)["v"] == 2
    assert layout.decode_partitions("k", value) == (still, moved)


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b'{"v":2,"id":"x"}', b"{"])
def test_what_is_not_ours_or_newer_is_refused_by_key(value: bytes) -> None:
    with pytest.raises(layout.UnreadableValue, match="key cluster cannot be read"):
        layout.decode_cluster(value)


@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(PartitionState)])
def test_every_change_of_a_partition_is_noticed(name: str) -> None:
    """States are compared with those before field by field, without being made."""
    before = PartitionState(1, 2, 3, (1, 2, 3), (1,), (2,), (3,))
    value = getattr(before, name)
    after = dataclasses.replace(before, **{name: value + 1 if isinstance(value, int) else (2, 3)})
    encoded = layout.encode_partitions([before, after])
    first, second = layout.decode_partitions("k", encoded, (before, before))
    assert first is before
    assert second == after


def test_levels_that_allow_new_formats_are_refused_by_who_knows_only_the_first() -> None:
    assert layout.encode_features({FORMATS: 0}).startswith(b'{"v":1,')
    assert layout.encode_features({FORMATS: 1}).startswith(b'{"v":2,')
