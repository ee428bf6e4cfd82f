"""Apache Kafka's own DumpLogSegments must accept every file that Ottla has written.

A mixed workload is written, the broker stopped, and every segment, index and snapshot handed to the
tool: `--deep-iteration` for the logs, `--verify-index-only` and `--index-sanity-check` for the
indexes. Then the broker is started again, written to, killed with -9, started (it recovers) and
stopped, and all files are judged once more.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import workload
from bench.processes import BenchError, wait_port
from bench.record import Check
from bench.systems import ApacheKafka, Ottla, new_node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.systems import System

_TOOL = "kafka.tools.DumpLogSegments"
_START_TIMEOUT = 60.0
_FILES_AT_ONCE = 400
_RECORD = re.compile(r"^\| offset: ")
_BATCH = re.compile(
    r"^baseOffset: \d+ lastOffset: (?P<last>\d+) count: (?P<count>\d+) .* isvalid: (?P<valid>\w+)$"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tool said about some files."""

    files: int
    batches: int
    records: int
    complaints: tuple[str, ...]


def judge_logs(output: str, errors: str) -> Verdict:
    """Read what `--deep-iteration` printed. Whatever the tool says on stderr is a complaint."""
    complaints = _noise_free(errors)
    files = batches = claimed = records = 0
    for line in output.splitlines():
        if line.startswith("Dumping "):
            files += 1
        elif found := _BATCH.match(line):
            batches += 1
            claimed += int(found["count"])
            if found["valid"] != "true":
                complaints.append(f"invalid batch: {line}")
        elif _RECORD.match(line):
            records += 1
        elif line.startswith("Found ") or "xception" in line:
            complaints.append(line)
    if claimed != records:
        complaints.append(f"batches claim {claimed} records, {records} were found")
    return Verdict(files, batches, records, tuple(complaints))


def judge_indexes(output: str, errors: str) -> Verdict:
    """Read what `--verify-index-only` or `--index-sanity-check` printed."""
    complaints = _noise_free(errors)
    lines = output.splitlines()
    complaints += [line for line in lines if line.startswith("Found ") or "xception" in line]
    files = sum(line.startswith("Dumping ") for line in lines)
    return Verdict(files, 0, 0, tuple(complaints))


def _noise_free(errors: str) -> list[str]:
    """Lines of stderr without the logging library's greeting and without stack frames."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return [line for line in lines if not line.startswith(("SLF4J", "\tat "))]


def dump(kafka: ApacheKafka, data: Path) -> Verdict:
    """Judge every file below a data folder."""
    logs = sorted(data.glob("*/*.log"))
    indexes = sorted([*data.glob("*/*.index"), *data.glob("*/*.timeindex")])
    others = sorted([*data.glob("*/*.snapshot"), *data.glob("*/*.txnindex")])
    if not logs or not indexes:
        raise BenchError("the data folder holds no segments")
    verdicts = [judge_logs(*_run(kafka, part, "--deep-iteration")) for part in _parts(logs)]
    for part in _parts(indexes):
        verdicts.append(judge_indexes(*_run(kafka, part, "--verify-index-only")))
        verdicts.append(judge_indexes(*_run(kafka, part, "--index-sanity-check")))
    verdicts += [judge_indexes(*_run(kafka, part)) for part in _parts(others)]
    return Verdict(
        len(logs) + len(indexes) + len(others),
        sum(verdict.batches for verdict in verdicts),
        sum(verdict.records for verdict in verdicts),
        tuple(complaint for verdict in verdicts for complaint in verdict.complaints),
    )


def _run(kafka: ApacheKafka, files: Iterable[Path], *flags: str) -> tuple[str, str]:
    names = [str(file) for file in files]
    out, err, code = kafka.tool_output(_TOOL, *flags, "--files", ",".join(names))
    if code != 0:
        err += f"\nthe tool ended with code {code}"
    seen = sum(line.startswith("Dumping ") for line in out.splitlines())
    if seen != len(names):
        err += f"\nthe tool looked at {seen} of {len(names)} files"
    return out, err


def _parts(files: list[Path]) -> Iterable[list[Path]]:
    for start in range(0, len(files), _FILES_AT_ONCE):
        yield files[start : start + _FILES_AT_ONCE]


def check(folder: Path, kafka: ApacheKafka, system: System) -> Check:
    """The whole check; `system` writes, Apache's tool reads."""
    node = new_node(folder)
    system.prepare(node, {})
    with system.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        workload.create(node.bootstrap, workload.common_topics())
        workload.fill(node.bootstrap, seed=1)
    stopped = dump(kafka, node.data)
    with system.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        workload.fill(node.bootstrap, seed=2, full_indexes=system is not kafka)
        broker.kill()
    with system.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
    recovered = dump(kafka, node.data)
    complaints = [*stopped.complaints, *recovered.complaints]
    if recovered.records <= stopped.records:
        complaints.append("what was written before the kill is not there")
    for complaint in complaints[:20]:
        print(f"  {complaint}", flush=True)
    detail = (
        f"DumpLogSegments: {stopped.files} files after a clean stop, {recovered.files} after "
        f"kill -9 and recovery, {recovered.batches:,} batches, {recovered.records:,} records, "
        f"{len(complaints)} complaints"
    )
    return Check("segments read by Apache's tool", not complaints, detail)


def main() -> int:
    kafka = ApacheKafka()
    system: System = kafka if "--null" in sys.argv else Ottla()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        found = check(Path(folder), kafka, system)
    print(f"{found.name}: {'passed' if found.passed else 'FAILED'}: {found.detail}")
    return 0 if found.passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as problem:
        sys.exit(f"bench: {problem}")
