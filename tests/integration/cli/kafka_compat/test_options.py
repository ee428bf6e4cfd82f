"""The parser of Kafka's command lines, and the table of tools."""

from __future__ import annotations

import subprocess
import sys

# -- the table


def test_a_tool_loads_neither_click_nor_rich_nor_librdkafka() -> None:
    code = (
        "import sys; from ottla.cli.kafka_compat import run\n"
        "run('kafka-topics', ['--bootstrap-server', '127.0.0.1:1', '--list'])\n"
        "print(sorted({'click', 'rich', 'confluent_kafka', 'asyncio'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "no broker answers (127.0.0.1:1: Connection refused)" in done.stdout


def test_output_to_a_full_disk_is_one_line_and_an_error() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ottla.cli.kafka_compat", "kafka-storage", "random-uuid"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    told = "not everything could be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_without_a_standard_output_a_tool_does_its_work() -> None:
    words = [sys.executable, "-m", "ottla.cli.kafka_compat", "kafka-storage", "random-uuid"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
