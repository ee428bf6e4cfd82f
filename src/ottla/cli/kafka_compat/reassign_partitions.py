"""kafka-reassign-partitions: move partitions to other brokers, and see how far that is.

Odd   Kafka's --cancel leaves reassignments alone that only add replicas; here it cancels them too.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.cli.kafka_compat.java_errors import spell_error
from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Failure,
    Option,
    Options,
    Parser,
    UsageError,
    check_required,
    connect,
    explain,
)
from ottla.cli.kafka_compat.reassignment_files import (
    Moves,
    Replica,
    as_json,
    check_moves,
    complaint,
    read_brokers,
    read_moves,
    read_topics,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin
    from ottla.client.reassignments import Ongoing

ACTIONS = ("generate", "execute", "verify", "cancel", "list")
NEEDED = {
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "verify": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
ALLOWED = {
    "generate": ("disable-rack-aware",),
    "execute": ("additional", "throttle", "replica-alter-log-dirs-throttle", "timeout"),
    "verify": ("preserve-throttles",),
    "cancel": ("preserve-throttles", "timeout", "bootstrap-controller"),
    "list": ("bootstrap-controller",),
}
ANYWHERE = ("bootstrap-server", "command-config", "zookeeper")

PARSER = Parser(
    "kafka-reassign-partitions",
    "Move partitions to other brokers.",
    [
        BOOTSTRAP,
        Option(
            "bootstrap-controller",
            "With --list and --cancel: the controller to ask, or any broker.",
            "HOST:PORT,...",
        ),
        COMMAND_CONFIG,
        Option("generate", "Propose a placement of topics on brokers; nothing is moved."),
        Option("execute", "Begin to move partitions as --reassignment-json-file says."),
        Option(
            "verify",
            "Show whether they have arrived; when nothing moves any more, throttles are removed.",
        ),
        Option("cancel", "Leave the partitions of --reassignment-json-file where they were."),
        Option("list", "Show all partitions that are being moved."),
        Option(
            "reassignment-json-file",
            'Where partitions are to be: {"version": 1, "partitions": [{"topic": "t", '
            '"partition": 0, "replicas": [1, 2]}]}.',
            "FILE",
        ),
        Option(
            "topics-to-move-json-file",
            'With --generate, the topics: {"version": 1, "topics": [{"topic": "t"}]}.',
            "FILE",
        ),
        Option("broker-list", "With --generate: the brokers to place them on.", "0,1,2"),
        Option("disable-rack-aware", "With --generate: place them whatever the racks are."),
        Option(
            "throttle", "With --execute: copy so many bytes a second at most.", "number", int, "-1"
        ),
        Option(
            "replica-alter-log-dirs-throttle",
            "The same for moves between the folders of a broker.",
            "number",
            int,
            "-1",
        ),
        Option("timeout", "How long to wait for moves between folders, in ms.", "ms", int, "10000"),
        Option("additional", "With --execute: beside, or in place of, what is in progress."),
        Option("preserve-throttles", "With --verify and --cancel: leave throttles as they are."),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-reassign-partitions."""
    options = PARSER.parse(arguments)
    action = _checked_action(options)
    try:
        with connect(options, "bootstrap-server", "bootstrap-controller") as admin:
            if action == "list":
                print(describe_ongoing(_ongoing(admin)))
            elif action == "generate":
                _generate(admin, options)
            else:
                moves = read_moves(options.required("reassignment-json-file"))
                {"execute": _execute, "verify": _verify, "cancel": _cancel}[action](
                    admin, moves, options
                )
    except KafkaError as error:
        raise Failure(f"Error: {spell_error(error)}", out=True) from None
    return 0


def _checked_action(options: Options) -> str:
    given = [action for action in ACTIONS if options.has(action)]
    if len(given) != 1:
        names = ", ".join(f"--{action}" for action in ACTIONS)
        raise UsageError(f"Command must include exactly one action: {names}")
    [action] = given
    servers = [name for name in ("bootstrap-server", "bootstrap-controller") if options.has(name)]
    if len(servers) > 1:
        raise UsageError("Please don't specify both --bootstrap-server and --bootstrap-controller")
    if not servers:
        raise UsageError("Please specify either --bootstrap-server or --bootstrap-controller")
    check_required(options, *NEEDED[action])
    for name in options.found:
        if name not in (action, *NEEDED[action], *ALLOWED[action], *ANYWHERE):
            raise UsageError(f'Option "[{name}]" can\'t be used with action "[{action}]"')
    return action


# -- the actions


