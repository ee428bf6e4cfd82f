"""`ottla cluster status`: what is shown of a cluster's health."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import ClassVar, Self, cast

import pytest
from click.testing import Result

from ottla.cli import cluster_status
from ottla.cli.cluster_status import Looker, as_lines, document, frame
from ottla.client.cluster_health import BrokerHealth, ClusterHealth, Known, PartitionHealth
from ottla.errors import ErrorCode, KafkaError

Run = Callable[..., Result]

NOON = 1_794_830_400_000
UP = BrokerHealth(1, "127.0.0.1:9092", "r1", False, 2, 3, 3, "one", NOON)
FENCED = BrokerHealth(2, "127.0.0.1:9093", None, True, 0, 3, 0)
MISSING = BrokerHealth(3, None, None, False, 0, 3, 0)
OFFLINE = PartitionHealth("t", 0, None, (3, 2), (), (2, 3), (), 2)
STRANDED = PartitionHealth("t", 1, None, (3, 2), (), (), (2, 3), 2)
BARE = PartitionHealth("t", 2, 1, (1, 3), (1,), (3,), (), 2)

WIDE = 500


def lines(*troubled: PartitionHealth, brokers: tuple[BrokerHealth, ...]) -> list[str]:
    return list(as_lines(frame(ClusterHealth("abc", 1, brokers, 12, troubled)), WIDE))


def test_a_cluster_in_order_is_two_lines_and_its_brokers() -> None:
    assert lines(brokers=(UP,)) == [
        "cluster abc: 1 broker up, broker 1 is the controller; 12 partitions, all in sync",
        "BROKER  ADDRESS         HOST  RACK  STATE       SINCE                LEADS  REPLICAS  "
        "IN SYNC",
        "     1  127.0.0.1:9092  one   r1    controller  2026-11-16 12:00:00      2         3  "
        "      3",
    ]


def test_partitions_that_lack_something_are_listed_with_whom_they_wait_for() -> None:
    shown = lines(OFFLINE, STRANDED, BARE, brokers=(UP, FENCED, MISSING))
    assert shown[0].endswith("12 partitions, 2 offline, 3 under min.insync, 3 under-replicated")
    assert shown[3:5] == [
        "     2  127.0.0.1:9093  -     -     fenced      -                        0         3  "
        "      0",
        "     3  -               -     -     missing     -                        0         3  "
        "      0",
    ]
    assert shown[5:] == [
        "",
        "PARTITION  STATE             LEADER  REPLICAS  IN SYNC  ELIGIBLE  WAITS FOR",
        "t-0        offline                -  3,2       -        2,3       any of 2,3",
        "t-1        offline                -  3,2       -        -         all of 2,3",
        "t-2        under min.insync       1  1,3       1        3         broker 3",
    ]


def test_a_narrow_terminal_shows_the_verdict_and_who_is_in_sync() -> None:
    health = ClusterHealth("abc", 1, (UP, FENCED), 12, (OFFLINE, BARE))
    shown = list(as_lines(frame(health), 72))
    assert max(map(len, shown)) <= 72
    assert shown[:5] == [
        "cluster abc: 1 broker up, broker 1 is the controller; 12 partitions, 1",
        "offline, 2 under min.insync, 2 under-replicated",
        "BROKER  ADDRESS         HOST  RACK  STATE       LEADS  REPLICAS  IN SYNC",
        "     1  127.0.0.1:9092  one   r1    controller      2         3        3",
        "     2  127.0.0.1:9093  -     -     fenced          0         3        0",
    ]
    assert shown[6] == "PARTITION  STATE             LEADER  REPLICAS  IN SYNC  WAITS FOR"


def test_what_is_old_is_called_old() -> None:
    known = Known(ours=True, store_away={1: NOON + 1_000, 2: NOON}, silent=frozenset({3}))
    health = ClusterHealth("abc", 1, (UP,), 12, (), known)
    assert list(as_lines(frame(health), WIDE))[1:3] == [
        "the metadata store is out of reach of brokers 1,2 since 2026-11-16 12:00:00: what is "
        "shown may be as old as that, and leaders cannot change",
        "called up, but without an answer: broker 3",
    ]
    shown = document(health)
    assert shown["store_away"] == [
        {"broker": 1, "since": NOON + 1_000},
        {"broker": 2, "since": NOON},
    ]
    assert shown["silent"] == [3]


class Screen:
    """A terminal that somebody leaves after three pictures."""

    drawn: ClassVar[list[list[str]]] = []

    def __enter__(self) -> Self:
        self.drawn.clear()
        return self

    def __exit__(self, *_: object) -> None: ...

    def size(self) -> tuple[int, int]:
        return 200, 10

    def draw(self, lines: list[str]) -> None:
        self.drawn.append(lines)

    def wait(self, _interval: float) -> list[str]:
        return ["q"] if len(self.drawn) == 3 else []


def test_a_picture_that_stays_says_of_when_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100))
    clock = SimpleNamespace(strftime=lambda form: f"12:00:{next(seconds):02}")
    away = KafkaError(ErrorCode.NETWORK_EXCEPTION, "nobody is there")
    outcomes = iter([ClusterHealth("abc", 1, (UP,), 12, ()), away, away])

    class Looker:
        bootstrap = "127.0.0.1:1"

        def look(self) -> ClusterHealth:
            found = next(outcomes)
            if isinstance(found, KafkaError):
                raise found
            return found

    monkeypatch.setattr("ottla.cli.cluster_status.time", clock)
    monkeypatch.setattr("ottla.cli.terminal.Terminal", Screen)
    cluster_status._draw(cast(cluster_status.Looker, Looker()), 1.0)
    first, second, third = Screen.drawn
    assert first[:2] == ["ottla cluster status  12:00:00", ""]
    for later, picture in enumerate((second, third), 1):
        assert picture[0] == f"ottla cluster status  12:00:0{later}  nobody is there; trying again"
        assert picture[1] == "below is how it was at 12:00:00"
        assert picture[2:] == first[2:]


def test_lines_that_do_not_fit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    health = ClusterHealth("abc", 1, (UP, FENCED, MISSING), 12, ())
    looker = SimpleNamespace(bootstrap="127.0.0.1:1", look=lambda: health)
    monkeypatch.setattr("ottla.cli.terminal.Terminal", Screen)
    monkeypatch.setattr(Screen, "size", lambda _: (200, 5))
    cluster_status._draw(cast(cluster_status.Looker, looker), 1.0)
    assert len(Screen.drawn[0]) == 5
    assert Screen.drawn[0][-1] == "… 3 more lines: the window is too small"


def test_one_that_could_be_led_already_waits_for_the_controller() -> None:
    live = PartitionHealth("t", 0, None, (1,), (1,), (), ())
    assert lines(live, brokers=(UP,))[-1].endswith("the controller")


def test_one_whose_replicas_are_all_there_waits_for_what_they_report() -> None:
    silent = PartitionHealth("t", 0, None, (1, 3), (), (), (1,))
    assert lines(silent, brokers=(UP,))[-1].endswith("reports of 1")


def test_one_whose_log_cannot_be_served_waits_for_that() -> None:
    broken = PartitionHealth("t", 0, None, (1, 3), (1,), (), (), 1, broken=(1,))
    assert lines(broken, brokers=(UP,))[-1].endswith("the log of broker 1")


def test_files_that_do_not_count_are_named() -> None:
    known = Known(min_insync=2, overruled={3: 1, 1: 3})
    health = ClusterHealth("abc", 1, (UP,), 12, (), known)
    assert as_text(health)[1] == (
        "min.insync.replicas is 2 in the whole cluster; what files of brokers say does not count: "
        "3 in that of broker 1, 1 in that of broker 3"
    )
    told = document(health)
    assert told["min_insync"] == 2
    assert told["overruled"] == [{"broker": 1, "min_insync": 3}, {"broker": 3, "min_insync": 1}]


def as_text(health: ClusterHealth) -> list[str]:
    return "\n".join(as_lines(frame(health), WIDE)).splitlines()


def test_a_long_list_is_cut_and_tells_where_the_rest_is() -> None:
    many = [PartitionHealth("t", n, 1, (1, 3), (1,), (), ()) for n in range(1025)]
    shown = lines(*many, brokers=(UP,))
    assert "the worst 20; 1,005 more are listed with --json" in shown
    assert sum(line.startswith("t-") for line in shown) == 20


def test_a_name_of_another_broker_does_no_harm_to_the_terminal() -> None:
    evil = PartitionHealth("t\x1b[2J", 0, 1, (1, 3), (1,), (), ())
    assert not any("\x1b" in line for line in lines(evil, brokers=(UP,)))


def test_programs_are_told_everything() -> None:
    told = document(ClusterHealth("abc", 1, (UP, MISSING), 12, (STRANDED,)))
    assert told == {
        "cluster": "abc",
        "controller": 1,
        "partitions": 12,
        "offline": 1,
        "under_min_insync": 1,
        "under_replicated": 1,
        "moving": 0,
        "min_insync": None,
        "overruled": [],
        "store_away": [],
        "silent": [],
        "brokers": [
            {
                "id": 1,
                "address": "127.0.0.1:9092",
                "host": "one",
                "rack": "r1",
                "state": "up",
                "since": NOON,
                "leads": 2,
                "replicas": 3,
                "in_sync": 3,
            },
            {
                "id": 3,
                "address": None,
                "host": None,
                "rack": None,
                "state": "missing",
                "since": None,
                "leads": 0,
                "replicas": 3,
                "in_sync": 0,
            },
        ],
        "troubled": [
            {
                "topic": "t",
                "partition": 1,
                "state": "offline",
                "leader": None,
                "replicas": [3, 2],
                "in_sync": [],
                "eligible": [],
                "last_known_eligible": [2, 3],
                "min_insync": 2,
                "waits_for": [2, 3],
                "waits_for_all": True,
                "broken": [],
            }
        ],
    }


def test_up_refuses_what_cannot_be(ottla: Run) -> None:
    assert "--brokers" in ottla("cluster", "up", "--brokers", "0").stderr
    refused = ottla("cluster", "up", "--base-port", "65534")
    assert refused.exit_code == 2
    assert "3 brokers from port 65534 on need ports above 65535" in refused.stderr
    unknown = ottla("cluster", "up", "--set", "num.partitions=many")
    assert unknown.exit_code == 1
    assert "num.partitions" in unknown.stderr


def test_a_broker_that_goes_away_under_a_look_does_not_end_the_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It latched: `cluster restart` then never saw that a broker was back."""
    asked: list[bool | None] = []
    told = iter([True, False, True])

    def look(admin: object, *, ours: bool | None) -> ClusterHealth:
        asked.append(ours)
        return ClusterHealth("c", 1, (), 0, (), Known(ours=next(told)))

    monkeypatch.setattr("ottla.client.cluster_health.look", look)
    monkeypatch.setattr(Looker, "admin", None)
    looker = Looker("127.0.0.1:9092")
    assert [looker.look().known.ours for _ in range(3)] == [True, False, True]
    assert asked == [None, True, True]


def test_a_cluster_of_others_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool | None] = []

    def look(admin: object, *, ours: bool | None) -> ClusterHealth:
        asked.append(ours)
        return ClusterHealth("c", 1, (), 0, ())

    monkeypatch.setattr("ottla.client.cluster_health.look", look)
    monkeypatch.setattr(Looker, "admin", None)
    looker = Looker("127.0.0.1:9092")
    for _ in range(2):
        looker.look()
    assert asked == [None, False]
