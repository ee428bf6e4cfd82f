"""Asking the process that runs a cluster on this machine."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from ottla import __version__
from ottla.broker.control import Added, Control, ask_to_renew
from ottla.broker.start_failed import StartFailed


def test_a_supervisor_that_stands_still_is_not_waited_for_without_end(tmp_path: Path) -> None:
    path = str(tmp_path / "control.socket")
    with socket.socket(socket.AF_UNIX) as stopped:  # the kernel takes the request, nobody reads it
        stopped.bind(path)
        stopped.listen()
        with pytest.raises(StartFailed, match=r"has not answered at .*is it stopped"):
            ask_to_renew(path, "0.0.0", patience=0.2)


def test_a_supervisor_that_does_not_come_back_is_said(tmp_path: Path) -> None:
    path = str(tmp_path / "control.socket")

    def end(listening: socket.socket, process: int) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b'{"process": %d, "renewed": true}\n' % process)
        os.unlink(path)

    gone = 2**22 + 1  # more than there can be
    for process in (gone, os.getpid()):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen()
            ending = threading.Thread(target=end, args=(listening, process))
            ending.start()
            with pytest.raises(StartFailed, match="has not come back: its own last lines say why"):
                ask_to_renew(path, "0.0.0", patience=60 if process == gone else 0.2)
            ending.join()


async def test_a_supervisor_whose_program_is_gone_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add(broker: int | None, port: int | None) -> Added:
        raise NotImplementedError

    renewed: list[bool] = []
    path = str(tmp_path / "control.socket")
    control = Control(path, add, lambda: renewed.append(True))
    await control.start()
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(StartFailed, match=r"cannot begin anew: .*/python, with which it was"):
        await asyncio.to_thread(ask_to_renew, path, "0.0.0")
    assert not await asyncio.to_thread(ask_to_renew, path, __version__), "it need not"
    await control.stop()
    assert not renewed


def test_a_supervisor_of_another_user_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("ottla.broker.control.short_path", refuse)
    with pytest.raises(StartFailed, match="only the user that runs the cluster can ask that"):
        ask_to_renew("control.socket", "0.0.0")


def test_a_socket_of_nobody_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"does not answer at .*No such file"):
        ask_to_renew(str(tmp_path / "control.socket"), "0.0.0")
