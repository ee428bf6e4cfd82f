"""Which masters there are."""

from __future__ import annotations

import pytest

from ottla.pipelines.masters import addresses, is_master, is_remote


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2]", "local[*,4]", "local[2, 4]", "local-cluster[1,1,1]"]
)
def test_masters_of_this_machine(master):
    assert is_master(master)
    assert not is_remote(master)


@pytest.mark.parametrize(
    "master", ["spark://h:7077", "spark://a:1,b:2", "spark://[::1]:7077", "yarn", "k8s://https://h"]
)
def test_masters_elsewhere(master):
    assert is_master(master)
    assert is_remote(master)


def test_where_a_standalone_master_listens():
    assert addresses("spark://a:1,[::1]:2") == [("a", 1), ("::1", 2)]
    assert addresses("yarn") == []
