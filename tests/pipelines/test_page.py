"""The code that docs/spark.md shows, typed: all of it that needs no cluster.

Only addresses and folders are changed. Blocks of one section share their names, as in a reader's
session; a `text` block is what the block before it prints.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import ottla
from ottla.testing.process import BrokerProcess, free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()
BROKER, CONNECT = "127.0.0.1:9092", "15002"


def section(heading: str) -> str:
    level = heading.partition(" ")[0]
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{2,{len(level)}}} |\Z)", PAGE, re.DOTALL | re.MULTILINE
    )
    assert found is not None, f"docs/spark.md has no section {heading!r}"
    return found[1]


def blocks(heading: str) -> list[tuple[str, str]]:
    """Language and text of the blocks of code in a section."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", section(heading), re.DOTALL | re.MULTILINE)


def block(heading: str, language: str) -> str:
    [text] = [text for name, text in blocks(heading) if name == language]
    return text


@pytest.fixture
def broker(start_broker: Any) -> BrokerProcess:
    """The page's topics have names of their own, so its broker is one of its own."""
    started: BrokerProcess = start_broker()
    return started


@pytest.fixture
def three_orders(broker: BrokerProcess) -> BrokerProcess:
    with ottla.Producer(broker.bootstrap) as producer:
        for number in range(3):
            producer.post("orders", f'{{"id": {number}}}')
    return broker


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], list[str]]:
    """How a `sh` block is run: in an empty folder, in an activated environment."""

    def command(script: str) -> list[str]:
        return [
            "env",
            f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}",
            "sh",
            "-ec",
            script,
        ]

    return command


def rows(spark: Any, bootstrap: str, topic: str) -> list[tuple[str | None, str | None]]:
    table = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    found = table.option("subscribe", topic).load()
    return sorted(
        (row.key, row.value)
        for row in found.selectExpr("CAST(key AS string)", "CAST(value AS string)").collect()
    )


def stored(broker: BrokerProcess, topic: str) -> list[tuple[str | None, str]]:
    """The records of a topic, without Spark, which takes seconds for that."""
    with ottla.Consumer(broker.bootstrap, key=ottla.STRING, value=ottla.STRING) as consumer:
        consumer.assign(topic, "earliest")
        return [(record.key, record.value) for record in consumer.records(until_end=True)]


def stop_queries(spark: Any) -> None:
    """Let the streams that a block has started read what is there, then stop them."""
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
        assert query.exception() is None


def test_tables_are_read_and_written_as_the_page_says(spark, three_orders, shell, tmp_path, capsys):
    ottla.Admin(three_orders.bootstrap).create_topic("clicks")
    with ottla.Producer(three_orders.bootstrap) as producer:
        producer.post("clicks", "a click")
    changes = {BROKER: three_orders.bootstrap, '"checkpoints/': f'"{tmp_path}/checkpoints/'}
    names: dict[str, Any] = {"df": spark.range(3)}
    shown = [blocks(heading) for heading in ("## A first query in five lines", "## Reading")]
    shown.append(blocks("## Writing"))
    for language, text in [block for section_blocks in shown for block in section_blocks]:
        code = text
        for page, here in changes.items():
            code = code.replace(page, here)
        if language == "python":
            exec(compile(code, "docs/spark.md", "exec"), names)
        elif language == "sql":
            try:
                for statement in filter(str.strip, code.split(";")):
                    spark.sql(statement).collect()
            finally:
                spark.sql("DROP TABLE IF EXISTS orders")
        else:
            command = shell(code)
            ended = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
            assert re.search(r"^spark-kafka-source-\S+ +clicks", ended.stdout, re.MULTILINE)
        if "clicks" in names and "counts" not in names:
            # what the page does with the stream that it has made is up to its reader
            names["clicks"].writeStream.format("noop").trigger(availableNow=True).start()
            names["counts"] = names["clicks"].groupBy("key").count()
            names["counts"] = names["counts"].selectExpr("key", "CAST(count AS string) AS value")
        stop_queries(spark)
    assert '{"id": 0}' in capsys.readouterr().out
    assert stored(three_orders, "orders")[-1] == (None, "one more")
    assert sorted(key or "" for key, _ in stored(three_orders, "rows")) == ["0", "1", "2"]
    assert stored(three_orders, "counts") == [(None, "1")]


