"""kafka-consumer-groups: list, describe, reset and delete groups of consumers.

Tables, lines and their places (stdout or stderr) are Kafka 4.2's. Two differences, both on purpose:
a failure is one line without a stack trace and ends with code 1, where Kafka's tool ends with 0
whatever happened; and a reset works out the offsets of all groups before it commits any, so that
an absent topic or a malformed file changes nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from ottla.cli.kafka_compat import group_tables as tables
from ottla.cli.kafka_compat.groups import of_consumers
from ottla.cli.kafka_compat.java_errors import sentence, spell_error, spelled
from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Failure,
    Option,
    Options,
    Parser,
    UsageError,
    bootstrap_of,
    check_excluded,
    read_properties,
)
from ottla.client import resets
from ottla.client.groups import GroupListing, Groups
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

_ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
_SCENARIOS = (
    "to-offset",
    "to-earliest",
    "to-current",
    "to-latest",
    "by-duration",
    "to-datetime",
    "from-file",
    "shift-by",
)
# In the order in which Kafka lists them.
STATES = (
    "Stable",
    "Empty",
    "Assigning",
    "Reconciling",
    "CompletingRebalance",
    "Dead",
    "PreparingRebalance",
)
TYPES = ("Consumer", "Classic")

PARSER = Parser(
    "kafka-consumer-groups",
    "List, describe, reset and delete groups of consumers and their offsets.",
    [
        BOOTSTRAP,
        COMMAND_CONFIG,
        Option("group", "The group to act on; may be repeated.", "consumer group"),
        Option("all-groups", "Act on all groups."),
        Option("topic", "A topic, or some of its partitions as topic:0,1; repeatable.", "topic"),
        Option("all-topics", "Everything that the group has committed (--reset-offsets)."),
        Option("list", "List the groups."),
        Option("describe", "Show offsets and lag, or --members, or --state, of a group."),
        Option("members", "With --describe: the members of the group."),
        Option("offsets", "With --describe: offsets and lag; this is the default."),
        Option("state", "With --describe or --list: states; with --list also a filter.",
               "states", optional=True),
        Option("type", "With --list: types, and a filter.", "types", optional=True),
        Option("verbose", "With --describe: more columns."),
        Option("delete", "Delete groups with everything they have committed."),
        Option("delete-offsets", "Forget what a group has committed for topics."),
        Option("reset-offsets", "Move the offsets of groups that have no members."),
        Option("dry-run", "With --reset-offsets: only show the new offsets; the default."),
        Option("execute", "With --reset-offsets: commit the new offsets."),
        Option("export", "With --reset-offsets: print the new offsets as CSV."),
        Option("to-offset", "Reset to this offset.", "offset", int),
        Option("to-earliest", "Reset to the first records that are still there."),
        Option("to-latest", "Reset to the end."),
        Option("to-current", "Reset to what is committed, or to the end."),
        Option("to-datetime", "Reset to a time: YYYY-MM-DDThh:mm:ss.sss", "datetime"),
        Option("by-duration", "Reset to so long ago: PnDTnHnMnS", "duration"),
        Option("shift-by", "Move by so many records, back when negative.", "number", int),
        Option("from-file", "Reset to the offsets in a CSV file.", "path"),
        Option("validate-regex", "Check a regular expression in RE2's syntax.", "regex"),
        Option("timeout", "How long to wait for an answer, in ms.", "timeout (ms)", int, "30000"),
    ],
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """The tool."""
    options = PARSER.parse(arguments)
    check_options(options)
    if options.has("validate-regex"):
        return validate_regex(options.required("validate-regex"))
    bootstrap = bootstrap_of(options)
    try:
        config = {}
        if options.has("command-config"):
            config = read_properties(options.required("command-config"))
        timeout = max(options.integer("timeout") or 0, 1) / 1000
        with Groups(
            bootstrap, timeout=timeout, client_id="kafka-consumer-groups", config=config
        ) as groups:
            for name, action in _DONE_BY.items():
                if options.has(name):
                    return action(groups, options)
    except ValueError as error:
        raise _failed(str(error)) from None
    except KafkaError as error:
        reason = spell_error(error)
        if unreachable(error):
            reason = f"no broker answers at {bootstrap} ({error.message}); check --bootstrap-server"
        elif error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            reason = error.message or sentence(error.code)
        raise _failed(reason) from None
    return 0


def unreachable(error: KafkaError) -> bool:
    """Whether nobody was there to ask."""
    return error.code in (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)


def _failed(reason: str) -> Failure:
    return Failure(f"\nError: Executing consumer group command failed due to {reason}", out=True)


# -- is the command line one


def check_options(options: Options) -> None:
    """Refuse what makes no sense, in Kafka's words and order."""
    _check_available(options, ("members", "verbose", "offsets"), "describe")
    _check_available(options, ("state",), "describe", "list")
    _check_available(options, ("type",), "list")
    chosen = [name for name in _ACTIONS if options.has(name)]
    if options.has("describe"):
        _check_group(options, "describe")
        given = [name for name in ("members", "offsets", "state") if options.has(name)]
        if len(given) > 1:
            raise UsageError(
                "Option [describe] takes at most one of these options: "
                "[members], [offsets], [state]"
            )
        if options.values("state"):
            raise UsageError("Option [describe] does not take a value for [state]")
    if options.has("delete"):
        _check_group(options, "delete")
        if options.has("topic"):
            raise UsageError(
                "The consumer does not support topic-specific offset deletion from a consumer "
                "group."
            )
    if options.has("delete-offsets") and not (options.has("group") and options.has("topic")):
        raise UsageError("Option [delete-offsets] takes the following options: [topic], [group]")
    if options.has("reset-offsets"):
        _check_reset(options)
    check_excluded(options, "group", "all-groups", "list")
    check_excluded(options, "topic", "list", "describe")
    if len(chosen) != 1:
        raise UsageError(
            "Command must include exactly one action: " + ", ".join(f"--{a}" for a in _ACTIONS)
        )


