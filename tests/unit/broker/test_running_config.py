"""The settings in force: a file, and what was altered for the cluster and for single brokers."""

from __future__ import annotations

from typing import cast

import pytest

from ottla.broker.running_config import RunningConfig
from ottla.cluster.registry import Registry
from ottla.config.load import load
from ottla.model.image import ClusterImage

NAME = "min.insync.replicas"


class FakeRegistry:
    """An image with dynamic settings of brokers, and nothing else."""

    def __init__(self, **configs: dict[str, str]) -> None:
        self.set(**configs)

    def set(self, **configs: dict[str, str]) -> None:
        by_broker = {
            key.removeprefix("broker").lstrip("_"): value for key, value in configs.items()
        }
        self.image = ClusterImage(broker_configs=by_broker)


def running(file: dict[str, str], registry: FakeRegistry) -> RunningConfig:
    return RunningConfig(load(None, file).config, 1, cast(Registry, registry))


def test_the_clusters_min_insync_counts_for_every_broker() -> None:
    config = running({NAME: "1"}, FakeRegistry(broker={NAME: "2"}, broker_1={NAME: "3"}))
    assert config.current().min_insync_replicas == 2
    assert running({NAME: "1"}, FakeRegistry()).current().min_insync_replicas == 1


def test_a_file_that_says_something_else_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = FakeRegistry(broker={NAME: "2"})
    config = running({NAME: "1"}, registry)
    config.refresh()
    assert len(caplog.messages) == 1
    assert "min.insync.replicas=1 in the settings of this broker does not count" in caplog.text
    registry.set(broker={NAME: "3"})
    config.refresh()
    assert len(caplog.messages) == 2, "another value, another line"


@pytest.mark.parametrize("file", [{}, {NAME: "2"}], ids=["nothing", "the same"])
def test_a_file_that_agrees_or_says_nothing_is_not_mentioned(
    file: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    running(file, FakeRegistry(broker={NAME: "2"}))
    assert caplog.messages == []