def _generate(admin: DirectAdmin, options: Options) -> None:
    from ottla.controller.placement import place
    from ottla.model.broker import Broker

    brokers = read_brokers(options.required("broker-list"))
    topics = read_topics(options.required("topics-to-move-json-file"))
    current = _placed(admin, topics)
    aware = not options.has("disable-rack-aware")
    there = [node for node in admin.describe_cluster().nodes if node.id in brokers]
    with_rack = [node for node in there if aware and node.rack is not None]
    if with_rack and len(with_rack) != len(there):
        raise complaint(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to "
            "make replica assignment without rack information."
        )
    chosen = [Broker(node.id, 0, {}, node.rack if aware else None) for node in there]
    proposed: dict[TopicPartition, Sequence[int]] = {}
    for topic in topics:
        partitions = sorted(tp for tp in current if tp.topic == topic)
        factor = len(current[partitions[0]])
        if factor > len(chosen):
            raise complaint(
                f"Replication factor: {factor} larger than available brokers: {len(chosen)}"
            )
        placed = place(chosen, len(partitions), factor, random.Random())
        proposed |= dict(zip(partitions, placed, strict=True))
    print(f"Current partition replica assignment\n{_with_folders(admin, current)}\n")
    print(f"Proposed partition reassignment configuration\n{as_json(proposed)}")


def _execute(admin: DirectAdmin, moves: Moves, options: Options) -> None:
    from ottla.client.reassignments import begin, limit_copies, movements

    wanted = check_moves(moves)
    active = _ongoing(admin)
    if active and not options.has("additional"):
        raise Failure(
            "Cannot execute because there is an existing partition assignment.  Use --additional "
            "to override this and create a new partition assignment in addition to the existing "
            "one. The --additional flag can also be used to change the throttle by resubmitting "
            "the current reassignment.",
            out=True,
        )
    present = {node.id for node in admin.describe_cluster().nodes}
    for broker in sorted({each for replicas in wanted.values() for each in replicas}):
        if broker not in present:
            raise complaint(f"Unknown broker id {broker}")
    current = _placed(admin, {tp.topic for tp in wanted}, wanted)
    _refuse_folders(admin, moves)
    print(
        f"Current partition replica assignment\n\n{_with_folders(admin, current)}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    rate, folder_rate = (
        _rate(options, "throttle"),
        _rate(options, "replica-alter-log-dirs-throttle"),
    )
    if max(rate, folder_rate) >= 0:
        print(
            "Warning: You must run --verify periodically, until the reassignment completes, to "
            "ensure the throttle is removed."
        )
        if rate >= 0:
            limit_copies(admin, movements(active, wanted, current), rate)
            print(f"The inter-broker throttle limit was set to {rate} B/s")
        if folder_rate >= 0:
            print(f"The replica-alter-dir throttle limit was set to {folder_rate} B/s")
    failed = begin(admin.router, wanted)
    if failed:
        raise Failure(f"Error reassigning partition(s):\n{_listed(failed)}", out=True)
    names = ",".join(map(str, sorted(wanted)))
    print(f"Successfully started partition reassignment{_s(wanted)} for {names}")


def _verify(admin: DirectAdmin, moves: Moves, options: Options) -> None:
    active = _ongoing(admin)
    missing = {tp.topic for tp, _ in moves.partitions if tp not in active}
    found = admin.describe_each(sorted(missing))
    print("Status of partition reassignment:")
    for tp, replicas in sorted(moves.partitions):
        if tp in active:
            print(f"Reassignment of partition {tp} is still in progress.")
            continue
        topic = found.get(tp.topic)
        if isinstance(topic, KafkaError) and topic.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise topic
        parts = () if topic is None or isinstance(topic, KafkaError) else topic.partitions
        now = next((list(part.replicas) for part in parts if part.partition == tp.partition), [])
        if now == replicas:
            print(f"Reassignment of partition {tp} is completed.")
        else:
            print(
                f"There is no active reassignment of partition {tp}, but replica set is "
                f"{_ids(now)} rather than {_ids(replicas)}."
            )
    _print_folders(admin, moves)
    if not active and not options.has("preserve-throttles"):
        _clear_throttles(admin, moves)


def _cancel(admin: DirectAdmin, moves: Moves, options: Options) -> None:
    from ottla.client.reassignments import begin, ongoing

    active = ongoing(admin.router, {tp for tp, _ in moves.partitions})
    if active:
        failed = begin(admin.router, dict.fromkeys(active))
        if failed:
            raise Failure(
                f"Error cancelling partition reassignment{_s(failed)} for:\n{_listed(failed)}",
                out=True,
            )
        names = ",".join(map(str, sorted(active)))
        print(f"Successfully cancelled partition reassignment{_s(active)} for: {names}")
    else:
        print("None of the specified partition reassignments are active.")
    # Kafka's does not end this line.
    print("None of the specified partition moves are active.", end="")
    if not options.has("preserve-throttles"):
        _clear_throttles(admin, moves)


