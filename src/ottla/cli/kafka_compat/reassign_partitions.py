"""kafka-reassign-partitions: move partitions to other brokers, or between the data folders of one,
and see how far that is.

Odd   Kafka's --cancel leaves reassignments alone that only add replicas; here it cancels them too.
      A folder that a broker does not have, or that is offline, is refused before anything is
      changed. Throttles are also removed from brokers that have died since they were set, and
      where a topic of the file does not exist any more. Where more replicas of a topic move than a
      throttle has room for, some thousand, all of the topic are throttled; Kafka's ends with an
      exception.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
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
    as_json,
    check_moves,
    complaint,
    read_brokers,
    read_moves,
    read_topics,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import Replica, TopicPartition

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin
    from ottla.client.folder_moves import Place
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
_PAUSE = 0.1
ANYWHERE = ("bootstrap-server", "command-config", "zookeeper")

PARSER = Parser(
    "kafka-reassign-partitions",
    "Move partitions to other brokers, or to other data folders of theirs.",
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
            '"partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/data/b"]}]}.',
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
    by_topic: defaultdict[str, list[TopicPartition]] = defaultdict(list)
    for tp in sorted(current):
        by_topic[tp.topic].append(tp)
    for topic in topics:
        partitions = by_topic[topic]
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
    from ottla.client.folder_moves import limit_folder_moves
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
    _refuse_unknown_folders(admin, moves)
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
            limit_copies(admin, movements(active, wanted, current), rate, or_all=True)
            print(f"The inter-broker throttle limit was set to {rate} B/s")
        if folder_rate >= 0:
            limit_folder_moves(admin, {replica.broker for replica in moves.folders}, folder_rate)
            print(f"The replica-alter-dir throttle limit was set to {folder_rate} B/s")
    failed = begin(admin.router, wanted)
    if failed:
        raise Failure(f"Error reassigning partition(s):\n{_listed(failed)}", out=True)
    names = ",".join(map(str, sorted(wanted)))
    print(f"Successfully started partition reassignment{_s(wanted)} for {names}")
    if moves.folders:
        _move_folders(admin, moves.folders, options)


def _verify(admin: DirectAdmin, moves: Moves, options: Options) -> None:
    active = _ongoing(admin)
    missing = {tp.topic for tp, _ in moves.partitions if tp not in active}
    found = admin.describe_each(sorted(missing))
    gone: set[TopicPartition] = set()
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
        if not now:
            gone.add(tp)
        if now == replicas:
            print(f"Reassignment of partition {tp} is completed.")
        else:
            print(
                f"There is no active reassignment of partition {tp}, but replica set is "
                f"{_ids(now)} rather than {_ids(replicas)}."
            )
    moving = _print_folders(admin, moves, gone)
    if not active and not moving and not options.has("preserve-throttles"):
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
    going = {
        replica: place.folder
        for replica, place in _places(admin, moves).items()
        if replica in moves.folders and place.future is not None and place.folder is not None
    }
    if going:
        _move_folders(admin, going, options)  # to where they are
    else:
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
    from ottla.client.reassignments import (
        lift_broker_limits,
        lift_limits_of_absent,
        lift_topic_limits,
        limited_brokers,
        replica_limits,
    )

    topics = sorted({tp.topic for tp, _ in moves.partitions})
    live = {node.id for node in admin.describe_cluster().nodes}
    absent = limited_brokers(replica_limits(admin, topics)) - live
    brokers = sorted(live | absent)
    print(f"Clearing broker-level throttles on broker{_s(brokers)} {_ids(brokers)}")
    lift_broker_limits(admin, sorted(live))
    lift_limits_of_absent(admin, sorted(absent))
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


def _places(admin: DirectAdmin, moves: Moves) -> dict[Replica, Place]:
    from ottla.client.folder_moves import places

    present = {node.id for node in admin.describe_cluster().nodes}
    return places(admin, sorted(present & {replica.broker for replica in moves.folders}))


def _refuse_unknown_folders(admin: DirectAdmin, moves: Moves) -> None:
    """Before anything is changed: a broker has only the folders that it has, and none of its
    replicas goes into one that is offline."""
    for broker in sorted({replica.broker for replica in moves.folders}):
        known = {each.path: each for each in admin.log_dirs(broker)}
        for replica, folder in sorted(moves.folders.items()):
            if replica.broker != broker:
                continue
            if folder not in known:
                raise complaint(
                    f"Failed to alter dir for {replica}: broker {broker} has no log directory "
                    f"{folder}, it has {', '.join(sorted(known))}"
                )
            if known[folder].error:
                raise complaint(
                    f"Failed to alter dir for {replica}: log directory {folder} of broker {broker} "
                    "is offline"
                )


def _move_folders(admin: DirectAdmin, wanted: Mapping[Replica, str], options: Options) -> None:
    """Have replicas moved; those that are still to come to their broker are asked for again."""
    from ottla.client.folder_moves import begin_moves

    until = time.monotonic() + (options.integer("timeout") or 0) / 1000
    left = dict(wanted)
    while True:
        for replica, error in sorted(begin_moves(admin, left).items()):
            if error is None:
                # Kafka's has a space at the end, too.
                print(
                    f"Successfully started moving log directory to {left.pop(replica)} for replica "
                    f"{replica.partition} with broker {replica.broker} "
                )
            elif error.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
                raise complaint(f"Failed to alter dir for {replica}: {explain(error)}")
        if not left:
            return
        if time.monotonic() >= until:
            names = ",".join(map(str, sorted(left)))
            raise Failure(
                f"Timed out before log directory move{_s(left)} could be started for: {names}",
                out=True,
            )
        time.sleep(_PAUSE)


def _print_folders(admin: DirectAdmin, moves: Moves, gone: Collection[TopicPartition]) -> bool:
    """Say whether replicas lie in the folders that a file names; whether some still move."""
    lines, moving = [], False
    found = _places(admin, moves)
    for replica, wanted in sorted(moves.folders.items()):
        place = found.get(replica)
        where = f"Partition {replica.partition} on broker {replica.broker}"
        if replica.partition in gone:
            lines.append(f"Partition {replica.partition} does not exist any more.")
        elif place is None or place.folder is None:
            moving = True
            lines.append(
                f"Partition {replica.partition} is not found in any live log dir on broker "
                f"{replica.broker}. There is likely an offline log directory on the broker."
            )
        elif place.future == wanted:
            moving = True
            lines.append(f"Reassignment of replica {replica} is still in progress.")
        elif place.future is not None:
            moving = True
            lines.append(f"{where} is being moved to log dir {place.future} instead of {wanted}.")
        elif place.folder == wanted:
            lines.append(f"Reassignment of replica {replica} completed successfully.")
        else:
            lines.append(f"{where} is not being moved from log dir {place.folder} to {wanted}.")
    print("\n".join(lines))
    return moving


# -- words


def _listed(failed: Mapping[TopicPartition, KafkaError]) -> str:
    return "\n".join(f"{tp}: {explain(failed[tp])}" for tp in sorted(failed))


def _ids(brokers: Collection[int]) -> str:
    return ",".join(map(str, brokers))


def _s(several: Collection[object]) -> str:
    return "" if len(several) == 1 else "s"
