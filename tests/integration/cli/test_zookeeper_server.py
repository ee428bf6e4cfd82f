"""What ZooKeeper is told, and what is refused before Java is started."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli import zookeeper_server
from ottla.cli.kafka_compat import run
from ottla.cli.kafka_compat import zookeeper as tools
from ottla.cli.main import cli
from ottla.cli.zookeeper_server import EFFECTIVE, ServerError, jars, prepare, read_settings
from ottla.config.properties import parse_properties
from ottla.testing.process import free_port


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Java that is only looked at, and a folder of the test's own to be in."""
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\" 2026-01-01' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.delenv("KAFKA_HEAP_OPTS", raising=False)
    monkeypatch.chdir(tmp_path)


def config(text: str) -> Path:
    file = Path("zookeeper.properties")
    file.write_text(text)
    return file


def started(file: Path | None, *given: tuple[str, str], server_id: int | None = None):
    """`prepare`, with what ZooKeeper would read, and the folder free again."""
    prepared = prepare(file, [("clientPort", str(free_port())), *given], server_id)
    os.close(prepared.lock)
    text = Path(prepared.command[-1]).read_text()
    return prepared, {each.key: each.value for each in parse_properties(text)}


def test_the_jars_of_zookeeper_are_found_among_sparks():
    names = [jar.name for jar in jars()]
    for needed in ("zookeeper-3", "zookeeper-jute-", "netty-handler-", "slf4j-api-", "log4j-core"):
        assert any(name.startswith(needed) for name in names), needed
    assert len(names) < 50, "and not all of Spark"


def test_without_the_extra_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(zookeeper_server.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ServerError, match=r"pip install '\.\[zookeeper\]'"):
        prepare(None)


def test_a_cluster_is_not_begun_without_its_zookeeper(monkeypatch, tmp_path):
    monkeypatch.setattr(zookeeper_server.importlib.util, "find_spec", lambda _: None)
    ended = CliRunner().invoke(cli, ["cluster", "up", "--zookeeper", "--data-dir", "trial"])
    assert ended.exit_code == 1
    assert "Error: there is no Apache ZooKeeper here" in ended.stderr
    assert "pip install '.[zookeeper]'" in ended.stderr
    assert not (tmp_path / "trial").exists()


def test_without_java_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ServerError, match=r"Java 17 or newer.*ottla\[zookeeper\]"):
        prepare(None, [("clientPort", str(free_port()))])


def test_without_a_file_it_is_on_loopback_with_no_admin_server(tmp_path):
    prepared, told = started(None)
    assert told["dataDir"] == str(tmp_path / "zookeeper-data")
    assert told["clientPortAddress"] == "127.0.0.1"
    assert told["admin.enableServer"] == "false"
    assert prepared.servers == 1
    assert prepared.addresses == (f"127.0.0.1:{told['clientPort']}",)
    assert prepared.command[-2:] == (
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(tmp_path / "zookeeper-data" / EFFECTIVE),
    )


def test_a_file_says_otherwise_and_stays_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_HEAP_OPTS", "-Xmx1g -Xms1g")
    file = config("dataDir=elsewhere\nclientPortAddress=0.0.0.0\nclientPort=1\nmetrics.x=a\\\\b\n")
    prepared, told = started(file)
    assert told["dataDir"] == str(tmp_path / "elsewhere")
    assert told["clientPortAddress"] == "0.0.0.0"
    assert told["metrics.x"] == "a\\b"
    assert f"-Dottla.config={tmp_path / 'zookeeper.properties'}" in prepared.command
    assert "-Xmx1g" in prepared.command
    assert "-Xmx512m" not in prepared.command


def test_tls_alone_is_not_joined_by_a_plain_port():
    settings = read_settings(config("secureClientPort=2281\n"), ())
    assert "clientPort" not in settings
    assert settings["secureClientPortAddress"] == "127.0.0.1"


def test_our_own_file_is_kafkas():
    ours = Path(__file__).parents[3] / "config" / "zookeeper.properties"
    told = {each.key: each.value for each in parse_properties(ours.read_text())}
    assert told == {
        "dataDir": "zookeeper-data",
        "clientPort": "2181",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("clientPort=abc", "clientPort is a number from 1 on, not 'abc'"),
        ("clientPort=70000", "up to 65535"),
        ("tickTime=-1", "tickTime is a number"),
        ("dataDir=\\u00zz", "line 1"),
    ],
)
def test_settings_that_are_not_allowed(text, problem):
    with pytest.raises(ServerError, match=problem) as caught:
        prepare(config(text))
    assert "zookeeper.properties" in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(ServerError, match=r"absent\.properties: No such file"):
        prepare(Path("absent.properties"))


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"127.0.0.1:{port}: address already in use"):
            prepare(None, [("clientPort", str(port))])


