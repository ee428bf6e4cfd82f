"""The table of APIs agrees with the declared messages and with Apache Kafka 4.2's broker."""

from __future__ import annotations

import subprocess
import sys


def test_the_table_imports_no_messages() -> None:
    script = (
        "import sys, ottla.protocol.apis, ottla.protocol.header;"
        "print([m for m in sys.modules if m.startswith('ottla.protocol.messages')])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "[]"
