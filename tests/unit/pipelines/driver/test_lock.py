"""One driver at a time, also within one process."""

from __future__ import annotations

import pytest

from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.lock import Lock


def test_a_second_driver_of_one_process_is_refused_until_the_first_has_ended(tmp_path):
    home = Home(tmp_path, "p")
    home.make()
    first = Lock(home)
    first.take()
    with pytest.raises(Refused, match="is run by this process already"):
        Lock(Home(tmp_path, "p")).take()
    first.release()
    again = Lock(home)
    again.take()
    again.release()
