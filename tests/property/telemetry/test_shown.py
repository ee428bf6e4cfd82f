"""Whatever clients push, the page can be read, and has the broker's own numbers on it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.metrics_page import OPENMETRICS
from ottla.runtime.exposition import text
from ottla.runtime.metrics import Reading
from ottla.telemetry.clients import NO_ID, Telemetry
from ottla.telemetry.otlp import Point
from ottla.testing.clock import ManualClock

OWN = Reading("ottla_build_info", "1.", "gauge", (), (((), 1),))
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SUFFIXES = st.sampled_from(
    ["", "_total", ".total", "_created", "_info", "_bucket", "_sum", "_count"]
)
NAME = st.builds(str.__add__, st.sampled_from(["a", "a.b", "a_b", "é", ""]), SUFFIXES)
POINT = st.builds(
    Point,
    NAME,
    st.booleans(),
    st.booleans(),
    st.dictionaries(
        st.one_of(TEXT, st.sampled_from(["le", "client_id", "a.b", "a_b", "__name__"])),
        TEXT,
        max_size=3,
    ).map(lambda found: tuple(sorted(found.items()))),
    st.floats(),
)


@pytest.mark.parametrize("wanted", ["", OPENMETRICS])
@settings(deadline=None, max_examples=60)
@given(points=st.lists(POINT, max_size=12), client_id=TEXT)
def test_the_page_can_be_read(wanted: str, points: list[Point], client_id: str) -> None:
    subscriptions = {"s": {"metrics": "*"}}
    telemetry = Telemetry(ManualClock(), lambda: subscriptions, lambda: b"i" * 16, shown=True)
    client = {"client_id": client_id}
    instance_id, told = telemetry.subscribe(NO_ID, client)
    instance = telemetry.admit(instance_id, client, told.id, terminating=False)
    for _ in telemetry.keep(instance, points):
        pass
    readings = [reading for reading in telemetry.read() if reading is not None]
    made, _ = text([OWN, *readings], wanted)
    parse = openmetrics.text_string_to_metric_families if wanted else text_string_to_metric_families
    names = {family.name for family in parse(made.decode())}
    assert {"ottla_build_info", "ottla_build"} & names
