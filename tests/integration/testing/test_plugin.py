"""The pytest plugin, as other people's test runs meet it: pytest in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

MODULE = "ottla.testing.plugin"


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    installed = any(each.value == MODULE for each in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", MODULE)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester.runpytest_subprocess(
        *plugin, "-p", "no:cacheprovider", "--strict-markers", "-W", "error", *arguments
    )


def test_each_test_has_a_broker_of_its_own_that_is_gone_afterwards(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import os, socket
        import pytest

        seen = []

        @pytest.mark.parametrize("turn", [1, 2])
        def test_one(ottla_broker, turn):
            assert ottla_broker.topics() == {}
            ottla_broker.produce("orders", "tea")
            seen.append(ottla_broker)

        def test_after():
            first, second = seen
            assert first.data_dir != second.data_dir
            for broker in seen:
                assert not os.path.exists(broker.data_dir)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", broker.port))
        """
    )
    run(pytester).assert_outcomes(passed=3)


def test_a_failing_test_leaves_nothing_behind(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os

        seen = []

        def test_fails(ottla_broker):
            seen.append(ottla_broker.data_dir)
            raise KeyError("on purpose")

        def test_after():
            assert not os.path.exists(seen[0])
        """
    )
    run(pytester).assert_outcomes(passed=1, failed=1)


def test_a_test_run_that_is_interrupted_removes_the_data(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pathlib import Path

        def test_interrupted(ottla_broker):
            Path("where").write_text(str(ottla_broker.data_dir))
            raise KeyboardInterrupt
        """
    )
    result = run(pytester)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    where = (pytester.path / "where").read_text()
    assert not (pytester.path / where).exists()


def test_markers_add_up_and_the_nearest_wins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.ottla(
            config={"num.partitions": 2, "message.max.bytes": 5000}, topics=["a"]
        )

        @pytest.mark.ottla(config={"num.partitions": 4}, topics={"b": 3}, folders=2)
        def test_marked(ottla_broker):
            assert ottla_broker.topics() == {"a": 4, "b": 3}
            assert ottla_broker.configs()["message.max.bytes"] == "5000"
            assert len(ottla_broker.data_dirs) == 2
        """
    )
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("configs={}", "mark.ottla takes config, topics, folders, not configs"),
        ("config={'num.partition': 1}", "num.partition"),
    ],
)
def test_a_mistake_in_a_marker_is_named(pytester: pytest.Pytester, marker: str, said: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.ottla({marker})
        def test_marked(ottla_broker):
            pass
        """
    )
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{said}*"])


def test_the_session_broker_is_shared_and_configured_by_a_fixture(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def ottla_session_options():
            return {"topics": {"shared": 2}}
        """
    )
    pytester.makepyfile(
        """
        def test_one(ottla_session_broker):
            ottla_session_broker.produce("shared", "tea")

        def test_two(ottla_session_broker):
            assert len(ottla_session_broker.consume("shared")) == 1
            assert ottla_session_broker.topics() == {"shared": 2}
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_workers_of_xdist_do_not_meet(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("turn", range(8))
        def test_alone(ottla_broker, ottla_session_broker, turn, worker_id):
            assert ottla_broker.topics() == {}
            ottla_broker.produce("orders", "tea")
            ottla_session_broker.produce(f"topic-{turn}", worker_id)
            for topic in ottla_session_broker.topics():
                [record] = ottla_session_broker.consume(topic)
                assert record.value == worker_id.encode()
        """
    )
    run(pytester, "-n", "2").assert_outcomes(passed=8)


def test_the_plugin_costs_nothing_until_a_fixture_is_used() -> None:
    code = (
        f"import sys, {MODULE}\n"
        "heavy = [name for name in sys.modules if name.startswith('ottla.') and "
        "not name.startswith('ottla.testing')]\n"
        f"assert not heavy and 'ottla.testing.broker' not in sys.modules, heavy\n"
        "assert 'uvloop' not in sys.modules and 'confluent_kafka' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
