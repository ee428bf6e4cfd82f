"""A process that an earlier supervisor has left, and that is the child of this one all the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from ottla.broker.members import Member, MemberPlan

GIVES_BACK_FIRST = """
import os, signal, sys
from ottla.runtime.pid_file import hold
held = hold(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: os.close(held) or print("given back", flush=True))
print("held", flush=True)
sys.stdin.read()
"""


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
