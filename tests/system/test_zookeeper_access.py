"""A broker and a ZooKeeper that lets in only who speaks TLS and knows the password."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.process import LOOPBACK, BrokerProcess, free_port
from ottla.testing.zookeeper import ZooKeeperProcess

CERTIFICATES = Path(__file__).parent / "tls"
PASSWORD = "open-sesame"
TLS = (
    "zookeeper.ssl.client.enable=true",
    f"zookeeper.ssl.truststore.location={CERTIFICATES / 'ca.pem'}",
)
USER = ("zookeeper.digest.username=ottla", f"zookeeper.digest.password={PASSWORD}")

Start = Callable[..., BrokerProcess]


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[str]:
    """The address at which a ZooKeeper speaks TLS."""
    port = free_port()
    settings = {
        "secureClientPort": port,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": CERTIFICATES / "server.pem",
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": CERTIFICATES / "ca.pem",
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "none",
    }
    with ZooKeeperProcess(tmp_path / "zookeeper", settings=settings) as server:
        server.start()
        yield f"{LOOPBACK}:{port}"


@pytest.fixture
def broker_with(tmp_path: Path, start_broker: Start, secure: str) -> Callable[..., BrokerProcess]:
    """A broker whose properties file says these things, and that was not started."""

    def make(name: str, broker_id: int, *lines: str, patience_ms: int = 120_000) -> BrokerProcess:
        file = tmp_path / f"{name}.properties"
        about = (
            f"broker.id={broker_id}",
            f"zookeeper.connect={secure}/ottla",
            f"zookeeper.connection.timeout.ms={patience_ms}",
        )
        file.write_text("\n".join([*about, *lines]) + "\n")
        return start_broker(name, launch=False, arguments=["--config", str(file)])

    return make


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def refusal(broker: BrokerProcess) -> str:
    broker.launch()
    assert broker.wait() == 1
    return broker.wait_log("Error: ")


def test_a_broker_is_let_in_with_what_its_file_says(
    broker_with: Callable[..., BrokerProcess],
) -> None:
    broker = broker_with("one", 1, *TLS, *USER).start()
    client = admin(broker)
    for created in client.create_topics([NewTopic("t", 2, 1)]).values():
        created.result(120)
    other = broker_with("two", 2, *TLS, *USER).start()
    assert "t" in admin(other).list_topics(timeout=60).topics
    broker.kill()
    broker.start()
    assert len(admin(broker).list_topics("t", timeout=60).topics["t"].partitions) == 2
    command = Path(f"/proc/{broker.pid}/cmdline").read_text()
    assert PASSWORD not in command + broker.log() + other.log()


REFUSED = {
    "another user": [(*TLS, USER[0], "zookeeper.digest.password=wrong"), TLS],
    "zookeeper.digest.password is missing": [(*TLS, USER[0])],
    "no ZooKeeper answers": [USER],
    "with a certificate that our authorities": [("zookeeper.ssl.client.enable=true", *USER)],
}


def test_who_is_not_let_in_is_told_why_and_harms_nobody(
    broker_with: Callable[..., BrokerProcess],
) -> None:
    broker = broker_with("one", 1, *TLS, *USER).start()
    # Who speaks with it is refused at once, however slow that is; the others try for so long.
    hopeless = {"no ZooKeeper answers", "with a certificate that our authorities"}
    strangers = [(reason, lines) for reason, all_lines in REFUSED.items() for lines in all_lines]
    for number, (reason, lines) in enumerate(strangers, start=2):
        patience = {"patience_ms": 10_000} if reason in hopeless else {}
        text = refusal(broker_with(f"stranger-{number}", number, *lines, **patience))
        assert reason in text
        assert PASSWORD not in text
    client = admin(broker)
    described = client.describe_cluster(request_timeout=60).result()
    assert [node.id for node in described.nodes] == [1]
