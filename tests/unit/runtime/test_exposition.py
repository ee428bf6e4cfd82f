"""Readings as text: both formats can be parsed, and say what was read."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.metrics_page import OPENMETRICS
from ottla.runtime.exposition import text
from ottla.runtime.metrics import Distribution, Reading

READINGS = (
    Reading("requests_total", "Requests.", "counter", ("api",), ((("Fetch",), 5),)),
    Reading("level", 'A "level" \\ or\nso.', "gauge", ("group",), ((('a"b\\c\nd',), 1.5),)),
    Reading(
        "time_seconds",
        "Time.",
        "histogram",
        ("api",),
        ((("Fetch",), Distribution((0.1, 1.0), (2, 1, 1), 7.65)),),
    ),
    Reading("sparse", "Few labels.", "gauge", ("a", "b"), ((("", "x"), 1), (("", ""), 2))),
    Reading("empty_total", "Nothing yet.", "counter", ("topic",), ()),
)


@pytest.mark.parametrize("wanted", ["", OPENMETRICS])
def test_what_is_read_is_what_a_scraper_understands(wanted: str) -> None:
    body, content_type = text(READINGS, wanted)
    page = body.decode()
    parse = openmetrics.text_string_to_metric_families if wanted else text_string_to_metric_families
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(page)
        for sample in family.samples
    }
    assert samples["requests_total", (("api", "Fetch"),)] == 5
    assert samples["level", (("group", 'a"b\\c\nd'),)] == 1.5
    assert samples["sparse", (("b", "x"),)] == 1
    assert samples["sparse", ()] == 2
    buckets = [
        samples["time_seconds_bucket", (("api", "Fetch"), ("le", bound))]
        for bound in ("0.1", "1.0", "+Inf")
    ]
    assert buckets == [2, 3, 4]
    assert samples["time_seconds_sum", (("api", "Fetch"),)] == 7.65
    assert samples["time_seconds_count", (("api", "Fetch"),)] == 4
    assert samples["process_open_fds", ()] > 0
    assert "# TYPE empty" in page
    assert content_type.startswith(wanted or "text/plain; version=0.0.4")
