"""`python -m bench.spark.oldest`: the suites of Spark's source and sink with the oldest libraries.

`make test` runs them with what uv.lock has, which is the newest that was tried. This makes an
environment in `.cache` with the oldest PySpark, PyArrow and numpy that `pyproject.toml` allows
(some 500 MB to download the first time), installs Ottla there as a user would, and runs the tests
of reading, streams and writing. Part of `make interop`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from bench.maven import CACHE, ROOT

SUITES: Final = ("test_batch_read.py", "test_stream_read.py", "test_write.py")
OLDEST: Final = ("pyspark", "pyarrow", "numpy")
_WITH: Final = re.compile(r"(pytest|hypothesis|psutil|kio)\b")


def oldest(requirements: list[str]) -> list[str]:
    """The lower bounds of the libraries that matter, as versions to install."""
    found = []
    for each in requirements:
        bound = re.match(r"([a-z0-9-]+)>=([\d.]+)", each)
        if bound is not None and bound[1] in OLDEST:
            found.append(f"{bound[1]}=={bound[2]}")
    return found


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = oldest(project["project"]["optional-dependencies"]["pipelines"])
    tools = [each for each in project["dependency-groups"]["dev"] if _WITH.match(each)]
    home = CACHE / "spark-oldest"
    python = str(home / "bin" / "python")
    uv = str(ROOT / ".uv" / "bin" / "uv")
    install = [uv, "pip", "install", "--quiet", "--python", python, "--reinstall-package", "ottla"]
    suites = [str(Path("tests") / "pipelines" / name) for name in SUITES]
    commands = (
        [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
        [*install, f"{ROOT}[pipelines]", *pinned, *tools],
        [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *suites],
    )
    print(f"Spark's source and sink with {', '.join(pinned)}", flush=True)
    for command in commands:
        ended = subprocess.run(command, cwd=ROOT, check=False)
        if ended.returncode:
            return ended.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
