from __future__ import annotations

import subprocess
import sys


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_importing_ottla_loads_nothing_but_ottla() -> None:
    mine = {name for name in loaded_by("import ottla") if name.split(".")[0] == "ottla"}
    assert mine == {"ottla"}


def test_importing_ottla_loads_no_library() -> None:
    heavy = {"confluent_kafka", "click", "rich", "asyncio", "uvloop", "logging", "json"}
    assert not loaded_by("import ottla") & heavy


def test_the_client_package_itself_does_not_load_librdkafka() -> None:
    assert "confluent_kafka" not in loaded_by("import ottla.client")
