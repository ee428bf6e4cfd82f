"""Processes under a supervisor: one that an earlier supervisor has left, and that is the child of
this one all the same; one that is stopped while it is started again."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.members import Member, MemberPlan, NotStarted

GIVES_BACK_FIRST = """
import os, signal, sys
from ottla.runtime.pid_file import hold
held = hold(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: os.close(held) or print("given back", flush=True))
print("held", flush=True)
sys.stdin.read()
"""

IS_READY = "import os, signal, sys; os.write(int(sys.argv[-1]), b'.'); signal.pause()"


async def test_one_that_is_just_being_started_again_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = asyncio.create_subprocess_exec
    children: list[asyncio.subprocess.Process] = []
    again, stopped = asyncio.Event(), asyncio.Event()

    async def spawn_slowly(*command: str, **options: Any) -> asyncio.subprocess.Process:
        if children:
            again.set()
            await stopped.wait()
        children.append(await spawn(*command, **options))
        return children[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn_slowly)
    path = str(tmp_path / "broker-2.pid")
    member = Member(MemberPlan(2, (sys.executable, "-c", IS_READY), path))
    try:
        async with asyncio.timeout(60):
            await member.start()
            keeping = asyncio.ensure_future(member.keep())
            children[0].kill()
            await again.wait()
            stopping = asyncio.ensure_future(member.stop())
            await asyncio.sleep(0)
            stopped.set()
            await stopping
            await keeping
        assert [each.returncode is not None for each in children] == [True, True]
    finally:
        for each in children:
            if each.returncode is None:
                each.kill()
                await each.wait()


async def test_one_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when its program is being installed anew, or there is no memory for one more process."""
    spawn = asyncio.create_subprocess_exec
    children: list[asyncio.subprocess.Process] = []
    refused, again = 0, asyncio.Event()

    async def spawn_sometimes(*command: str, **options: Any) -> asyncio.subprocess.Process:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", command[0])
        children.append(await spawn(*command, **options))
        if len(children) == 1:
            refused = 0  # the next ones are refused, too
        else:
            again.set()
        return children[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn_sometimes)
    member = Member(MemberPlan(2, (sys.executable, "-c", IS_READY), str(tmp_path / "broker-2.pid")))
    open_before = len(os.listdir("/proc/self/fd"))
    try:
        async with asyncio.timeout(60):
            for _ in range(2):
                with pytest.raises(NotStarted, match=r"broker 2 cannot be started: .*No such file"):
                    await member.start()
            assert len(os.listdir("/proc/self/fd")) == open_before
            await member.start()
            keeping = asyncio.ensure_future(member.keep())
            children[0].kill()
            await again.wait()
            await member.stop()
            await keeping
    finally:
        for each in children:
            if each.returncode is None:
                each.kill()
                await each.wait()
    assert caplog.text.count("broker 2 cannot be started") == 2


async def test_one_that_ends_after_its_lock_leaves_no_zombie(tmp_path: Path) -> None:
    """As every process does, if only for a moment: its files are closed first."""
    path = str(tmp_path / "broker-2.pid")
    process = subprocess.Popen(
        [sys.executable, "-c", GIVES_BACK_FIRST, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        member = Member(MemberPlan(2, (), path))
        await member.start()
        assert member.pid == process.pid
        stopping = asyncio.ensure_future(member.stop())
        line = await asyncio.to_thread(process.stdout.readline)
        assert line == b"given back\n"
        process.stdin.close()
        assert await asyncio.to_thread(process.stdout.read) == b"", "it has ended"
        async with asyncio.timeout(60):
            await stopping
        assert not Path(f"/proc/{process.pid}").exists()
        process.returncode = 0  # which the member has been told
    finally:
        process.stdout.close()
        if process.returncode is None:
            process.kill()
            process.wait()
