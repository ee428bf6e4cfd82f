"""Servers in the background, for kafka-server-start, zookeeper-server-start and their stop scripts.

Kafka's scripts keep no file that names the process: they look for it among the processes of the
machine, and so do these.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator, Sequence

from ottla.cli.kafka_compat.options import Failure


def take_daemon_flag(words: list[str]) -> bool:
    """Whether the command line begins with -daemon, which is taken off it."""
    daemon = words[:1] == ["-daemon"]
    if daemon:
        del words[0]
    return daemon


def detach(command: Sequence[str], output: str, *, pass_fds: Collection[int] = ()) -> None:
    """Run in the background, with the output in LOG_DIR (default: ./logs) as Kafka has it."""
    import subprocess

    folder = os.environ.get("LOG_DIR") or "logs"
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, output), "ab") as file:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )


def stop_signal() -> signal.Signals:
    """What the variable SIGNAL names, as in Kafka's scripts; SIGTERM without it."""
    name = os.environ.get("SIGNAL", "TERM")
    try:
        return signal.Signals[f"SIG{name.removeprefix('SIG')}"]
    except KeyError:
        raise Failure(f"SIGNAL={name}: there is no such signal; leave it out") from None


def stop_all(found: Collection[int], number: signal.Signals, kind: str) -> int:
    """Send the signal to each of the processes; a failure if there are none."""
    if not found:
        raise Failure(f"No {kind} server to stop", out=True)
    for pid in found:
        os.kill(pid, number)
    return 0


def own_processes() -> Iterator[tuple[int, list[str]]]:
    """The other processes of this user, with their command lines."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = [word.decode(errors="replace") for word in file.read().split(b"\0")]
        except OSError:
            continue  # gone meanwhile
        yield int(name), words
