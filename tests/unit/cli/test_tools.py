"""`ottla tools`: Kafka's command names in a folder of somebody's choice."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from click.testing import Result

from ottla.cli.kafka_compat import TOOLS
from ottla.cli.tools import NAMES

Run = Callable[..., Result]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def link(ottla: Run, tmp_path: Path) -> Callable[..., Result]:
    """`ottla tools link` of a folder "bin"."""
    return lambda *more: ottla("tools", "link", str(tmp_path / "bin"), *more)


def test_the_package_installs_one_command_and_shadows_no_kafka() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"ottla": "ottla.cli.main:main"}
    assert "gui-scripts" not in project
    installed = [
        each.name
        for each in distribution("ottla").entry_points
        if each.group in ("console_scripts", "gui_scripts")
    ]
    assert installed == ["ottla"]


def test_every_tool_is_there_under_both_of_its_names() -> None:
    assert set(NAMES) == {*TOOLS, *(f"{tool}.sh" for tool in TOOLS)}


def test_linking_again_changes_nothing(link: Run, tmp_path: Path) -> None:
    def written() -> dict[Path, tuple[int, int]]:
        # Not when it was read last, which changes with the second reading.
        found = {each: each.stat() for each in (tmp_path / "bin").iterdir()}
        return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}

    link()
    before = written()
    result = link()
    assert result.output.startswith(f"all {len(NAMES)} names are in {tmp_path / 'bin'} already\n")
    assert written() == before


def test_another_interpreter_is_written_anew(
    link: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link()
    monkeypatch.setattr(sys, "executable", "/elsewhere/bin/python")
    assert link().output.startswith(f"linked {len(NAMES)} names")
    text = (tmp_path / "bin" / "kafka-topics").read_text()
    assert text.startswith("#!/elsewhere/bin/python\n")


def test_what_an_older_version_had_installed_is_replaced(link: Run, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "kafka-topics"
    old.parent.mkdir()
    old.write_text(
        "#!/gone/bin/python\n# -*- coding: utf-8 -*-\nimport sys\n"
        "from ottla.cli.kafka_compat import main\n"
    )
    assert link().exit_code == 0
    assert "/gone" not in old.read_text()


def test_a_real_kafka_is_not_overwritten_unless_asked(link: Run, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kafka-topics.sh").write_text("exec kafka-run-class.sh TopicCommand\n")
    (folder / "kafka-configs").symlink_to(tmp_path / "gone")
    result = link()
    assert result.exit_code == 1
    assert f"{folder / 'kafka-configs'} and 1 more: not Ottla's; --force replaces" in result.stderr
    assert sorted(each.name for each in folder.iterdir()) == ["kafka-configs", "kafka-topics.sh"]
    assert link("--force").exit_code == 0
    assert not (folder / "kafka-configs").is_symlink()
    assert "ottla" in (folder / "kafka-topics.sh").read_text()


def test_a_folder_that_cannot_be_is_one_line(ottla: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = ottla("tools", "link", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert result.stderr == f"Error: {tmp_path / 'file'} is a file; name a folder\n"
    in_the_way = tmp_path / "bin" / "kafka-topics"
    in_the_way.mkdir(parents=True)
    result = ottla("tools", "link", "--force", str(tmp_path / "bin"))
    assert result.stderr == f"Error: {in_the_way} is a folder. Nothing was changed\n"
    assert list((tmp_path / "bin").iterdir()) == [in_the_way]


def test_unlink_takes_out_what_is_ours_and_nothing_else(
    ottla: Run, link: Run, tmp_path: Path
) -> None:
    link()
    folder = tmp_path / "bin"
    (folder / "kafka-topics").write_text("exec java\n")
    (folder / "mine").write_text("")
    result = ottla("tools", "unlink", str(folder))
    assert result.output.splitlines() == [
        f"removed {len(NAMES) - 1} names from {folder}",
        "1 file of such names stayed: not Ottla's",
    ]
    assert sorted(each.name for each in folder.iterdir()) == ["kafka-topics", "mine"]
    assert ottla("tools", "unlink", str(folder)).output.startswith("removed 0 names from")


def test_it_says_whether_the_names_can_be_typed(
    ottla: Run, link: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kafka = tmp_path / "bin", tmp_path / "kafka"
    monkeypatch.setenv("PATH", f"{kafka}{os.pathsep}{folder}")
    assert link().output.splitlines()[1:] == [f"{folder} is on the PATH"]
    found = json.loads(ottla("tools", "list", "--json").output)
    assert [each["name"] for each in found] == list(TOOLS)
    assert found[0] == {"name": NAMES[0], "path": str(folder / NAMES[0]), "ours": True}
    kafka.mkdir()
    real = kafka / NAMES[0]
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    assert link().output.splitlines()[1:] == [
        f"{folder} is on the PATH",
        f"but {real} comes before it there",
    ]
    assert [line.split() for line in ottla("tools", "list").output.splitlines()[:3]] == [
        ["NAME", "ON", "THE", "PATH", "WHOSE"],
        [NAMES[0], str(real), "another's"],
        [NAMES[2], str(folder / NAMES[2]), "Ottla's"],
    ]


def test_without_any_of_them_the_list_says_how_to_get_them(
    ottla: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    result = ottla("tools", "list")
    assert "`ottla tools link DIR` puts them into a folder" in result.stderr
