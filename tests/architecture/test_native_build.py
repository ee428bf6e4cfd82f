"""The native record walker is optional, and built without a warning."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ottla.records import walker

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`hatch_build.py`, with what little it needs of hatchling, which is there to build only."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = dict
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_built_without_a_warning_where_it_can_be(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OTTLA_NATIVE", raising=False)
    target = tmp_path / "_native.abi3.so"
    built = hook.compile_native(ROOT, target, ("-Werror", "-Wshadow"))
    assert built or "no native record walker" in capfd.readouterr().err
    assert target.exists() is built
    assert built or not walker.NATIVE
    assert [path.name for path in tmp_path.iterdir()] == ["_native.abi3.so"][:built]


def test_it_needs_nothing_but_the_stable_abi(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTTLA_NATIVE", raising=False)
    target = tmp_path / "_native.abi3.so"
    if not hook.compile_native(ROOT, target):
        return
    code = "import importlib.util as u, sys; s = u.spec_from_file_location('_native', sys.argv[1]);"
    code += "m = u.module_from_spec(s); s.loader.exec_module(m); print(m.summarize(b'', 0))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "(0, 0, True, 0)\n", done.stderr


def test_it_serves_older_pythons_when_it_was_built_with_a_newer_one() -> None:
    # `#` in a format needs PY_SSIZE_T_CLEAN up to 3.12, a macro that 3.13's headers pass over: what
    # is built there fails on 3.11 and 3.12 at the first such call.
    sources = (ROOT / "src/ottla/records/native").glob("*.[ch]")
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r'"[^"]*[syzu]#[^"]*"', line)
    ]
    assert not found


@pytest.mark.parametrize("compiler", ["", "false"])
def test_without_a_compiler_nothing_old_is_left(
    hook: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    compiler: str,
) -> None:
    monkeypatch.delenv("OTTLA_NATIVE", raising=False)
    monkeypatch.setattr(hook, "_compilers", lambda: [[compiler]] if compiler else [])
    target = tmp_path / "_native.abi3.so"
    target.write_bytes(b"of older sources")
    assert not hook.compile_native(ROOT, target)
    assert not target.exists()
    assert "needs a C compiler and Python's headers" in capfd.readouterr().err
