"""Where Apache's tool and ours differ: what each printed, without what no two runs have in common.

Three differences are by design and are taken away before anything is compared; docs/tools.md
tells them to the user. Of stderr only the first line counts: Apache's tools go on with their whole
help or a stack trace, ours end there and point at `--help`; a trace without a word before it need
not be answered where stdout has told what is wrong. The name of the Java exception in front of a
message is not compared. Where Apache's says only that a command failed, ours adds why.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING

from bench.tools.script import SIDES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.tools.script import Step

# What differs between two topics, groups or members that were made in the same way.
VOLATILE = (
    (re.compile(r"TopicId: [\w-]{22}"), "TopicId: TOPIC-ID"),
    (re.compile(r"(CreateTime|LogAppendTime): ?\d{13}"), r"\1: TIME"),
    (re.compile(r'"timestamp":\d+'), '"timestamp":TIME'),
    (re.compile(r'"avg_throughput":[\d.E-]+'), '"avg_throughput":N'),
    (re.compile(r'"(size|usableBytes)":\d+'), r'"\1":BYTES'),
    (re.compile(r"directory\.id=[\w-]{22}"), "directory.id=DIRECTORY-ID"),
    (re.compile(r"app-[0-9a-f-]{36}"), "app-MEMBER-ID"),
    (re.compile(r"(?<= )[\w+/-]{22}(?= +(one|/127))"), "MEMBER-ID"),
)
# What differs from one second to the next, whoever looks.
ALWAYS = (
    (re.compile(r'"usableBytes":\d+'), '"usableBytes":BYTES'),
    (re.compile(r"\A[\w-]{22}\n\Z"), "UUID\n"),
    # How many minutes a transaction hangs, after the time of its last record.
    (re.compile(r"(?<=\t\d{13}\t)\d+ *(?=\t)"), "MINUTES"),
    # Kafka's own metadata log, which we have not.
    (re.compile(r"^Bootstrap metadata: .*\n", re.MULTILINE), ""),
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}")
_FIGURE = re.compile(r"(?<![\w.])\d+(\.\d+)?(?!\w|\.\d|th)")
_PADDING = re.compile(r" +(?=\t)")
_WORD = re.compile(r"[^\s,\[\]\"]+")
_EXCEPTION = re.compile(r'^(Exception in thread "main" )?([a-z]+\.[\w.$]+: )*')
_TRACE = re.compile(r"[a-z]+\.[\w.$]+(Exception|Error)\b")
_WHY = re.compile(r"^(Error while executing .*?'): .*")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool did: its exit code and both outputs."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison came to; `detail` is the difference, or the reason of a known one."""

    step: Step
    outcome: str
    """`equal`, `known`, `different` or `stale`: known to differ, and does not."""
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.outcome in ("equal", "known")


def normal(step: Step, answer: Answer, names: Mapping[str, str]) -> dict[str, str]:
    """The three parts of an answer as they are compared."""
    return {
        "exit": f"{answer.code}\n",
        "stdout": _stable(step, answer.stdout, names),
        "stderr": _stable(step, _first_line(step, answer.stderr), names),
    }


def compare(step: Step, apache: Answer, ours: Answer, names: Mapping[str, str]) -> Verdict:
    theirs, mine = normal(step, apache, names), normal(step, ours, names)
    if _TRACE.match(_said(apache.stderr)) and not mine["stderr"]:
        theirs["stderr"] = ""
    parts = {part for part in theirs if theirs[part] != mine[part]}
    known = set(theirs) if "all" in step.differs else set(step.differs)
    if parts - known:
        shown = [_difference(part, theirs[part], mine[part]) for part in theirs if part in parts]
        return Verdict(step, "different", "".join(shown))
    if step.differs and not parts:
        return Verdict(step, "stale", "known to differ, but does not: " + _reasons(step) + "\n")
    return Verdict(step, "known", _reasons(step)) if parts else Verdict(step, "equal")


def _reasons(step: Step) -> str:
    return "; ".join(f"{part}: {reason}" for part, reason in step.differs.items())


def _difference(part: str, theirs: str, mine: str) -> str:
    lines = unified_diff(
        theirs.splitlines(keepends=True),
        mine.splitlines(keepends=True),
        f"{part}, Apache's",
        f"{part}, ours",
        n=1,
    )
    return "".join(line if line.endswith("\n") else line + "\\\n" for line in lines)


def _said(text: str) -> str:
    """The first line that says something."""
    lines = (line for line in text.splitlines() if line.strip() and "SLF4J" not in line)
    return next(lines, "")


def _first_line(step: Step, text: str) -> str:
    said = _said(text).removesuffix(f" (see {step.tool} --help)")
    return _WHY.sub(r"\1", _EXCEPTION.sub("", said)) + "\n" if said else ""


def _stable(step: Step, text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(value, name)
    for pattern, word in ALWAYS:
        text = pattern.sub(word, text)
    if not step.shared:
        for side in SIDES.values():
            text = text.replace(side, "SIDE")
        for pattern, word in VOLATILE:
            text = pattern.sub(word, text)
    if "figures" in step.modes:
        text = _PADDING.sub("", _FIGURE.sub("N", _TIME.sub("TIME", text)))
    if "unordered folders" in step.modes:
        text = "".join(_folders_sorted(line) for line in text.splitlines(keepends=True))
    if "unordered words" in step.modes:
        text = "".join(" ".join(sorted(_WORD.findall(line))) + "\n" for line in text.splitlines())
    if "unordered" in step.modes:
        text = "".join(sorted(text.splitlines(keepends=True)))
    return text


def _folders_sorted(line: str) -> str:
    if not line.startswith("{"):
        return line
    found = json.loads(line.replace(":BYTES", ":0"))
    for broker in found["brokers"]:
        broker["logDirs"].sort(key=lambda each: each["logDir"])
        for folder in broker["logDirs"]:
            folder["partitions"].sort(key=lambda each: each["partition"])
    return json.dumps(found, separators=(",", ":")) + "\n"
