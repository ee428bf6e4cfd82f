"""`ottla cluster status` on a cluster whose brokers die."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ottla.testing import Cluster, NewTopic

Eventually = Callable[..., Any]


def status(bootstrap: str, *flags: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "ottla", "cluster", "status", "--bootstrap", bootstrap, *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.ottla(
    topics=[NewTopic("alone", assignment=[[2]]), NewTopic("t", assignment=[[1, 2, 3]])]
)
def test_status_tells_who_is_missing_and_who_is_waited_for(
    ottla_cluster: Cluster, eventually: Eventually
) -> None:
    def told() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(status(ottla_cluster[1].bootstrap, "--json"))
        return found

    ottla_cluster.wait_in_sync("t")
    whole = told()
    assert [each["state"] for each in whole["brokers"]] == ["up", "up", "up"]
    assert whole["controller"] in (1, 2, 3)
    assert (whole["partitions"], whole["troubled"]) == (2, [])

    ottla_cluster[2].crash()
    eventually(lambda: told()["under_replicated"] == 2, timeout=60)
    broken = told()
    assert broken["brokers"][1]["state"] == "missing"
    [alone, led] = broken["troubled"]
    assert (alone["topic"], alone["state"], alone["waits_for"]) == ("alone", "offline", [2])
    assert (led["topic"], led["state"], led["in_sync"]) == ("t", "under-replicated", [1, 3])
    text = status(ottla_cluster[1].bootstrap)
    assert "2 brokers up" in text
    assert "1 offline, 1 under min.insync, 2 under-replicated" in text
    assert "broker 2" in next(line for line in text.splitlines() if line.startswith("alone-0"))

    ottla_cluster[2].restart()
    eventually(lambda: told()["troubled"] == [], timeout=60)
