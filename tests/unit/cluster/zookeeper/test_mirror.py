"""What a commit becomes in ZooKeeper, against a model of ZooKeeper's own rules."""

from __future__ import annotations

import random

import pytest

from ottla.cluster.store import Check, Conflict, Create, Delete, Entry, Op, Set, why_not
from ottla.cluster.zookeeper.mirror import (
    CheckNode,
    CreateNode,
    DeleteNode,
    Mirror,
    Plan,
    SetNode,
    unread,
)
from ottla.cluster.zookeeper.nodes import (
    INLINE_BYTES,
    Change,
    Node,
    decode_change,
    decode_data,
    encode_change,
)


class ZooKeeperModel:
    """Nodes and versions as ZooKeeper keeps them: parents first, children last."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int, int]] = {}  # data, version, born
        self.transactions = 0

    def multi(self, plan: Plan) -> None:
        self.transactions += 1
        nodes = dict(self.nodes)
        for step in plan.steps:
            above = step.path.rpartition("/")[0]
            if isinstance(step, CreateNode):
                assert step.path not in nodes, f"NodeExists {step}"
                assert not above or above in nodes, f"NoNode {step}"
                nodes[step.path] = (step.data, 0, self.transactions)
                continue
            _, version, born = nodes[step.path]
            assert version == step.version, f"BadVersion {step}"
            if isinstance(step, SetNode):
                nodes[step.path] = (step.data, version + 1, born)
            elif isinstance(step, DeleteNode):
                below = [path for path in nodes if path.startswith(f"{step.path}/")]
                assert not below, f"NotEmpty {step}: {below}"
                del nodes[step.path]
            else:
                assert isinstance(step, CheckNode)
        self.nodes = nodes

    def keys(self) -> dict[str, Entry]:
        found = {}
        for path, (data, version, _) in self.nodes.items():
            value, base = decode_data(data)
            if value is not None:
                found[path] = Entry(value, version - base)
        return found


KEYS = ["a", "a/b", "a/b/c", "a/b/d", "a/e", "f/g/h", "f/g", "i"]


def some_op(rng: random.Random, known: dict[str, Entry]) -> Op:
    key = rng.choice(KEYS)
    value = rng.choice([b"", b"\0zero", b"plain", b"{}"])
    version = known[key].version if key in known and rng.random() < 0.9 else rng.randrange(3)
    kind = rng.choice([Create, Create, Set, Delete, Delete, Check])
    if kind is Create:
        return Create(key, value)
    if kind is Set:
        return Set(key, value, version)
    return Delete(key, version) if kind is Delete else Check(key, version)


@pytest.mark.parametrize("seed", range(20))
def test_zookeeper_and_mirror_agree_with_the_keys_that_were_meant(seed):
    rng = random.Random(seed)
    zookeeper, mirror = ZooKeeperModel(), Mirror()
    meant: dict[str, Entry] = {}
    for number in range(150):
        ops = {}
        for _ in range(rng.randrange(1, 4)):
            op = some_op(rng, meant)
            ops[op.key] = op
        refused = [op.key for op in ops.values() if why_not(op, meant.get(op.key))]
        if refused:
            with pytest.raises(Conflict) as caught:
                mirror.plan(tuple(ops.values()))
            assert caught.value.key in refused
            continue
        plan = mirror.plan(tuple(ops.values()))
        zookeeper.multi(plan)
        for op in ops.values():
            if isinstance(op, Delete):
                del meant[op.key]
            elif isinstance(op, Create | Set):
                version = op.version + 1 if isinstance(op, Set) else 0
                meant[op.key] = Entry(op.value, version)
        change = decode_change(encode_change("id", plan.effects), number, zookeeper.transactions)
        mirror.apply([change], {})
        assert zookeeper.keys() == meant
        assert dict(mirror.snapshot("").entries) == meant
        assert mirror.nodes.keys() == zookeeper.nodes.keys()
        assert {key: node.version for key, node in mirror.nodes.items()} == {
            key: version for key, (_, version, _) in zookeeper.nodes.items()
        }


def test_directories_go_with_the_last_key_below_them():
    mirror = Mirror()
    apply(mirror, 0, Create("partitions/one/0", b"x"), Create("partitions/one/1", b"x"))
    assert sorted(mirror.nodes) == [
        "partitions",
        "partitions/one",
        "partitions/one/0",
        "partitions/one/1",
    ]
    apply(mirror, 1, Delete("partitions/one/0", 0), Delete("partitions/one/1", 0))
    assert sorted(mirror.nodes) == ["partitions"]


def test_values_that_are_many_bytes_are_named_and_not_repeated():
    mirror = Mirror()
    large = bytes([1]) * (INLINE_BYTES + 1)
    plan = mirror.plan((Create("a", large), Create("b", b"small")))
    data = encode_change("id", plan.effects)
    assert len(data) < 200
    change = decode_change(data, 0, 7)
    assert unread([change]) == {"a", "b"}
    mirror.apply([change], {"a": Node(large, 0, 0, 7), "b": None})
    assert dict(mirror.snapshot("").entries) == {"a": Entry(large, 0)}


def test_the_end_of_a_session_takes_only_the_key_that_it_had():
    mirror = Mirror()
    apply(mirror, 0, Create("brokers/1", b"old"), ephemeral="brokers/1", transaction=10)
    before = mirror.revision
    assert not mirror.vanish("brokers/1", 9)
    assert mirror.vanish("brokers/1", 10)
    assert "brokers/1" not in mirror.entries
    assert mirror.revision > before
    bumped = mirror.revision
    apply(mirror, 1, Create("brokers/1", b"new"), ephemeral="brokers/1", transaction=11)
    assert mirror.revision > bumped
    assert not mirror.vanish("brokers/1", 10)
    assert mirror.entries["brokers/1"].value == b"new"


def test_a_set_before_the_end_of_a_session_does_not_bring_the_key_back():
    mirror = Mirror()
    apply(mirror, 0, Create("brokers/1", b"old"), ephemeral="brokers/1", transaction=10)
    plan = mirror.plan((Set("brokers/1", b"newer", 0),))
    mirror.vanish("brokers/1", 10)
    mirror.apply([Change("id", plan.effects, 1, 12)], {})
    assert "brokers/1" not in mirror.entries


def test_ephemeral_keys_and_keys_below_them_exclude_one_another():
    mirror = Mirror()
    apply(mirror, 0, Create("a/b", b""), Create("e", b""), ephemeral="e")
    with pytest.raises(Conflict, match="keys below it"):
        mirror.plan((Create("a", b""),), ephemeral="a")
    with pytest.raises(Conflict, match="e is ephemeral"):
        mirror.plan((Create("e/below", b""),))


def apply(
    mirror: Mirror, number: int, *ops: Op, ephemeral: str | None = None, transaction: int = 1
) -> None:
    plan = mirror.plan(ops, ephemeral)
    data = encode_change("id", plan.effects)
    mirror.apply([decode_change(data, number, transaction)], {})
