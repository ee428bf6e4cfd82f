"""One letter for an option that is typed often; the same letter for the same thing everywhere.

The letters are those of kcat and rpk where these have one: -b broker, -t topic, -g group,
-p partitions, -o offset, -n number of records, -e exit at the end, -k key, -K key separator,
-H header, -f format, -z compression, -l file of lines, -J JSON, -X property, -c topic setting,
-r replicas, -s set.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

LETTERS: Mapping[str, tuple[str, ...]] = {
    "-b": ("--bootstrap",),
    "-J": ("--json",),
    "-t": ("--topic",),
    "-g": ("--group",),
    "-p": ("--partition", "--partitions"),
    "-o": ("--offset",),
    "-n": ("--max", "--records"),
    "-e": ("--exit-at-end",),
    "-k": ("--key",),
    "-K": ("--key-separator",),
    "-H": ("--header",),
    "-f": ("--format",),
    "-z": ("--compression",),
    "-l": ("--file",),
    "-X": ("--property",),
    "-c": ("--config",),
    "-r": ("--replication",),
    "-s": ("--set",),
    "-d": ("--data-dir",),
    "-i": ("--interval",),
    "-m": ("--members",),
    "-q": ("--quiet",),
    "-y": ("--yes",),
    "-h": ("--help",),
    "-V": ("--version",),
}
"""Every letter, and the options that it stands for."""

OTHERWISE = frozenset(
    {
        ("server start", "--config"),  # a file, not a topic's setting
        ("zookeeper start", "--config"),
        ("metadata export", "--config"),
        ("metadata import", "--config"),
        ("metadata rescue", "--config"),
        ("metadata import", "--partitions"),  # TOPIC=N
        ("metadata rescue", "--partitions"),
        ("log dump", "--records"),  # whether, not how many
        ("config describe", "--key"),  # of a setting, not of a record
    }
)
"""Options of the same name that mean something else, and have no letter."""


def shorten(command: click.Command, path: str) -> None:
    """Give the options of a command, and of all below it, their letters."""
    letters = {option: letter for letter, options in LETTERS.items() for option in options}
    for parameter in command.params:
        for name in parameter.opts if isinstance(parameter, click.Option) else ():
            letter = letters.get(name)
            if letter and (path, name) not in OTHERWISE and letter not in parameter.opts:
                parameter.opts.insert(0, letter)
                break
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            shorten(child, f"{path} {name}")
