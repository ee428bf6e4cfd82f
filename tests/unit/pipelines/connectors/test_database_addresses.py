"""What is printed of a database's address, what is not, and what becomes of its errors."""

from __future__ import annotations

import pickle

import pytest

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.databases import (
    DatabaseError,
    Missing,
    _patient,
    failure,
    identifier,
    literal,
    passwords,
    place,
)


class DriverError(Exception):
    def __init__(self, text: str, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("dsn", "printed"),
    [
        ("postgresql://ann:s3cret@db:5433/shop?sslmode=require", "db:5433/shop"),
        ("postgres://db/shop", "db/shop"),
        ("postgresql:///shop", "the local socket/shop"),
        ("host=db port=5433 dbname=shop user=ann password='s3 cret'", "db:5433/shop"),
        ("dbname=shop", "the local socket/shop"),
        ("postgresql://ann:s3#cret@db:5433/shop", "db:5433/shop"),
        ("postgresql://ann:s3?cret@db/shop?sslmode=require", "db/shop"),
        ("postgresql://ann:s3/cret@db/shop", "db/shop"),
        ("postgresql://ann:s3@cret@db/shop", "db/shop"),
        ("postgresql://ann:s3/c?ret@db/shop", "an address that cannot be read"),
        ("postgresql://db,other:5433/shop?user=a@b", "db,other:5433/shop"),
        ("postgresql://[::1]:5433/shop", "[::1]:5433/shop"),
    ],
)
def test_of_an_address_host_port_and_database_are_printed(dsn: str, printed: str) -> None:
    assert place(dsn) == printed


@pytest.mark.parametrize(
    ("dsn", "hidden"),
    [
        ("postgresql://ann:s3%40cret@db/shop", ("s3%40cret", "s3@cret")),
        ("postgresql://db/shop?user=ann&password=s3cret", ("s3cret",)),
        ("host=db password='it\\'s 3'", ("it's 3",)),
        ("postgresql://ann@db/shop", ()),
        ("postgresql://ann:s3#cret@db/shop", ("s3#cret",)),
        ("postgresql://ann:s3?cret@db/shop", ("s3?cret",)),
    ],
)
def test_a_password_is_found_wherever_it_stands(dsn: str, hidden: tuple[str, ...]) -> None:
    assert passwords(dsn) == hidden


@pytest.mark.parametrize("sign", ["/", "@", "/?", "#/"])
def test_of_a_password_that_is_not_written_as_it_must_be_no_part_is_told(sign: str) -> None:
    # libpq takes a part of it for a port or a host, and says so
    hidden = passwords(f"postgresql://ann:s3x{sign}cret@db/shop")
    for part in ("s3x", "cret"):
        told = failure("here", DriverError(f'invalid integer value "{part}" for "port"'), hidden)
        assert part not in str(told)


def test_a_question_mark_in_a_password_begins_no_parameters() -> None:
    assert _patient("postgresql://ann:s3?cret@db/shop", "x").startswith(
        "postgresql://ann:s3?cret@db/shop?connect_timeout=10&"
    )
    assert "?sslmode=require&connect_timeout" in _patient("postgres://db/shop?sslmode=require", "x")


def test_no_error_tells_a_password() -> None:
    told = failure("PostgreSQL at db", DriverError("IO: invalid URI: s3cret@db"), ["s3cret"])
    assert "s3cret" not in str(told)
    assert "***@db" in str(told)


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("08006", Outage),
        ("42501", Outage),
        ("53100", Outage),
        ("57P01", Outage),
        ("40P01", Outage),
        ("42P01", Missing),
        ("42703", Missing),
        ("23505", DatabaseError),
        ("22P02", DatabaseError),
    ],
)
def test_an_outage_is_told_from_what_a_row_has_done(sqlstate: str, kind: type[Exception]) -> None:
    told = failure("PostgreSQL at db", DriverError("UNKNOWN: ERROR:  no", sqlstate))
    assert type(told) is kind
    assert str(told) == "PostgreSQL at db: no"
    again = pickle.loads(pickle.dumps(told))
    assert (type(again), str(again)) == (kind, str(told))


def test_a_code_is_found_in_the_text_of_an_error_that_came_through_arrow() -> None:
    told = failure("PostgreSQL at db", OSError("terminating connection. SQLSTATE: 57P01"))
    assert isinstance(told, Outage)
    assert str(told) == "PostgreSQL at db: terminating connection"


def test_names_and_texts_are_quoted_whatever_is_in_them() -> None:
    assert identifier("public", 'o"dd') == '"public"."o""dd"'
    assert literal("it's") == "'it''s'"
    assert literal(7) == "7"
    assert literal(None) == "null"
    with pytest.raises(ValueError, match="zero byte"):
        literal("a\0b")
