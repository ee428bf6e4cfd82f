"""Signals, locks, and starting where something else already is."""

from __future__ import annotations

import signal
import socket

import pytest

from ottla.testing.process import BrokerProcessError

CLEAN_SHUTDOWN_MARK = ".kafka_cleanshutdown"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(number, start_broker, wire, raw, batch):
    broker = start_broker()
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "t")
    assert raw.produce(connection, "t", batch([b"x"])).error_code == 0
    broker.signal(number)
    assert broker.wait() == 0
    assert (broker.data_dir / CLEAN_SHUTDOWN_MARK).exists()
    position = broker.log_size()
    broker.start()
    assert raw.fetch(wire(broker.bootstrap), "t").high_watermark == 1
    assert "not closed cleanly" not in broker.log_since(position)
    assert "Traceback" not in broker.log()


def test_clients_that_wait_do_not_hold_up_the_end(start_broker, wire, raw):
    broker = start_broker()
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "t")
    waiting = [wire(broker.bootstrap) for _ in range(20)]
    asked = {"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}
    for one in waiting:
        one.send("fetch", 12, max_wait=120_000, min_bytes=1, max_bytes=1000, topics=[asked])
    assert broker.terminate(timeout=60) == 0, "half of what they would wait"


def test_a_signal_that_comes_twice_stops_it_cleanly(start_broker, wire, raw):
    broker = start_broker()
    raw.create_topic(wire(broker.bootstrap), "t", 50)
    broker.signal(signal.SIGSTOP)  # it finds both of them, however slowly they are sent
    broker.signal(signal.SIGTERM)
    broker.signal(signal.SIGINT)  # no second one: see `runtime.process.SAME_SECONDS`
    broker.signal(signal.SIGCONT)
    assert broker.wait() == 0
    broker.start()
    assert raw.fetch(wire(broker.bootstrap), "t", partition=49).error_code == 0


def test_a_second_broker_in_the_same_folder_is_refused(start_broker, wire):
    first = start_broker()
    second = start_broker("second", data_dir=first.data_dir, launch=False)
    second.launch()
    assert second.wait() != 0
    said = second.log()
    assert str(first.data_dir) in said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 5
    assert wire(first.bootstrap).ask("api_versions", 0).error_code == 0


def test_a_port_that_is_taken_is_named(start_broker):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = start_broker(port=port, launch=False)
        broker.launch()
        assert broker.wait() != 0
    assert str(port) in broker.log()
    assert "Traceback" not in broker.log()


def test_a_wrong_setting_is_named_before_anything_starts(start_broker):
    with pytest.raises(BrokerProcessError, match=r"num\.partitions"):
        start_broker(settings={"num.partitions": "many"})


def test_a_folder_of_another_node_is_refused(start_broker):
    broker = start_broker(settings={"node.id": 5})
    broker.terminate()
    broker.settings["node.id"] = 6
    with pytest.raises(BrokerProcessError, match=r"meta\.properties|node"):
        broker.start()
