"""Run simulated clusters, seed by seed, and check everything after every step.

    python tests/simulation/run.py --seeds 0-9999          what `make simulate` does
    python tests/simulation/run.py --seeds 17 --faults 2,5  one seed, with these of its faults only
    python tests/simulation/run.py --seeds 0-50 --plant ack-early   with a mistake planted
    python tests/simulation/run.py --seeds 0-99 --moves     partitions are moved all the while

A seed stands for a cluster of three to five brokers and a schedule of faults (`world/schedule.py`).
When an invariant is broken the schedule is made smaller, and printed with the command that repeats
it; the exit code is 1. A run is the same every time: the order of sets of names depends on
PYTHONHASHSEED, so this program starts itself again with 0. `--digests` prints a line for each seed
that differs when a single step does, and `--memory N` lets everything have other addresses, as it
may have in another process: the lines must not change.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time
from pathlib import Path

from world import planted
from world.schedule import Outcome, Setup, draw, run, shrink

HERE = Path(__file__)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", default="0-19", help="one seed, or the first and the last")
    parser.add_argument("--faults", help="numbers of the faults to keep, of one seed")
    parser.add_argument("--plant", choices=sorted(planted.MISTAKES), help="a mistake to be found")
    parser.add_argument("--as-drawn", action="store_true", help="do not make a failure smaller")
    parser.add_argument("--minutes", type=float, help="begin no seed after so long")
    parser.add_argument("--transactions", action="store_true", help="in every seed, not in half")
    parser.add_argument("--moves", action="store_true", help="partitions are moved, too")
    parser.add_argument("--digests", action="store_true", help="a line for every seed")
    parser.add_argument("--memory", type=int, default=0, help="other addresses, drawn from this")
    parser.add_argument("--verbose", action="store_true", help="show what the brokers log")
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.CRITICAL + 1,
        format="%(name)s %(message)s",
    )
    kept = _occupy(options.memory)
    first, _, last = options.seeds.partition("-")
    with planted.mistake(options.plant):
        found = _run_all(range(int(first), int(last or first) + 1), options)
    del kept
    return found


def _occupy(number: int) -> list[bytes]:
    """Things of all sizes with holes between them, into which other things will be put."""
    rng = random.Random(number)
    things = [bytes(rng.randrange(1, 500)) for _ in range(rng.randrange(20_000))]
    return [each for each in things if rng.random() < 0.5]


def _run_all(seeds: range, options: argparse.Namespace) -> int:
    begun, cpu = time.monotonic(), time.process_time()
    faults = steps = checks = acked = done = 0
    for seed in seeds:
        if options.minutes is not None and time.monotonic() - begun > options.minutes * 60:
            break
        setup = _drawn(seed, options)
        if options.faults is not None:
            setup = setup.only({int(each) for each in options.faults.split(",") if each})
        outcome = run(setup)
        expected = planted.MISTAKES[options.plant][0] if options.plant else None
        if outcome.violation is not None:
            if expected not in (None, outcome.violation.name):
                continue  # what a mistake does besides
            _report(setup, outcome, options)
            return 1
        done += 1
        faults += len(setup.faults)
        steps += outcome.steps
        checks += outcome.checks
        acked += outcome.acked
        if options.digests or done % 100 == 0 or len(seeds) == 1:
            print(f"seed {seed}: {outcome.digest}", flush=True)
    print(
        f"{done} seeds from {seeds.start} on: {faults} faults, {steps} steps, {checks} checks of "
        f"all invariants, {acked} acknowledged records, no violation; "
        f"{time.process_time() - cpu:.0f} s of CPU time"
    )
    return 0


def _drawn(seed: int, options: argparse.Namespace) -> Setup:
    setup = draw(seed, moves=options.moves)
    return setup._replace(transactional=setup.transactional or options.transactions)


def _report(setup: Setup, found: Outcome, options: argparse.Namespace) -> None:
    print(f"seed {setup.seed}: {found.violation}", flush=True)
    if options.as_drawn:
        return
    if options.faults is None:
        numbers, best = shrink(setup, found)
        print(f"{len(setup.faults)} faults were drawn; these are enough for: {best.violation}")
    else:
        numbers = [int(each) for each in options.faults.split(",") if each]
    whole = _drawn(setup.seed, options)
    print(
        f"{setup.brokers} brokers, {setup.partitions} partitions, fsync {setup.synced}, "
        f"transactions {setup.transactional}"
    )
    for number in numbers:
        print(f"  {number:3d}  {whole.faults[number]}")
    kept = ",".join(map(str, numbers))
    plant = f" --plant {options.plant}" if options.plant else ""
    if options.transactions:
        plant += " --transactions"
    if options.moves:
        plant += " --moves"
    print(
        f"repeat: .venv/bin/python tests/simulation/run.py --seeds {setup.seed} "
        f"--faults {kept or ','}{plant}"
    )


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, str(HERE), *sys.argv[1:]], environment)
    sys.exit(main())
