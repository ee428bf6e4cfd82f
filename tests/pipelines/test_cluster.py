"""A standalone Spark cluster of two workers, started from the wheel, with a packed environment."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import ottla
from ottla.pipelines.pack import pack

PROGRAM = Path(__file__).parent / "copy_program.py"
COUNT = 3_000

SLOW = """
    import sys
    from ottla.pipelines import spark_session

    master, bootstrap, topic, folder = sys.argv[1:]
    spark = spark_session(
        "slow",
        master=master,
        config={
            "spark.executorEnv.OTTLA_NATIVE": "0",
            "spark.executor.memory": "600m",
            "spark.ui.enabled": "false",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    to = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    rows = spark.range(50).selectExpr("CAST(id AS string) AS value").coalesce(1)
    rows.write.format("ottla").options(**to).mode("append").save()
    print("the batch is written", file=sys.stderr, flush=True)
    stream = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "20")
        .load()
    )
    copy = stream.writeStream.format("ottla").options(**to, checkpointLocation=folder)
    copy.option("topic", topic + "-copy").trigger(availableNow=True).start().awaitTermination()
    print(spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
          .option("subscribe", topic + "-copy").load().count(), "rows are copied", file=sys.stderr)
    spark.stop()
"""


def test_two_workers_read_with_the_environment_that_was_packed(
    spark_cluster, bootstrap, unique, tmp_path, bare_environment
):
    topic = unique()
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=4)
    with ottla.Producer(bootstrap) as producer:
        for number in range(COUNT):
            producer.post(topic, f"value {number}")
    archive = tmp_path / "ottla.tar"
    pack(archive)
    home = tmp_path / "copy"
    home.mkdir()
    settings = {
        "available_now": "1",
        "master": spark_cluster.heal(),
        "spark.archives": f"{archive}#packed",
        "spark.executorEnv.PYTHONPATH": "packed",
        "spark.executor.memory": "600m",
        "spark.ui.enabled": "false",
        # Its first tasks are over in a moment: both workers are waited for, the slower one too.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), bootstrap, topic, str(home), *words],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=bare_environment,
    )
    output = [line for line in ended.stderr.splitlines() if not line.startswith("\tat ")]
    assert ended.returncode == 0, "\n".join(output[-60:])
    table = sqlite3.connect(home / "rows.db")
    values = {value for (value,) in table.execute("SELECT value FROM records")}
    table.close()
    assert values == {b"value %d" % number for number in range(COUNT)}
    copies = (home / "imported").read_text().splitlines()
    workers = {Path(copy).relative_to(spark_cluster.folder).parts[0] for copy in copies}
    assert workers == {"worker-1", "worker-2"}, f"the tasks imported {copies}"


def test_a_driver_with_native_code_says_that_its_workers_have_none(
    spark_cluster, bootstrap, unique, tmp_path, bare_environment
):
    topic = unique()
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic)
        admin.create_topic(f"{topic}-copy")
    arguments = (spark_cluster.heal(), bootstrap, topic, str(tmp_path / "checkpoint"))
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SLOW), *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=bare_environment | {"PYSPARK_PYTHON": sys.executable},
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    batch, _, stream = ended.stderr.partition("the batch is written")
    for part in (batch, stream):
        # Once, although the stream has three micro-batches.
        assert part.count("1 of 1 tasks made record batches in plain Python") == 1, ended.stderr
        assert "OTTLA_NATIVE=0 turns the native code off; unset it" in part
    assert "50 rows are copied" in stream