def _check_available(options: Options, names: Sequence[str], *actions: str) -> None:
    for name in names:
        if options.has(name) and not any(options.has(action) for action in actions):
            raise UsageError(
                f"Option(s) [{name}] are unavailable given other options on the command line"
            )


def _check_group(options: Options, action: str) -> None:
    if not options.has("group") and not options.has("all-groups"):
        raise UsageError(f"Option [{action}] takes one of these options: [group], [all-groups]")


def _check_reset(options: Options) -> None:
    if options.has("dry-run") and options.has("execute"):
        raise UsageError("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not options.has("dry-run") and not options.has("execute"):
        print(
            "WARN: No action will be performed as the --execute option is missing. In version "
            "5.0, this command will require either --dry-run or --execute to be specified. You "
            "should add the --dry-run option explicitly if you are scripting this command and "
            "want to keep the current default behavior without prompting.",
            file=sys.stderr,
        )
    if not options.has("group") and not options.has("all-groups"):
        raise UsageError("Option [reset-offsets] takes one of these options: [all-groups], [group]")
    for name in _SCENARIOS:
        check_excluded(options, name, *(other for other in _SCENARIOS if other != name))
    if not any(options.has(name) for name in _SCENARIOS):
        names = ", ".join(f"[{name}]" for name in _SCENARIOS)
        raise UsageError(
            f"Option '[reset-offsets]' requires one of the following scenarios: [{names}]"
        )
    if not any(options.has(name) for name in ("all-topics", "topic", "from-file")):
        raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")


# -- what it does


def list_groups(groups: Groups, options: Options) -> int:
    """--list."""
    types = _filter(options.value("type"), TYPES, "types")
    states = _filter(options.value("state"), STATES, "state")
    found = consumer_groups(groups.list_groups(states=states, types=types or TYPES))
    if options.has("type") or options.has("state"):
        for line in tables.listing_lines(
            found, with_type=options.has("type"), with_state=options.has("state")
        ):
            print(line)
    else:
        for each in found:
            print(each.name)
    return 0


def consumer_groups(listed: Sequence[GroupListing]) -> list[GroupListing]:
    """Those that consumers form: not Connect's, and not share or streams groups."""
    return [each for each in listed if of_consumers(each)]


def _filter(given: str | None, allowed: Sequence[str], what: str) -> list[str]:
    if not given:
        return []
    by_name = {name.lower(): name for name in allowed}
    chosen = [by_name.get(name.strip().lower()) for name in given.split(",")]
    known = [name for name in chosen if name is not None]
    if len(known) < len(chosen):
        plural = what if what == "types" else f"{what}s"
        raise UsageError(f"Invalid {what} list '{given}'. Valid {plural} are: {', '.join(allowed)}")
    return known


def describe(groups: Groups, options: Options) -> int:
    """--describe, in one of its three forms."""
    verbose = options.has("verbose")
    for _, group in sorted(groups.describe(*_names(groups, options)).items()):
        if options.has("members"):
            tables.note_state(group)
            tables.show(tables.member_lines(group, verbose=verbose))
        elif options.has("state"):
            tables.note_state(group)
            tables.show(tables.state_lines(group, verbose=verbose))
        else:
            rows = groups.lag(group.name, group)
            tables.note_state(group)
            if rows:
                tables.show(tables.offset_lines(group, rows, verbose=verbose))
    return 0


def _names(groups: Groups, options: Options) -> list[str]:
    if options.has("all-groups"):
        return [each.name for each in consumer_groups(groups.list_groups(types=TYPES))]
    return list(dict.fromkeys(options.values("group")))


def reset(groups: Groups, options: Options) -> int:
    """--reset-offsets: plan for all groups, and then, with --execute, commit."""
    names = _names(groups, options)
    given = _plans_in_file(options, names)
    plans: dict[str, dict[TopicPartition, int]] = {}
    refused = False
    for name in names:
        state = _state(groups, name)
        if state not in ("Empty", "Dead"):
            print(
                f"\nError: Assignments can only be reset if the group '{name}' is inactive, but "
                f"the current state is {state}."
            )
            plans[name] = {}
            refused = True
        elif given is not None and name not in given:
            print(f"\nError: No reset plan for group {name} found")
            plans[name] = {}
            refused = True
        else:
            plans[name] = _planned(groups, name, options, given)
    if options.has("execute"):
        for name, plan in plans.items():
            groups.set_offsets(name, plan)
    if options.has("export"):
        print(resets.format_plans(plans, with_group=len(options.values("group")) != 1))
    else:
        tables.show(tables.reset_lines(plans))
    return 1 if refused else 0


def _state(groups: Groups, name: str) -> str:
    """A group that does not exist yet may be given offsets, as in Kafka."""
    try:
        return groups.describe(name)[name].state
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return "Dead"


def _plans_in_file(
    options: Options, names: Sequence[str]
) -> dict[str, dict[TopicPartition, int]] | None:
    path = options.value("from-file")
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return resets.parse_plans(file.read(), names)
    except OSError:
        raise _failed(f"java.io.IOException: Unable to read file {path}") from None
    except ValueError as error:
        raise _failed(f"{path}: {error}") from None


def _planned(
    groups: Groups,
    name: str,
    options: Options,
    given: dict[str, dict[TopicPartition, int]] | None,
) -> dict[TopicPartition, int]:
    try:
        partitions: list[TopicPartition] = []
        if options.has("all-topics"):
            partitions = list(groups.offsets(name))
        elif options.has("topic"):
            partitions = resets.scope(groups.topics, options.values("topic"))
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            text = f"{sentence(error.code)} ({error.message}; check --topic)"
            raise KafkaError(error.code, text) from None
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        plan = resets.plan_reset(groups, name, partitions, _target(options, name, given))
    except ValueError as error:
        raise UsageError(str(error)) from None
    for tp in plan.too_young:
        print(
            f"\nWarn: Partition {tp.partition} from topic {tp.topic} is empty. Falling back to "
            f"latest known offset."
        )
    return dict(plan.offsets)


def _target(
    options: Options, name: str, given: dict[str, dict[TopicPartition, int]] | None
) -> resets.Target:
    if given is not None:
        return resets.ToGiven(given[name])
    for plain, target in (
        ("to-earliest", resets.ToEarliest()),
        ("to-latest", resets.ToLatest()),
        ("to-current", resets.ToCurrent()),
    ):
        if options.has(plain):
            return target
    offset, shift = options.integer("to-offset"), options.integer("shift-by")
    if offset is not None:
        return resets.ToOffset(offset)
    if shift is not None:
        return resets.ShiftBy(shift)
    try:
        if options.has("to-datetime"):
            return resets.ToTime(resets.parse_datetime(options.required("to-datetime")))
        span = resets.parse_duration(options.required("by-duration"))
    except ValueError as error:
        raise _failed(str(error)) from None
    return resets.ToTime(time.time_ns() // 1_000_000 - int(span.total_seconds() * 1000))


def delete(groups: Groups, options: Options) -> int:
    """--delete."""
    outcomes = groups.delete(*_names(groups, options))
    done = [name for name, code in outcomes.items() if code is ErrorCode.NONE]
    failed = {name: code for name, code in outcomes.items() if code is not ErrorCode.NONE}
    quoted = ", ".join(f"'{name}'" for name in done)
    if not failed:
        print(f"Deletion of requested consumer groups ({quoted}) was successful.")
        return 0
    print("\nError: Deletion of some consumer groups failed:")
    for name, code in sorted(failed.items()):
        print(f"* Group '{name}' could not be deleted due to: {spelled(code)}")
    if done:
        print(f"\nThese consumer groups were deleted successfully: {quoted}")
    return 1


def delete_offsets(groups: Groups, options: Options) -> int:
    """--delete-offsets."""
    name = options.required("group")
    partitions: list[TopicPartition] = []
    outcomes: dict[tuple[str, int], str] = {}
    for argument in options.values("topic"):
        try:
            partitions += resets.scope(groups.topics, [argument])
        except ValueError as error:
            raise UsageError(str(error)) from None
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            outcomes[argument, -1] = f"Error: {spelled(error.code)}"
    trouble = "Encountered some partition-level error, see the follow-up details."
    try:
        for tp, code in groups.delete_offsets(name, dict.fromkeys(partitions)).items():
            failed = code is not ErrorCode.NONE
            outcomes[tp] = f"Error: {spelled(code)}" if failed else "Successful"
    except KafkaError as error:
        if unreachable(error):
            raise
        trouble = sentence(error.code)
        outcomes.update(dict.fromkeys(partitions, f"Error: {spelled(error.code)}"))
    failures = any(outcome != "Successful" for outcome in outcomes.values())
    if failures:
        print(f"\nError: {trouble}")
    else:
        print(f"Request succeeded for deleting offsets from group {name}.")
    tables.show(tables.outcome_lines(outcomes))
    return 1 if failures else 0


def validate_regex(pattern: str) -> int:
    """--validate-regex: what the broker will say to a subscription by pattern."""
    from ottla.coordinator.group.patterns import InvalidPattern, check

    try:
        check(pattern)
    except InvalidPattern as error:
        # Ours names the pattern, or a part of it, after a colon; Java's does not.
        reason = str(error).partition(":")[0]
        if reason in ("missing )", "missing ]"):
            reason = f"missing closing {reason[-1]}"
        print(f"The regular expression `{pattern}` is invalid: {reason}.")
    else:
        print(f"The regular expression `{pattern}` is valid.")
    return 0


_DONE_BY = {
    "list": list_groups,
    "describe": describe,
    "reset-offsets": reset,
    "delete": delete,
    "delete-offsets": delete_offsets,
}
