"""Where ZooKeeper is, and how to be let in."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cluster.zookeeper.address import (
    Access,
    Address,
    BadAddress,
    Tls,
    parse_address,
    read_access,
    tls_context,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", Address((("localhost", 2181),))),
        ("zk:2182/", Address((("zk", 2182),))),
        (" a:1 , b:2/x/y/ ", Address((("a", 1), ("b", 2)), "/x/y")),
        ("[::1]:2181/ottla", Address((("[::1]", 2181),), "/ottla")),
    ],
)
def test_a_connection_string_is_kafkas(text, address):
    assert parse_address(text) == address


def test_an_address_is_shown_as_it_would_be_typed():
    assert str(parse_address("a:1,b/x")) == "a:1,b:2181/x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "an empty server"),
        ("a:1,,b:2", "an empty server"),
        ("a:port", "'a:port' is not host:port"),
        ("a:70000", "'a:70000' is not host:port"),
        ("a:1/x,b:2/x", "the chroot comes once"),
        ("http://a:1", "'http:' is not host:port"),
        ("a:1/x//y", "is no path"),
        ("a:1/../y", "is no path"),
        ("a:1/zookeeper/x", "ZooKeeper's own"),
    ],
)
def test_what_is_no_connection_string_is_said(text, problem):
    with pytest.raises(BadAddress, match=problem):
        parse_address(text)


def test_credentials_and_tls_come_from_a_file(tmp_path: Path):
    for name in ("ca.pem", "client.pem"):
        (tmp_path / name).touch()
    file = tmp_path / "zookeeper-client.properties"
    file.write_text(
        f"""\
zookeeper.connect=elsewhere:1
zookeeper.digest.username=ottla
zookeeper.digest.password=secret
zookeeper.ssl.client.enable=true
zookeeper.ssl.truststore.location={tmp_path}/ca.pem
zookeeper.ssl.keystore.location={tmp_path}/client.pem
zookeeper.ssl.keystore.password=changeit
zookeeper.ssl.endpoint.identification.algorithm=
"""
    )
    access = read_access(file)
    assert (access.username, access.password) == ("ottla", "secret")
    assert access.tls is not None
    assert access.tls.authorities == f"{tmp_path}/ca.pem"
    assert access.tls.key == access.tls.certificate == f"{tmp_path}/client.pem"
    assert not access.tls.check_host
    assert "secret" not in repr(access)
    assert "changeit" not in repr(access)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zookeeper.digest.username=a", "password is missing"),
        ("zookeeper.digest.password=a", "username is missing"),
        ("zookeeper.digest.username=a:b\nzookeeper.digest.password=c", "nor have a colon"),
        ("zookeeper.ssl.client.enable=yes", "is true or false"),
        (
            "zookeeper.ssl.client.enable=true\nzookeeper.ssl.truststore.location=/no/ca.pem",
            "there is no file /no/ca.pem",
        ),
    ],
)
def test_a_file_of_credentials_that_cannot_be_used(tmp_path, text, problem):
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(BadAddress, match=problem) as caught:
        read_access(file)
    assert str(file) in str(caught.value)


def test_java_key_stores_are_refused_with_the_way_out(tmp_path):
    (tmp_path / "store.jks").touch()
    file = tmp_path / "client.properties"
    file.write_text(
        "zookeeper.ssl.client.enable=true\n"
        f"zookeeper.ssl.truststore.location={tmp_path}/store.jks\n"
    )
    with pytest.raises(BadAddress, match="openssl pkcs12"):
        read_access(file)


def test_no_file_no_access(tmp_path):
    assert Access().tls is None
    with pytest.raises(BadAddress, match="cannot be read"):
        read_access(tmp_path / "absent")


def test_a_certificate_that_is_none_is_named(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing of the kind")
    with pytest.raises(BadAddress, match=r"ca\.pem cannot be used for TLS"):
        tls_context(Tls(authorities=str(tmp_path / "ca.pem")))
