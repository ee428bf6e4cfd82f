"""kafka-delete-records: throw away the beginning of partitions, by a file of offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ottla.cli.kafka_compat.java_errors import spelled
from ottla.cli.kafka_compat.json_files import is_integer, is_list, is_name, load
from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Failure,
    Option,
    Parser,
    check_required,
    connect,
    explain,
)
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition

PARSER = Parser(
    "kafka-delete-records",
    "Delete the records before an offset in each partition that a file names.",
    [
        BOOTSTRAP,
        COMMAND_CONFIG,
        Option(
            "offset-json-file",
            'The file (required): {"partitions": [{"topic": "t", "partition": 0, "offset": 5}], '
            '"version": 1}; offset -1 deletes everything.',
            "FILE",
        ),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-delete-records."""
    options = PARSER.parse(arguments)
    check_required(options, "bootstrap-server", "offset-json-file")
    before = read_offsets(options.required("offset-json-file"))
    with connect(options) as admin:
        print("Executing records delete operation")
        answers = admin.delete_records(before)
    print("Records delete operation completed:")
    for partition in before:
        answer = answers[partition]
        if isinstance(answer, KafkaError):
            print(f"partition: {partition}\terror: {spelled(answer.code, explain(answer))}")
        else:
            print(f"partition: {partition}\tlow_watermark: {answer}")
    return 0


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """What a file says to delete; Failure in Kafka's words when it makes no sense."""
    try:
        document = load(path)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; check the path") from None
    except ValueError:
        raise Failure("The input string is not a valid JSON") from None
    if not isinstance(document, dict):
        raise Failure(f"{path}: expected an object with a list of partitions; correct the file")
    version = document.get("version", 1)
    if version != 1:
        raise Failure(f"Not supported version field value {version}")
    if "partitions" not in document:
        raise Failure("Missing partitions field")
    if not is_list(document["partitions"]):
        raise Failure(f"{path}: partitions has to be a list; correct the file")
    found: list[tuple[TopicPartition, int]] = []
    for each in document["partitions"]:
        fields = each if isinstance(each, dict) else {}
        topic, partition, offset = (fields.get(n) for n in ("topic", "partition", "offset"))
        if not is_name(topic) or not is_integer(partition) or not is_integer(offset, 64):
            raise Failure(
                f"{path}: every partition needs a topic (text), a partition and an offset "
                f"(numbers); correct the file"
            )
        found.append((TopicPartition(topic, partition), offset))
    twice = [tp for tp, number in Counter(tp for tp, _ in found).items() if number > 1]
    if twice:
        names = ",".join(map(str, twice))
        raise Failure(f"Offset json file contains duplicate topic partitions: {names}")
    return dict(found)
