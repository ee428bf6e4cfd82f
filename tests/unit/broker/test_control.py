"""Asking the process that runs a cluster on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ottla.broker.control import ask_to_renew
from ottla.broker.start_failed import StartFailed


def test_a_supervisor_that_stands_still_is_not_waited_for_without_end(tmp_path: Path) -> None:
    path = str(tmp_path / "control.socket")
    with socket.socket(socket.AF_UNIX) as stopped:  # the kernel takes the request, nobody reads it
        stopped.bind(path)
        stopped.listen()
        with pytest.raises(StartFailed, match=r"has not answered at .*is it stopped"):
            ask_to_renew(path, "0.0.0", patience=0.2)


def test_a_socket_of_nobody_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"does not answer at .*No such file"):
        ask_to_renew(str(tmp_path / "control.socket"), "0.0.0")
