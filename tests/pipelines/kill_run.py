"""Three pipelines under kills, until everything has passed; then everything is counted.

    python tests/pipelines/kill_run.py FOLDER                     what `make kills` does
    python tests/pipelines/kill_run.py FOLDER --kills 15 --records 900 --quick   `make test`, too
    … --plant map=finished-first --kill map:driver:after-commit-log    with a mistake planted

A topic into a topic, the same with poison records, and a topic into a table (`kills/pipelines.py`)
run at the same time, each as `ottla pipeline run`, on a Spark with executors as processes of their
own and speculation on. Kills are drawn from a seed (`kills/plan.py`): of tasks, executors, drivers,
the broker and the database, each while a process is held at a named point. What a supervisor would
start again is started again. In the end `kills/judge.py` counts.

FOLDER keeps all of it. A run that was stopped, by Ctrl-C or by kill -9, goes on when the same
command is typed again. After `--minutes` no other kill begins, and what has passed by then is
counted; the next run goes on.

The exit code is 0 if nothing is wrong; 1 if something is, with the seed, what is missing or there
twice, and the kills before; 3 if it was stopped.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from kills import planted
from kills.environment import Environment
from kills.judge import judge
from kills.lanes import Lane
from kills.pipelines import Shape, shapes
from kills.plan import Kill, draw, parse

STOPPED = 3
NAMES = ("map", "letters", "upsert")


def main() -> int:
    options = _options()
    run = Run(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: run.stop())
    return run.go()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where everything is kept")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=210, help="of all pipelines together")
    parser.add_argument("--records", type=int, default=10_000_000, help="the same")
    parser.add_argument("--batch", type=int, default=20_000, help="records of a batch, at most")
    parser.add_argument("--poison", type=int, default=500, help="one record in so many is poison")
    parser.add_argument("--pipelines", default=",".join(NAMES), help="which of them")
    parser.add_argument("--kill", action="append", default=[], metavar="PIPELINE:VICTIM:POINT",
                        help="these kills in the place of drawn ones")  # fmt: skip
    parser.add_argument("--plant", action="append", default=[], metavar="PIPELINE=MISTAKE",
                        help=f"a mistake to be found: {', '.join(planted.MISTAKES)}")  # fmt: skip
    parser.add_argument("--minutes", type=float, help="begin no kill after so long, and count")
    parser.add_argument("--local", action="store_true", help="without executors of their own")
    parser.add_argument("--quick", action="store_true", help="for a run of a minute")
    return parser.parse_args()


class Run:
    """One process's part of a run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder: Path = options.folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._options = options
        self._same()
        names = options.pipelines.split(",")
        each = -(-options.records // len(names))
        self._shapes = [
            shape
            for shape in shapes(each, poison=options.poison, batch=options.batch)
            if shape.name in names
        ]
        self._chosen = [parse(text) for text in options.kill]
        self._log = self._folder / "kills.jsonl"
        self._done = _read(self._log)
        self._passed = self._folder / "passed"
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._lanes: list[Lane] = []
        self._begun = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def _same(self) -> None:
        """The folder belongs to one run: the same seed, the same records."""
        file = self._folder / "run.json"
        given = {
            name: value
            for name, value in vars(self._options).items()
            if name not in ("folder", "minutes")
        }
        if not file.exists():
            file.write_text(json.dumps(given))
        elif json.loads(file.read_text()) != given:
            sys.exit(f"{self._folder} is of another run: {file.read_text()}")

    # -- the run

    def go(self) -> int:
        if self._passed.exists():
            self._say(f"this run has passed: {len(self._done)} kills, {self._records:,} records")
            return 0
        planting = dict(each.split("=") for each in self._options.plant)
        with Environment(
            self._folder,
            self._shapes,
            quick=self._options.quick,
            local=self._options.local,
            planted=planting,
        ) as environment:
            self._say(f"seed {self._options.seed}, Spark at {environment.master}")
            self._lanes = [self._lane(environment, shape) for shape in self._shapes]
            for lane in self._lanes:
                lane.thread.start()
            self._wait(environment)
            failures = [str(lane.error) for lane in self._lanes if lane.error is not None]
            failures += environment.ended_by_themselves()
            if failures:
                return self._failed(failures)
            environment.stop_drivers()
            if self._stopped.is_set():
                self._say("stopped; the same command goes on")
                return STOPPED
            return self._judge(environment)

    def _lane(self, environment: Environment, shape: Shape) -> Lane:
        chosen = [kill for kill in self._chosen if kill.pipeline == shape.name]
        done = sum(each["pipeline"] == shape.name for each in self._done)
        if self._options.kill:
            return Lane(environment, shape, chosen.__getitem__, len(chosen), done, self._told)
        share = self._options.kills // len(self._shapes)

        def plan(number: int) -> Kill:
            return draw(self._options.seed, shape, number)

        return Lane(environment, shape, plan, share, done, self._told)

    def _wait(self, environment: Environment) -> None:
        """Until all lanes have ended; the first that fails ends the others."""
        shown = time.monotonic()
        while any(lane.thread.is_alive() for lane in self._lanes):
            ended = environment.ended_by_themselves()
            if self._stopped.wait(0.2) or ended or any(lane.error for lane in self._lanes):
                for lane in self._lanes:
                    lane.stop()
                for lane in self._lanes:
                    lane.thread.join(30)
                return
            minutes = self._options.minutes
            if minutes is not None and time.monotonic() - self._begun > minutes * 60:
                for lane in self._lanes:
                    lane.finish()
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                starts = sum(driver.starts for driver in environment.drivers.values())
                self._say(f"{self._progress()}; drivers were started {starts} times")

    def _told(self, number: int, kill: Kill, facts: dict[str, Any]) -> None:
        line = {"pipeline": kill.pipeline, "number": number, "victim": kill.victim.value,
                "point": kill.point.value, "what": str(kill), **facts}  # fmt: skip
        with self._lock:
            self._done.append(line)
            with self._log.open("a") as log:
                log.write(json.dumps(line) + "\n")
        self._say(f"kill {len(self._done)}: {kill}, batch {facts['batch']}; {self._progress()}")

    def _progress(self) -> str:
        passed = sum(lane.passed() for lane in self._lanes)
        return f"{passed:,} of {self._records:,} records passed"

    @property
    def _records(self) -> int:
        return sum(shape.count for shape in self._shapes)

    # -- the end

    def _judge(self, environment: Environment) -> int:
        fed = {shape.name: environment.fed(shape) for shape in self._shapes}
        whole = sum(fed.values()) == self._records
        self._say(f"{sum(fed.values()):,} records have passed; counting")
        verdicts = [
            judge(
                replace(shape, count=fed[shape.name]),
                environment.broker.bootstrap,
                environment.postgres.sql,
            )
            for shape in self._shapes
        ]
        for verdict in verdicts:
            self._say(f"{verdict.pipeline}: {verdict.found}")
        copies = environment.copies()
        killed = Counter(each["victim"] for each in self._done)
        self._say(f"{len(self._done)} kills: {_listed(killed)}")
        self._say(f"at {_listed(Counter(each['point'] for each in self._done))}")
        self._say(f"{copies} copies of tasks were run beside the first, by Spark's event logs")
        for driver in environment.drivers.values():
            for said in driver.gave_up:
                self._say(f"{driver.name} ended by itself and was started again, {said}")
        wrong = [sentence for verdict in verdicts for sentence in verdict.wrong]
        if (whole and not wrong) or self._options.quick:
            environment.forget()
        if wrong:
            return self._failed(wrong)
        self._say("nothing is missing, and nothing is twice that may not be")
        if whole:
            self._passed.touch()
        else:
            self._say("the same command goes on")
        return 0

    def _failed(self, sentences: list[str]) -> int:
        self._say(f"FAILED with seed {self._options.seed}:")
        for sentence in sentences:
            self._say(f"  {sentence}")
        self._say("the last kills:")
        for each in self._done[-10:]:
            self._say(f"  {each['what']}, batch {each['batch']}")
        return 1

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:7.1f} s  {text}", flush=True)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _read(log: Path) -> list[dict[str, Any]]:
    """Without a last line that a kill has cut off."""
    if not log.exists():
        return []
    whole = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    log.write_text("".join(whole))
    return [json.loads(line) for line in whole]


if __name__ == "__main__":
    sys.exit(main())
