"""Compiles the native record walker (`src/ottla/records/native`) when Ottla is built or installed.

It is optional: where there is no C compiler or no Python headers, the result is a wheel of pure
Python, and the broker says at its start that it walks records in Python. An editable install gets
the library beside the sources, a wheel gets it inside. It uses Python's stable ABI, so one library
serves every Python from 3.11 on.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "src/ottla/records/native"
PLACE = "ottla/records/_native.abi3.so"
FLAGS = (
    *("-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"),
    "-DPy_LIMITED_API=0x030b0000",
)
TIMEOUT_S = 120


class NativeBuildHook(BuildHookInterface[Any]):
    """Called by hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        if version == "editable":
            compile_native(root, root / "src" / PLACE)
            return
        self._folder = tempfile.mkdtemp(prefix="ottla-native-")
        library = Path(self._folder) / "_native.abi3.so"
        if compile_native(root, library):
            build_data["force_include"][str(library)] = PLACE
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if folder := getattr(self, "_folder", None):
            shutil.rmtree(folder, ignore_errors=True)


def compile_native(root: Path, target: Path, extra: tuple[str, ...] = ()) -> bool:
    """Whether the library is now at `target`. One from older sources is not left there."""
    target.unlink(missing_ok=True)
    if os.environ.get("OTTLA_NATIVE") == "0" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    includes = sysconfig.get_paths()
    sources = sorted(str(path) for path in (root / SOURCES).glob("*.c"))
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    # Another process may import it: it appears at once and whole.
    made = target.with_name(f"{target.name}.{os.getpid()}")
    for compiler in _compilers():
        command = [
            *(*compiler, *FLAGS, *extra, *link),
            *(f"-I{includes['include']}", f"-I{includes['platinclude']}"),
            *(*sources, "-o", str(made)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"ottla: {shlex.join(compiler)}: {error}", file=sys.stderr)
            continue
        if done.returncode == 0:
            made.replace(target)
            return True
        made.unlink(missing_ok=True)
        print(done.stderr.decode(errors="replace"), file=sys.stderr)
    print(
        "ottla: no native record walker, it needs a C compiler and Python's headers",
        file=sys.stderr,
    )
    return False


def _compilers() -> list[list[str]]:
    """Compilers that are there, the one of the environment or of this Python first."""
    found: list[list[str]] = []
    for name in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        command = shlex.split(name or "")
        if command and shutil.which(command[0]) and command not in found:
            found.append(command)
    return found
