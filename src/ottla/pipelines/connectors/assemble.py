"""From what a pipeline is to what its batches go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.pipelines.connectors.contract import Sink
from ottla.pipelines.connectors.errors.letters import LetterTopic
from ottla.pipelines.connectors.process import Way
from ottla.pipelines.connectors.spec.values import PipelineSpec
from ottla.pipelines.connectors.transform import carry_code, transform_of

SESSION: Final[Mapping[str, str]] = {
    # A batch that is replayed must give every task the rows that it had: Spark may not join
    # partitions of a shuffle by what it has seen at run time.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # A day begins at the same moment wherever a pipeline runs, and in its tests.
    "spark.sql.session.timeZone": "UTC",
}
"""What the session of every pipeline has, whoever made it, unless the file's `spark` says more."""


def way_of(spec: PipelineSpec) -> Way:
    """The way of a pipeline's batches; nothing is connected to yet."""
    if callable(spec.transform):
        carry_code(spec.transform)
    sink = spec.sink.make()
    return Way(
        source=spec.source.make(),
        transform=transform_of(spec.transform, keys_of(sink)),
        sink=sink,
        policy=spec.on_error,
        letters=letters_of(spec),
        # Nobody knows what a sink of the user's own, or a format of Spark, looks at first.
        counts_apart=spec.sink.name in ("python", "console", "spark"),
    )


def keys_of(sink: Sink) -> Sequence[str]:
    """Columns that a sink wants to be the same whenever a batch is run; a sink need not say."""
    asked = getattr(sink, "keys", None)
    return () if asked is None else tuple(asked())


def letters_of(spec: PipelineSpec) -> LetterTopic | None:
    """The dead-letter topic, if there is one."""
    topic = spec.on_error.dead_letter
    if topic is None:
        return None
    return LetterTopic(topic, spec.bootstrap, spec.kafka, secrets=spec.secrets)
