"""The performance and verification tools against what Apache Kafka 4.2's own print.

As in test_group_tools.py, the files to compare with are written by Apache's tools:

    OTTLA_TEST_BOOTSTRAP=127.0.0.1:9092 OTTLA_GOLDEN_CLASSPATH='kafka/libs/*' \
        pytest tests/conformance/test_perf_tools.py

Figures differ from run to run and are compared as `N`; what stands around them is not.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.client.admin import Admin
from ottla.client.groups import Groups
from ottla.client.producer import Producer
from ottla.model.ids import TopicPartition

GOLDEN = Path(__file__).parents[1] / "unit/cli/kafka_compat/golden/perf"
CLASSPATH = os.environ.get("OTTLA_GOLDEN_CLASSPATH")
CLASSES = {
    "kafka-producer-perf-test": "ProducerPerformance",
    "kafka-consumer-perf-test": "ConsumerPerformance",
    "kafka-e2e-latency": "EndToEndLatency",
    "kafka-verifiable-producer": "VerifiableProducer",
    "kafka-verifiable-consumer": "VerifiableConsumer",
}


class Case(NamedTuple):
    name: str
    tool: str
    arguments: str
    code: int = 0


PRODUCE = "--bootstrap-server ADDRESS --topic TOPIC --num-records 50 --throughput -1"

CASES = (
    Case("produce", "kafka-producer-perf-test", PRODUCE + " --record-size 100"),
    Case("produce-counting", "kafka-producer-perf-test", PRODUCE + " --payload-monotonic"),
    Case("produce-file", "kafka-producer-perf-test", PRODUCE + " --payload-file FILE"),
    Case("produce-props", "kafka-producer-perf-test",
         "--topic TOPIC --num-records 50 --throughput 1000 --record-size 10 --producer-props "
         "bootstrap.servers=ADDRESS acks=1 buffer.memory=33554432"),
    Case("produce-warmup", "kafka-producer-perf-test",
         PRODUCE + " --record-size 100 --warmup-records 20"),
    Case("consume", "kafka-consumer-perf-test",
         "--bootstrap-server ADDRESS --topic TOPIC --num-records 100"),
    Case("consume-too-few", "kafka-consumer-perf-test",
         "--bootstrap-server ADDRESS --topic TOPIC --messages 1000 --timeout 1500 --hide-header"),
    Case("consume-detailed", "kafka-consumer-perf-test",
         "--bootstrap-server ADDRESS --topic TOPIC --num-records 100 --show-detailed-stats"),
    Case("latency", "kafka-e2e-latency",
         "--bootstrap-server ADDRESS --topic TOPIC --num-records 20 --producer-acks all "
         "--record-size 100"),
    Case("latency-positional", "kafka-e2e-latency", "ADDRESS TOPIC 20 1 100"),
    Case("latency-wrong-acks", "kafka-e2e-latency", "ADDRESS TOPIC 20 0 100", 1),
    Case("verifiable-produce", "kafka-verifiable-producer",
         "--bootstrap-server ADDRESS --topic TOPIC --max-messages 3 --value-prefix 7 "
         "--repeating-keys 2"),
    Case("verifiable-consume", "kafka-verifiable-consumer",
         "--bootstrap-server ADDRESS --topic TOPIC --max-messages 100 --group-id TOPIC --verbose"),
)  # fmt: skip


@pytest.fixture
def loaded_topic(bootstrap: str, unique: Callable[[], str], answering: Callable[..., None]) -> str:
    """A topic with one partition and a hundred records."""
    name = unique()
    with Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=1)
    answering(name, 1)
    with Producer(bootstrap) as producer:
        for number in range(100):
            producer.post(name, b"%d" % number, key=b"k")
    return name


def normal(text: str, topic: str, file: Path) -> str:
    text = re.sub(r"SLF4J.*\n", "", text)
    text = text.replace(str(file), "FILE").replace(topic, "TOPIC")
    text = re.sub(r'"avg_throughput":[\d.E-]+', '"avg_throughput":N', text)
    if '"name"' in text:
        return re.sub(r'"timestamp":\d+', '"timestamp":N', text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}", "TIME", text)
    return re.sub(r"(?<![\w.])\d+(\.\d+)?(?!\w|\.\d|th)", "N", text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_prints_what_apache_kafka_prints(
    bootstrap: str, loaded_topic: str, tmp_path: Path, case: Case
) -> None:
    file = tmp_path / "payloads.txt"
    file.write_text("one\ntwo\n", encoding="utf-8")
    names = {"ADDRESS": bootstrap, "TOPIC": loaded_topic, "FILE": str(file)}
    arguments = re.sub("ADDRESS|TOPIC|FILE", lambda found: names[found[0]], case.arguments)
    command = [sys.executable, "-m", "ottla.cli.kafka_compat", case.tool]
    if CLASSPATH:
        java = ["java", "-XX:TieredStopAtLevel=1", "-cp", CLASSPATH]
        command = [*java, f"org.apache.kafka.tools.{CLASSES[case.tool]}"]
    done = subprocess.run(
        [*command, *arguments.split()], capture_output=True, text=True, timeout=250, check=False
    )
    found = f"$ {case.tool} {case.arguments}\n" + normal(done.stdout, loaded_topic, file)
    path = GOLDEN / f"{case.name}.txt"
    if CLASSPATH:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    assert found == path.read_text(encoding="utf-8"), done.stderr
    assert done.returncode == case.code, done.stderr


@pytest.mark.skipif(bool(CLASSPATH), reason="about our own tools")
def test_a_verifiable_consumer_that_is_told_to_stop_leaves_its_group_and_says_so(
    bootstrap: str, loaded_topic: str
) -> None:
    arguments = ["--bootstrap-server", bootstrap, "--topic", loaded_topic, "--group-id"]
    command = [sys.executable, "-m", "ottla.cli.kafka_compat", "kafka-verifiable-consumer"]
    with subprocess.Popen(
        [*command, *arguments, loaded_topic], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        seen: list[str] = []
        for line in process.stdout:
            said = json.loads(line)
            seen.append(said["name"])
            # The records may come, and be committed, in several parts.
            if seen[-1] == "offsets_committed" and said["offsets"][0]["offset"] == 100:
                process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    assert seen[:2] == ["startup_complete", "partitions_assigned"]
    assert seen[-2:] == ["partitions_revoked", "shutdown_complete"]
    with Groups(bootstrap) as groups:
        assert groups.describe(loaded_topic)[loaded_topic].idle
        assert groups.offsets(loaded_topic)[TopicPartition(loaded_topic, 0)].offset == 100
