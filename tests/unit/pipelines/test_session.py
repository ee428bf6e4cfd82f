"""How Spark's Python processes are started, and what a session sets where nobody has."""

from __future__ import annotations

import pytest

from ottla.pipelines import session


@pytest.mark.parametrize(
    ("master", "threads"),
    [("local", 1), ("local[3]", 3), ("local[3,2]", 3), ("local[*]", 8), ("local[*, 4]", 8)],
)
def test_a_local_spark_has_a_shuffle_partition_for_each_thread(master, threads):
    ours = session._ours({"spark.master": master}, terminal=False, cores=8)
    assert ours["spark.sql.shuffle.partitions"] == str(threads)


def test_a_cluster_gets_neither_loopback_nor_few_shuffle_partitions():
    ours = session._ours({"spark.master": "spark://host:7077"}, terminal=False, cores=8)
    assert not ours.keys() & {"spark.sql.shuffle.partitions", "spark.driver.host", "spark.master"}


def test_a_package_for_a_spark_that_runs_is_refused_unless_it_is_there():
    session._refuse_missing(["a:b:1"], "x:y:2,a:b:1")
    with pytest.raises(RuntimeError, match="a:b:1 cannot be added to a Spark that has started"):
        session._refuse_missing(["a:b:1"], None)


def test_a_package_for_a_server_of_spark_connect_is_refused(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    monkeypatch.setattr(session, "_build", lambda _, settings: settings)
    assert session.spark_session(config={"a": "b"}) == {"a": "b"}
    with pytest.raises(RuntimeError, match=r"org:one:1 cannot be added .* Spark Connect"):
        session.spark_session(packages="org:one:1")


def test_the_defaults_file_is_read_as_spark_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert session._defaults_file() == {}
    lines = ["# no", "", "spark.a b c", "spark.d=e", "  spark.f : g  ", "spark.h\ti", "! no"]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    expected = {"spark.a": "b c", "spark.d": "e", "spark.f": "g", "spark.h": "i"}
    assert session._defaults_file() == expected
