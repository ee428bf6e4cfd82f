"""What a driver asks of the operating system: a lock, a port, log files."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ottla.pipelines.driver import metrics
from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.jvm import undisturbed
from ottla.pipelines.driver.lock import Lock, holder
from ottla.pipelines.driver.log_files import close_log, is_open, open_log
from ottla.pipelines.driver.metrics import MetricsServer
from ottla.pipelines.driver.progress import Figures

HOLD = """
import sys
from pathlib import Path
from urllib.parse import urlsplit
from ottla.pipelines.driver.home import Home
from ottla.pipelines.driver.lock import Lock
home = Home(Path(sys.argv[1]), "orders")
home.make()
Lock(home).take()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_driver_is_told_which_process_runs_the_pipeline(tmp_path: Path) -> None:
    home = Home(tmp_path, "orders")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        assert holder(home.lock_file) == first.pid
        with pytest.raises(Refused, match=f"is run by process {first.pid} on this machine"):
            Lock(home).take()
        first.kill()
        first.wait()
    assert holder(home.lock_file) is None
    lock = Lock(home)
    lock.take()
    lock.release()


def test_prometheus_finds_the_figures() -> None:
    server = MetricsServer(lambda: Figures("orders", rows=7))
    url = server.open("127.0.0.1", 0)
    assert url is not None
    try:
        with urllib.request.urlopen(url) as page:
            text = page.read().decode()
        assert 'ottla_pipeline_rows_total{pipeline="orders"} 7.0' in text
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(url.replace("/metrics", "/other"))
        assert missing.value.code == 404
        missing.value.close()
    finally:
        server.close()


def test_a_port_that_is_taken_is_logged_and_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = MetricsServer(lambda: Figures("orders"))
        with caplog.at_level(logging.WARNING):
            assert server.open("127.0.0.1", other.getsockname()[1]) is None
        server.close()
    assert "Name another address with --metrics" in caplog.text


def test_what_children_write_goes_to_a_file_and_our_own_words_to_the_terminal(
    tmp_path: Path,
) -> None:
    program = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from ottla.pipelines.driver.log_files import divert_stderr\n"
        "divert_stderr(Path(sys.argv[1]))\n"
        "subprocess.run(['sh', '-c', 'echo of a child >&2'])\n"
        "print('our own', file=sys.stderr)\n"
    )
    path = tmp_path / "spark.log"
    path.write_text("of the run before\n")
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], stderr=subprocess.PIPE, check=True, text=True
    )
    assert done.stderr == "our own\n"
    assert path.read_text() == "of a child\n"
    assert path.with_name("spark.log.1").read_text() == "of the run before\n"


def test_what_is_logged_is_in_the_pipelines_log(tmp_path: Path) -> None:
    level = logging.getLogger("ottla").level
    handler = open_log(tmp_path / "pipeline.log")
    try:
        logging.getLogger("ottla.pipelines.driver").info("It runs, process %d.", os.getpid())
        assert is_open(tmp_path / "pipeline.log")
        assert not is_open(tmp_path / "another.log")
    finally:
        close_log(handler)
        logging.getLogger("ottla").setLevel(level)
    assert not is_open(tmp_path / "pipeline.log")
    assert (
        f"pipelines.driver: It runs, process {os.getpid()}."
        in (tmp_path / "pipeline.log").read_text()
    )


def test_a_jvm_is_started_deaf_to_the_signals_that_stop_a_service() -> None:
    from pyspark import java_gateway

    asks = "import signal as s; print([s.getsignal(n) == s.SIG_IGN for n in (s.SIGTERM, s.SIGHUP)])"
    before = vars(java_gateway)["Popen"]
    with undisturbed():
        start = vars(java_gateway)["Popen"]
        with start([sys.executable, "-c", asks], stdout=subprocess.PIPE) as started:
            assert started.stdout.read() == b"[True, True]\n"
    assert vars(java_gateway)["Popen"] is before


def test_whoever_connects_and_says_nothing_keeps_neither_prometheus_nor_a_stop_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "_PATIENCE", 600.0)  # who waits for that one waits in vain
    server = MetricsServer(lambda: Figures("orders"))
    page = server.open("127.0.0.1", 0)
    assert page is not None
    with socket.create_connection(("127.0.0.1", urlsplit(page).port or 0)) as silent:
        silent.sendall(b"GET")
        with urllib.request.urlopen(page, timeout=60) as answer:
            assert b'ottla_pipeline_up{pipeline="orders"}' in answer.read()
        ended = threading.Thread(target=server.close, daemon=True)
        ended.start()
        ended.join(60)
        assert not ended.is_alive()


def test_many_who_connect_and_say_nothing_take_few_threads(
    monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    monkeypatch.setattr(metrics, "_PATIENCE", 600.0)
    server = MetricsServer(lambda: Figures("orders"))
    page = server.open("127.0.0.1", 0)
    assert page is not None
    before = threading.active_count()
    address = ("127.0.0.1", urlsplit(page).port or 0)
    with ExitStack() as silent:
        connections = [
            silent.enter_context(socket.create_connection(address, 60)) for _ in range(60)
        ]
        for one in connections[: -metrics.MOST_CONNECTIONS]:
            assert one.recv(1) == b"", "those who came first were closed"
        with urllib.request.urlopen(page, timeout=60) as answer:
            assert b'ottla_pipeline_up{pipeline="orders"}' in answer.read()
        most = before + metrics.MOST_CONNECTIONS
        eventually(lambda: threading.active_count() <= most)
    server.close()


def test_a_log_on_a_full_disk_leaves_the_terminal_alone(capsys):
    handler = open_log(Path("/dev/full"))
    try:
        logging.getLogger("ottla.pipelines.driver").info("Pipeline p runs.")
    finally:
        close_log(handler)
    assert "Logging error" not in capsys.readouterr().err