def test_a_folder_is_for_one_server():
    first = prepare(None, [("clientPort", str(free_port()))])
    with pytest.raises(ServerError, match="zookeeper-data is in use by another ZooKeeper"):
        prepare(None, [("clientPort", str(free_port()))])
    os.close(first.lock)
    started(None)


def test_a_folder_that_cannot_be_made():
    Path("file").touch()
    with pytest.raises(ServerError, match=r"dataDir .*file/below: Not a directory"):
        prepare(None, [("dataDir", "file/below"), ("clientPort", str(free_port()))])


ENSEMBLE = "server.1=a:2888:3888\nserver.2=b:2888:3888\nserver.3=c:2888:3888\n"


def test_a_server_of_an_ensemble_learns_its_number_once():
    file = config(ENSEMBLE)
    with pytest.raises(ServerError, match=r"ensemble of 3 servers.*--id \(one of 1, 2, 3\)"):
        started(file)
    with pytest.raises(ServerError, match=r"has no server\.4"):
        started(file, server_id=4)
    prepared, told = started(file, server_id=2)
    assert prepared.servers == 3
    assert (told["initLimit"], told["syncLimit"]) == ("10", "5")
    started(file)
    with pytest.raises(ServerError, match="says that this is server 2"):
        started(file, server_id=3)
    with pytest.raises(ServerError, match="names no servers"):
        started(config(""), server_id=1)


# --- Kafka's names --------------------------------------------------------------------------------


def test_start_takes_kafkas_arguments(capsys):
    assert run("zookeeper-server-start", []) == 1
    assert "USAGE: zookeeper-server-start [-daemon]" in capsys.readouterr().err
    assert run("zookeeper-server-start", ["absent.properties"]) == 1
    assert "absent.properties: No such file" in capsys.readouterr().err
    assert run("zookeeper-server-start", [str(config("clientPort=x"))]) == 1
    assert "clientPort is a number" in capsys.readouterr().err


def test_shell_takes_kafkas_arguments(capsys):
    assert run("zookeeper-shell", []) == 1
    assert "USAGE: zookeeper-shell" in capsys.readouterr().err
    assert run("zookeeper-shell", ["host:port", "ls", "/"]) == 1
    assert "is no ZooKeeper address" in capsys.readouterr().err
    assert run("zookeeper-shell", ["127.0.0.1:1", "ls", "/"]) == 1
    assert "no ZooKeeper answers at 127.0.0.1:1" in capsys.readouterr().err


def test_tools_are_refused_at_once_where_no_zookeeper_is(capsys):
    nobody = f"127.0.0.1:{free_port()}"
    for tool, *arguments in (
        ("kafka-topics", "--list"),
        ("kafka-console-consumer", "--topic", "t"),
        ("kafka-list-topic",),
    ):
        assert run(tool, [*arguments, "--zookeeper", f"{nobody}/chroot"]) == 1
        why = f"no ZooKeeper answers at {nobody} (Connection refused): is it running, and is the"
        assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "yes"),
    [
        ("/jdk/bin/java -Xmx512m org.apache.zookeeper.server.quorum.QuorumPeerMain z.cfg", True),
        ("java org.apache.zookeeper.server.quorum.QuorumPeerMain z.cfg", True),
        ("grep org.apache.zookeeper.server.quorum.QuorumPeerMain", False),
        ("java kafka.Kafka server.properties", False),
    ],
)
def test_servers_are_known_by_their_command_line(line, yes):
    assert tools.is_server(line.split()) is yes


def test_stop_signals_every_server_of_this_user(monkeypatch, capsys):
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(tools, "processes", lambda: iter([11, 12]))
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    assert run("zookeeper-server-stop", []) == 0
    monkeypatch.setenv("SIGNAL", "KILL")
    assert run("zookeeper-server-stop", []) == 0
    assert told == [
        (11, signal.SIGTERM), (12, signal.SIGTERM), (11, signal.SIGKILL), (12, signal.SIGKILL),
    ]  # fmt: skip
    monkeypatch.setenv("SIGNAL", "NONSENSE")
    assert run("zookeeper-server-stop", []) == 1
    assert "no such signal" in capsys.readouterr().err
    monkeypatch.delenv("SIGNAL")
    monkeypatch.setattr(tools, "processes", lambda: iter(()))
    assert run("zookeeper-server-stop", []) == 1
    assert "No zookeeper server to stop" in capsys.readouterr().out
