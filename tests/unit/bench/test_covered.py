from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import covered

ROOT = Path(__file__).parents[3]


def file(lines: int, of_lines: int, branches: int, of_branches: int) -> dict[str, Any]:
    names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
    numbers = (lines, of_lines, branches, of_branches)
    return {"summary": dict(zip(names, numbers, strict=True))}


def test_lines_and_branches_of_a_package_are_added_up() -> None:
    files = {
        "src/ottla/records/a.py": file(9, 10, 3, 6),
        "src/ottla/records/deep/b.py": file(4, 4, 0, 0),
        "src/ottla/model/c.py": file(5, 5, 0, 0),
    }
    assert covered.by_package(files) == {"model": 100.0, "records": 80.0}


def test_a_package_below_its_floor_is_named_and_so_is_one_that_was_not_measured() -> None:
    floors = {"model": 95, "records": 81, "net": 1}
    assert covered.below({"model": 95.0, "records": 80.99}, floors) == [
        "records: 80.99 %, at least 81 is asked for",
        "net: 0.00 %, at least 1 is asked for",
    ]


def test_every_module_of_the_contract_is_there_and_its_package_has_a_floor() -> None:
    patterns = covered.patterns(covered.modules())
    assert all(list(ROOT.glob(pattern)) for pattern in patterns)
    assert {Path(pattern).parts[2] for pattern in patterns} == set(covered.FLOORS)


def test_every_folder_of_tests_is_there() -> None:
    assert all((ROOT / "tests" / "unit" / name).is_dir() for name in covered.TESTS)
