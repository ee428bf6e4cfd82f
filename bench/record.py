"""Writes what a run has found: JSON, Markdown and SVG, and the tables in docs/performance.md.

What belongs to one sheet is replaced together: a run of the rows of a cluster leaves what is
recorded of a single broker as it is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import TYPE_CHECKING

from bench import chart, table
from bench.commands import CommandSession
from bench.compaction import CompactionSession, keys_for
from bench.figures import Part, Sheet
from bench.groups import GroupSession
from bench.maven import CACHE, ROOT
from bench.restarted import RestartedSession
from bench.rows import FULL
from bench.split import SplitSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.figures import Outcome
    from bench.machine import Machine
    from bench.rows import Sizes

RESULTS = ROOT / "bench" / "results"
SCRATCH = CACHE / "bench"
PERFORMANCE = ROOT / "docs" / "performance.md"


@dataclass(frozen=True, slots=True)
class Check:
    """A correctness check beside the figures."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Spent:
    """How long the sessions of a part took, all its rounds and both brokers together."""

    part: Part
    rounds: int
    minutes: float


@dataclass(frozen=True, slots=True)
class Report:
    """One whole run."""

    day: date
    machine: Machine
    rounds: int
    minutes: float
    sizes: Sizes
    outcomes: Sequence[Outcome]
    checks: Sequence[Check]
    failures: Sequence[str]
    spent: Sequence[Spent] = ()

    def markdown(self) -> str:
        cold = self.sizes.cold_bytes / 1e9
        notes = {
            Part.BROKER: f"Evicted data: {cold:g} GB read from the disk by another consumer "
            "meanwhile.",
            Part.RECORDS: "Records with a key and a value of words; the rows of produce above need "
            "none of them looked at.",
            Part.COMPACTION: f"{keys_for(self.sizes.compacted_bytes) / 1e6:g} million keys, each "
            f"twice in {self.sizes.compacted_bytes / 1e9:.3g} GB; "
            f"{_sentence(CompactionSession.SETTINGS)} on both brokers.",
            Part.GROWTH: "A start ends with an acknowledged record in the last partition.",
            Part.LARGE_GROWTH: "The same with more partitions, once.",
            Part.OFFSETS: f"{self.sizes.restarted_groups:,} groups; "
            f"{_sentence(RestartedSession.SETTINGS)} on both brokers.",
            Part.GROUPS: f"{_sentence(GroupSession.SETTINGS)} on both brokers.",
            Part.TRANSACTIONS: "One librdkafka producer, one transaction after the other.",
            Part.CLUSTER_TRANSACTIONS: "The same with three replicas and `min.insync.replicas=2`.",
            Part.COMMANDS: "From the start of the process to its end, Apache's tool at Apache "
            f"Kafka, ours at Ottla; {_sentence(CommandSession.SETTINGS)} on both brokers.",
            Part.CLUSTER: "Three brokers on one machine, three replicas, `acks=all`, "
            "`min.insync.replicas=2`; Apache Kafka's are combined KRaft nodes, Ottla's have a "
            f"ZooKeeper. The follower missed {self.sizes.catch_up_bytes / 1e9:g} GB.",
            Part.PROCESSES: "Apache Kafka's one broker stands beside every number of processes; "
            f"{_sentence(SplitSession.SETTINGS)} on both brokers.",
        }
        lines = [
            f"Measured on {self.day.isoformat()}: {self.rounds} alternating rounds, medians with "
            f"the range of all samples, {self.minutes:.0f} minutes. {self.machine.sentence()}",
            "",
            "`ratio` is Ottla's median over Apache Kafka's.",
        ]
        for part in Part:
            outcomes = [outcome for outcome in self.outcomes if outcome.row.part is part]
            if outcomes:
                note = notes[part]
                for each in self.spent:
                    if each.part is part:
                        rounds = "one round" if each.rounds == 1 else f"{each.rounds} rounds"
                        note += f" {each.minutes:.0f} minutes, {rounds}."
                lines += ["", f"## {part.value}", "", table.markdown(outcomes), "", note]
        if self._reduced:
            lines += ["", "The sizes of this run were reduced: it shows that things work, no more."]
        if self.checks:
            lines += ["", "| check | | |", "|---|---|---|"]
            lines += [
                f"| {check.name} | {'passed' if check.passed else '**failed**'} | {check.detail} |"
                for check in self.checks
            ]
        return "\n".join(lines) + "\n"

    @property
    def _reduced(self) -> bool:
        """Whether anything was smaller than in a whole run; the part on demand has no one size."""
        return replace(self.sizes, large_growth_partitions=FULL.large_growth_partitions) != FULL

    def json(self) -> str:
        rows = [
            {
                "key": outcome.row.key,
                "title": outcome.row.title,
                "unit": outcome.row.unit,
                "better": outcome.row.better.name.lower(),
                "target": outcome.row.target,
                "limit": outcome.row.limit,
                "part": outcome.row.part.name.lower(),
                "kafka": outcome.kafka,
                "ottla": outcome.ottla,
                "kafka_median": outcome.kafka_median if outcome.kafka else None,
                "ottla_median": outcome.ottla_median if outcome.ottla else None,
                "ratio": outcome.ratio if outcome.measured else None,
                "reached": outcome.reached,
            }
            for outcome in self.outcomes
        ]
        whole = {
            "day": self.day.isoformat(),
            "machine": asdict(self.machine),
            "rounds": self.rounds,
            "minutes": round(self.minutes, 1),
            "parts": {
                each.part.name.lower(): {"rounds": each.rounds, "minutes": round(each.minutes, 1)}
                for each in self.spent
            },
            "sizes": asdict(self.sizes),
            "rows": rows,
            "checks": [asdict(check) for check in self.checks],
            "failures": list(self.failures),
        }
        return json.dumps(whole, indent=2) + "\n"

    def svg(self) -> str:
        subtitle = (
            f"medians of {self.rounds} alternating rounds, {self.machine.cores} cores, "
            f"{self.day.isoformat()}"
        )
        # Commands take a line of the chart each and say the same: they are left to their table.
        shown = [outcome for outcome in self.outcomes if outcome.row.part is not Part.COMMANDS]
        return chart.svg(shown, subtitle)

    def sheets(self) -> dict[Sheet, Report]:
        """The report of each sheet of which there is something; the checks are of one broker."""
        found = {}
        for sheet in Sheet:
            outcomes = [each for each in self.outcomes if each.row.part.sheet is sheet]
            checks = self.checks if sheet is Sheet.ONE_BROKER else ()
            spent = [each for each in self.spent if each.part.sheet is sheet]
            if outcomes or checks:
                found[sheet] = replace(
                    self,
                    rounds=max((each.rounds for each in spent), default=self.rounds),
                    minutes=sum(each.minutes for each in spent),
                    outcomes=outcomes,
                    checks=checks,
                    spent=spent,
                )
        return found


def write(report: Report, *, official: bool) -> list[Path]:
    """Into the recorded results or, for a partial run, into the cache, where nobody cites it.

    Returns the files that were written, without their endings.
    """
    folder = RESULTS if official else SCRATCH
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for sheet, each in report.sheets().items():
        stem = folder / sheet.value
        stem.with_suffix(".json").write_text(each.json())
        stem.with_suffix(".md").write_text(each.markdown())
        stem.with_suffix(".svg").write_text(each.svg())
        if official:
            text = each.markdown()
            if sheet is not Sheet.ONE_BROKER:  # whose picture stands at the head of the page
                text += f"\n![ratios](../bench/results/{sheet.value}.svg)\n"
            document = PERFORMANCE.read_text()
            PERFORMANCE.write_text(table.replace_between(document, sheet.place, text))
        written.append(stem)
    return written


def _sentence(settings: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in settings.items())
