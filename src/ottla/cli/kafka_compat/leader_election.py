"""kafka-leader-election: preferred or unclean leaders for one partition, some, or all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ottla.cli.kafka_compat.java_errors import spell_error
from ottla.cli.kafka_compat.json_files import is_integer, is_name, load
from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Failure,
    Option,
    Options,
    Parser,
    connect,
)
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition

CHOICES = ("topic", "all-topic-partitions", "path-to-json-file")
KINDS = ("preferred", "unclean")

PARSER = Parser(
    "kafka-leader-election",
    "Elect leaders: the preferred replicas, or whoever is there.",
    [
        BOOTSTRAP,
        COMMAND_CONFIG,
        Option("admin.config", "The old name of --command-config.", "FILE"),
        Option(
            "path-to-json-file",
            'The partitions: {"partitions": [{"topic": "t", "partition": 1}]}.',
            "FILE",
        ),
        Option("topic", "The topic of one partition; needs --partition.", "topic"),
        Option("partition", "Its number; needs --topic.", "number", int),
        Option("all-topic-partitions", "All partitions that need such an election."),
        Option(
            "election-type",
            "preferred: the first replica leads, where it does not (required). unclean: a "
            "partition without a leader gets any replica that is there, with what it has.",
            "preferred|unclean",
        ),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-leader-election."""
    options = PARSER.parse(arguments)
    _check(options)
    unclean = _is_unclean(options.required("election-type"))
    partitions = _partitions(options)
    if options.has("admin.config"):
        print(
            "Option --admin.config has been deprecated and will be removed in a future version. "
            "Use --command-config instead."
        )
    with connect(options) as admin:
        outcomes = admin.elect_leaders(partitions, unclean=unclean)
    kind = "UNCLEAN" if unclean else "PREFERRED"
    elected = [tp for tp, error in outcomes.items() if error is None]
    if elected:
        names = ", ".join(map(str, elected))
        print(f"Successfully completed leader election ({kind}) for partitions {names}")
    needless = [
        tp
        for tp, error in outcomes.items()
        if error is not None and error.code is ErrorCode.ELECTION_NOT_NEEDED
    ]
    if needless:
        print(f"Valid replica already elected for partitions {', '.join(map(str, needless))}")
    failed = {
        tp: error for tp, error in outcomes.items() if error is not None and tp not in needless
    }
    for tp, error in failed.items():
        print(
            f"Error completing leader election ({kind}) for partition: {tp}: {spell_error(error)}"
        )
    if failed:
        raise Failure(f"{len(failed)} replica(s) could not be elected")
    return 0


def _check(options: Options) -> None:
    missing = [name for name in ("bootstrap-server", "election-type") if not options.has(name)]
    if missing:
        raise Failure(f"Missing required option(s): {', '.join(missing)}")
    if sum(options.has(name) for name in CHOICES) != 1:
        raise Failure(
            f"One and only one of the following options is required: {', '.join(CHOICES)}"
        )
    if options.has("topic") and not options.has("partition"):
        raise Failure("Missing required option(s): partition")
    if options.has("partition") and not options.has("topic"):
        raise Failure("Option partition is only allowed if topic is used")


def _is_unclean(kind: str) -> bool:
    if kind.lower() not in KINDS:
        raise Failure(f"--election-type {kind}: expected {' or '.join(KINDS)}")
    return kind.lower() == "unclean"


def _partitions(options: Options) -> list[TopicPartition] | None:
    if options.has("topic"):
        return [TopicPartition(options.required("topic"), options.integer("partition") or 0)]
    if options.has("path-to-json-file"):
        return read_partitions(options.required("path-to-json-file"))
    return None


def read_partitions(path: str) -> list[TopicPartition]:
    """The partitions that a file lists; Failure in Kafka's words when it makes no sense."""
    try:
        document = load(path)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; check the path") from None
    except ValueError:
        raise Failure("Replica election data is empty") from None
    if not isinstance(document, dict) or not isinstance(document.get("partitions"), list):
        raise Failure('Replica election data is missing "partitions" field')
    found: list[TopicPartition] = []
    for each in document["partitions"]:
        fields = each if isinstance(each, dict) else {}
        topic, partition = fields.get("topic"), fields.get("partition")
        if not is_name(topic) or not is_integer(partition):
            raise Failure(
                f"{path}: every partition needs a topic (text) and a partition (number); "
                f"correct the file"
            )
        found.append(TopicPartition(topic, partition))
    twice = sorted(str(tp) for tp, number in Counter(found).items() if number > 1)
    if twice:
        raise Failure(f"Replica election data contains duplicate partitions: {','.join(twice)}")
    return found