# -- what is there


def _ongoing(admin: DirectAdmin) -> dict[TopicPartition, Ongoing]:
    from ottla.client.reassignments import ongoing

    return ongoing(admin.router)


def describe_ongoing(active: Mapping[TopicPartition, Ongoing]) -> str:
    """What --list prints."""
    if not active:
        return "No partition reassignments found."
    lines = ["Current partition reassignments:"]
    for tp in sorted(active):
        replicas, adding, removing = active[tp]
        line = f"{tp}: replicas: {_ids(replicas)}."
        if adding:
            line += f" adding: {_ids(adding)}."
        if removing:
            line += f" removing: {_ids(removing)}."
        lines.append(line)
    return "\n".join(lines)


def _placed(
    admin: DirectAdmin, topics: Collection[str], only: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, list[int]]:
    """Where the partitions of topics are; of those in `only` all must be there."""
    placed: dict[TopicPartition, list[int]] = {}
    for name, topic in admin.describe_each(sorted(topics)).items():
        if isinstance(topic, KafkaError):
            if topic.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise KafkaError(topic.code, f"Topic {name} not found.")
            raise topic
        for part in topic.partitions:
            tp = TopicPartition(name, part.partition)
            if only is None or tp in only:
                placed[tp] = list(part.replicas)
    missing = [tp for tp in only or () if tp not in placed]
    if missing:
        names = ", ".join(map(str, missing))
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition: {names}")
    return placed


def _with_folders(admin: DirectAdmin, current: Mapping[TopicPartition, Sequence[int]]) -> str:
    brokers = {each for replicas in current.values() for each in replicas}
    return as_json(current, _folders(admin, brokers))


# -- throttles


def _rate(options: Options, name: str) -> int:
    rate = options.integer(name)
    return -1 if rate is None else rate


def _clear_throttles(admin: DirectAdmin, moves: Moves) -> None:
    from ottla.client.reassignments import lift_broker_limits, lift_topic_limits

    brokers = sorted(node.id for node in admin.describe_cluster().nodes)
    print(f"Clearing broker-level throttles on broker{_s(brokers)} {_ids(brokers)}")
    lift_broker_limits(admin, brokers)
    topics = sorted({tp.topic for tp, _ in moves.partitions})
    print(f"Clearing topic-level throttles on topic{_s(topics)} {','.join(topics)}")
    lift_topic_limits(admin, topics)


# -- folders


def _folders(admin: DirectAdmin, brokers: Collection[int]) -> dict[Replica, str]:
    """In which folder of these brokers, as far as they are there, each replica lies."""
    present = {node.id for node in admin.describe_cluster().nodes}
    return {
        Replica(broker, TopicPartition(each.topic, each.partition)): folder.path
        for broker in sorted(present.intersection(brokers))
        for folder in admin.log_dirs(broker)
        for each in folder.replicas
        if not each.future
    }


def _refuse_folders(admin: DirectAdmin, moves: Moves) -> None:
    """Before anything is changed: brokers do not move replicas between their folders."""
    found = _folders(admin, {replica.broker for replica in moves.folders})
    elsewhere = [
        replica
        for replica, folder in sorted(moves.folders.items())
        if found.get(replica) != folder
        and [each.path for each in admin.log_dirs(replica.broker)] != [folder]
    ]
    if elsewhere:
        names = ", ".join(map(str, elsewhere))
        raise complaint(
            "brokers choose the folders of their replicas by themselves; leave out log_dirs, or "
            f"write any, for {names}"
        )


def _print_folders(admin: DirectAdmin, moves: Moves) -> None:
    """Say whether replicas lie in the folders that a file names."""
    lines = []
    found = _folders(admin, {replica.broker for replica in moves.folders})
    for replica, wanted in sorted(moves.folders.items()):
        now = found.get(replica)
        if now is None:
            lines.append(
                f"Partition {replica.partition} cannot be found in any live log directory on "
                f"broker {replica.broker}."
            )
        elif now == wanted:
            lines.append(f"Reassignment of replica {replica} completed successfully.")
        else:
            lines.append(
                f"Partition {replica.partition} on broker {replica.broker} is not being moved "
                f"from log dir {now} to {wanted}."
            )
    print("\n".join(lines))


# -- words


def _listed(failed: Mapping[TopicPartition, KafkaError]) -> str:
    return "\n".join(f"{tp}: {explain(failed[tp])}" for tp in sorted(failed))


def _ids(brokers: Collection[int]) -> str:
    return ",".join(map(str, brokers))


def _s(several: Collection[object]) -> str:
    return "" if len(several) == 1 else "s"
