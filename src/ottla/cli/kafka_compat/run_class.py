"""kafka-run-class: the tools by the names of their Java classes, today's and former ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

CLASSES: Mapping[str, str] = {
    "org.apache.kafka.tools.BrokerApiVersionsCommand": "kafka-broker-api-versions",
    "org.apache.kafka.tools.ClusterTool": "kafka-cluster",
    "kafka.admin.ConfigCommand": "kafka-configs",
    "org.apache.kafka.tools.consumer.ConsoleConsumer": "kafka-console-consumer",
    "org.apache.kafka.tools.ConsoleProducer": "kafka-console-producer",
    "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand": "kafka-consumer-groups",
    "org.apache.kafka.tools.ConsumerPerformance": "kafka-consumer-perf-test",
    "org.apache.kafka.tools.DeleteRecordsCommand": "kafka-delete-records",
    "kafka.tools.DumpLogSegments": "kafka-dump-log",
    "org.apache.kafka.tools.EndToEndLatency": "kafka-e2e-latency",
    "org.apache.kafka.tools.FeatureCommand": "kafka-features",
    "org.apache.kafka.tools.GetOffsetShell": "kafka-get-offsets",
    "org.apache.kafka.tools.ClientMetricsCommand": "kafka-client-metrics",
    "org.apache.kafka.tools.GroupsCommand": "kafka-groups",
    "org.apache.kafka.tools.LeaderElectionCommand": "kafka-leader-election",
    "org.apache.kafka.tools.LogDirsCommand": "kafka-log-dirs",
    "org.apache.kafka.tools.ReplicaVerificationTool": "kafka-replica-verification",
    "org.apache.kafka.tools.reassign.ReassignPartitionsCommand": "kafka-reassign-partitions",
    "org.apache.kafka.tools.ProducerPerformance": "kafka-producer-perf-test",
    "kafka.Kafka": "kafka-server-start",
    "kafka.tools.StorageTool": "kafka-storage",
    "org.apache.kafka.tools.TopicCommand": "kafka-topics",
    "org.apache.kafka.tools.TransactionsCommand": "kafka-transactions",
    "org.apache.kafka.tools.VerifiableConsumer": "kafka-verifiable-consumer",
    "org.apache.kafka.tools.VerifiableProducer": "kafka-verifiable-producer",
    # as they were called before
    "kafka.admin.BrokerApiVersionsCommand": "kafka-broker-api-versions",
    "kafka.admin.ConsumerGroupCommand": "kafka-consumer-groups",
    "kafka.admin.DeleteRecordsCommand": "kafka-delete-records",
    "kafka.admin.FeatureCommand": "kafka-features",
    "kafka.admin.LeaderElectionCommand": "kafka-leader-election",
    "kafka.admin.ListTopicCommand": "kafka-list-topic",
    "kafka.admin.LogDirsCommand": "kafka-log-dirs",
    "kafka.tools.ReplicaVerificationTool": "kafka-replica-verification",
    "kafka.admin.ReassignPartitionsCommand": "kafka-reassign-partitions",
    "kafka.admin.TopicCommand": "kafka-topics",
    "kafka.admin.TransactionsCommand": "kafka-transactions",
    "kafka.tools.ClusterTool": "kafka-cluster",
    "kafka.tools.ConsoleConsumer": "kafka-console-consumer",
    "kafka.tools.ConsoleProducer": "kafka-console-producer",
    "kafka.tools.ConsumerPerformance": "kafka-consumer-perf-test",
    "kafka.tools.EndToEndLatency": "kafka-e2e-latency",
    "kafka.tools.GetOffsetShell": "kafka-get-offsets",
    "kafka.tools.ProducerPerformance": "kafka-producer-perf-test",
}
"""Java's name for each tool."""


def main(arguments: Sequence[str]) -> int:
    """kafka-run-class [-daemon] [-name NAME] [-loggc] CLASS ARGUMENTS…"""
    from ottla.cli.kafka_compat import TOOLS, run

    words = list(arguments)
    while words and words[0].startswith("-"):
        # Switches for the Java machine, which we do not have.
        del words[: 2 if words[0] in ("-name", "--name") else 1]
    if not words:
        print(
            "USAGE: kafka-run-class [-daemon] [-name servicename] [-loggc] classname [opts]",
            file=sys.stderr,
        )
        return 1
    tool = CLASSES.get(words[0])
    if tool is None or tool not in TOOLS:
        print(
            f"Error: Could not find or load main class {words[0]}; known are "
            + ", ".join(sorted(java for java, name in CLASSES.items() if name in TOOLS)),
            file=sys.stderr,
        )
        return 1
    return run(tool, words[1:])
