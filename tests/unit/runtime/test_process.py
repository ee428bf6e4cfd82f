"""How the descriptors of a process are divided."""

from __future__ import annotations

import pytest

from ottla.runtime.process import OTHER_FILES, divide_descriptors, file_limit


@pytest.mark.parametrize("limit", [100, 256, 1024, 4096, 65_536, 1 << 30])
def test_files_and_connections_fit_into_the_limit(limit: int) -> None:
    divided = divide_descriptors(limit, 2048)
    assert divided.segments + divided.connections + OTHER_FILES <= limit
    assert 1 <= divided.segments <= 2048
    assert divided.connections >= limit // 5


def test_a_hopeless_limit_still_serves_somebody() -> None:
    divided = divide_descriptors(20, 2048)
    assert (divided.segments, divided.connections) == (2, 1)


def test_the_limit_of_this_process_is_known() -> None:
    assert file_limit() > 0
