"""How this machine reaches Spark's master, and what is said when it does not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest

from ottla.pipelines import interpreters, session
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.spec.values import Connector, PipelineSpec
from ottla.pipelines.driver.home import Refused
from ottla.pipelines.driver.start import check_master
from ottla.pipelines.masters import own_address

NOTHING = Connector("nothing", {}, Declaration("nothing", "", (), dict))
SPEC = PipelineSpec("p", "127.0.0.1:9092", NOTHING, NOTHING)


def test_a_master_that_does_not_answer_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"spark://127.0.0.1:{server.getsockname()[1]}"
        check_master(SPEC, url)
        check_master(SPEC, f"spark://127.0.0.1:1,{url.removeprefix('spark://')}")
    with pytest.raises(Refused, match=r"where no Spark master answers \(Connection refused\)"):
        check_master(SPEC, url)
    check_master(SPEC, "yarn")
    check_master(SPEC, "local[2]")


def test_executors_are_told_the_address_from_which_the_driver_reaches_the_master(monkeypatch):
    for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_PUBLIC_DNS"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.2", 0)) as server:
        master = f"spark://127.0.0.2:{server.getsockname()[1]}"
        assert own_address(master, 5.0) == "127.0.0.1"
        assert session._seen_from({"spark.master": master}) == {"spark.driver.host": "127.0.0.1"}
        chosen = {"spark.master": master, "spark.driver.host": "me"}
        assert session._seen_from(chosen) == {}, "somebody has chosen it"
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.3")
        assert session._seen_from({"spark.master": master}) == {}
        monkeypatch.delenv("SPARK_LOCAL_IP")
    with pytest.raises(ConnectionRefusedError):
        own_address(master, 5.0)
    assert session._seen_from({"spark.master": master}) == {}, "Spark says what is wrong"
    assert session._seen_from({"spark.master": "yarn"}) == {}


@pytest.fixture
def nobody_has_chosen(monkeypatch, tmp_path):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # so that it is there again afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("wanted", [None, "python3"])
def test_the_python_of_a_cluster_is_a_name_that_is_this_one_for_the_driver(
    nobody_has_chosen, wanted
):
    before = os.environ["PATH"]
    with interpreters.chosen_for_cluster(wanted):
        name = wanted or interpreters.same_minor()
        assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == name
        words = [shutil.which(name), "-c", "import sys; print(sys.prefix)"]
        found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert found.strip() == sys.prefix
    assert os.environ["PATH"] == before


def test_a_path_that_somebody_has_chosen_is_taken_on_all_machines(nobody_has_chosen, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python/bin/python3")
    with interpreters.chosen_for_cluster("python3"):
        assert os.environ["PYSPARK_DRIVER_PYTHON"] == "/opt/python/bin/python3"