def test_an_archive_for_workers_is_packed_as_the_page_says(shell, tmp_path):
    packing = shell(block("## On a cluster", "sh"))
    subprocess.run(packing, cwd=tmp_path, check=True, timeout=400, capture_output=True)
    with tarfile.open(tmp_path / "ottla.tar") as archive:
        assert any(name.endswith("ottla/pipelines/datasource.py") for name in archive.getnames())


def test_the_recipes_do_what_the_page_says(spark, broker, tmp_path, capsys):
    changes = {
        BROKER: broker.bootstrap,
        '"checkpoints/': f'"{tmp_path}/checkpoints/',
        'f"orders/': f'f"{tmp_path}/orders/',
    }
    names: dict[str, Any] = {"spark": spark}
    printed = ""
    for language, text in blocks("## Recipes"):
        if language == "text":
            assert printed == text
            continue
        code = text
        for shown, used in changes.items():
            code = code.replace(shown, used)
        capsys.readouterr()
        exec(compile(code, "docs/spark.md", "exec"), names)
        printed = capsys.readouterr().out
        stop_queries(spark)
    assert rows(spark, broker.bootstrap, "orders-refused") == [(None, "2 plums")]
    assert len(rows(spark, broker.bootstrap, "orders-copy")) == 3
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 3
    assert rows(spark, broker.bootstrap, "orders-per-item") == [("pear", "2.5"), ("plum", "0.5")]


def test_a_job_is_submitted_as_the_page_says(three_orders, shell, tmp_path):
    heading = "## `spark-submit`"
    job = block(heading, "python").replace(BROKER, three_orders.bootstrap)
    (tmp_path / "job.py").write_text(job)
    ended = subprocess.run(
        shell(block(heading, "sh")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.stdout == "3 orders\n", ended.stderr[-4000:]


@pytest.fixture
def connect(shell: Callable[[str], list[str]], tmp_path: Path, eventually: Any) -> Iterator[str]:
    """The port of a Connect server, started as the page says."""
    port = str(free_port())
    script = block("## Spark Connect", "sh").replace(CONNECT, port)
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(shell(script), cwd=tmp_path, stdout=output, stderr=output)

    def listens() -> bool:
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            socket.create_connection(("127.0.0.1", int(port))).close()
        except ConnectionRefusedError:
            return False
        return True

    try:
        eventually(listens, timeout=400)
        yield port
    finally:
        for each in (*psutil.Process(server.pid).children(recursive=True), server):
            with suppress(psutil.NoSuchProcess):  # it has ended with its parent
                each.kill()
        server.wait()


def test_a_client_of_spark_connect_reads_and_writes_topics(three_orders, connect, tmp_path):
    program = block("## Spark Connect", "python").replace(BROKER, three_orders.bootstrap)
    ended = subprocess.run(
        [sys.executable, "-c", program.replace(CONNECT, connect)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.stdout == "3 orders\n3 copied\n", ended.stderr[-4000:]


MORE = """
counts = orders.groupBy("topic").count()
query = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
query = query.trigger(availableNow=True).start()
query.awaitTermination()
[row] = spark.table("counts").collect()
kind = query.lastProgress["stateOperators"][0]["customMetrics"]
print(row["count"], any(name.startswith("rocksdb") for name in kind))
spark.stop()
"""


def test_a_tuned_session_starts_and_keeps_its_state_in_rocksdb(three_orders, tmp_path):
    program = block("## Tuning", "python").replace(BROKER, three_orders.bootstrap)
    ended = subprocess.run(
        [sys.executable, "-c", program + MORE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.stdout == "3 True\n", ended.stdout + ended.stderr[-4000:]
