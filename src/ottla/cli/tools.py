"""`ottla tools`: Kafka's command names for our tools, put where somebody wants them.

They are not installed with the package: whoever adds Ottla to a project for its test kit must not
find that `kafka-topics` has become another program. A name is a small script that starts the Python
Ottla runs in, as pip's own scripts do; a file that is not such a script is never touched unasked.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from ottla.cli.command import Noun
from ottla.cli.kafka_compat import TOOLS
from ottla.cli.options import json_option
from ottla.cli.output import Column, count, say, show_json, show_table

NAMES = tuple(f"{tool}{ending}" for tool in TOOLS for ending in ("", ".sh"))

_MODULE = "ottla.cli.kafka_compat"
# pip's scripts of versions that installed the tools have this line as well.
_MARK = f"from {_MODULE} import main".encode()
# What Linux reads of a script's first line.
_LONGEST_INTERPRETER = 120
_READ = 4096


@click.group(cls=Noun)
def tools() -> None:
    """Put Kafka's command names, kafka-topics and so on, into a folder."""


@tools.command(name="list")
@json_option
def list_tools(as_json: bool) -> None:
    """Show Kafka's commands that Ottla has, and what each name starts here.

    \b
    JSON: [{"name", "path" (null when it is not on the PATH), "ours"}]
    """
    found = [_Found(name, _on_path(name)) for name in TOOLS]
    if as_json:
        show_json([{"name": each.name, "path": each.shown, "ours": each.is_ours} for each in found])
        return
    show_table(
        [Column("NAME"), Column("ON THE PATH"), Column("WHOSE")],
        [
            (each.name, each.shown, each.path and ("Ottla's" if each.is_ours else "another's"))
            for each in found
        ],
    )
    if not any(each.is_ours for each in found):
        say("`ottla tools link DIR` puts them into a folder")


@tools.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace files of these names that are not Ottla's.")
def link(folder: Path, force: bool) -> None:
    """Put Kafka's command names into DIR, each with and without .sh.

    They start the Python that Ottla runs in now. To be repeated when that is another one.
    """
    if folder.exists() and not folder.is_dir():
        raise click.ClickException(f"{folder} is a file; name a folder")
    strangers = [
        name for name in NAMES if os.path.lexists(folder / name) and not ours(folder / name)
    ]
    if strangers and not force:
        others = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        raise click.ClickException(
            f"{folder / strangers[0]}{others}: not Ottla's; --force replaces such files, another "
            f"folder leaves them alone. Nothing was changed"
        )
    for name in strangers:
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            raise click.ClickException(f"{folder / name} is a folder. Nothing was changed")
    script = wrapper(sys.executable)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        changed = [name for name in NAMES if _put(folder / name, script)]
    except OSError as error:
        where = error.filename or folder
        raise click.ClickException(f"{where}: {error.strerror or error}") from None
    click.echo(
        f"linked {count(len(changed), 'name')} in {folder}, from {NAMES[0]} to {NAMES[-1]}"
        if changed
        else f"all {len(NAMES)} names are in {folder} already"
    )
    for line in _about_path(folder):
        click.echo(line)


@tools.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def unlink(folder: Path) -> None:
    """Take out of DIR what `ottla tools link` put there, and nothing else."""
    there = [name for name in NAMES if os.path.lexists(folder / name)]
    removed = [name for name in there if ours(folder / name)]
    try:
        for name in removed:
            (folder / name).unlink()
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror or error}") from None
    click.echo(f"removed {count(len(removed), 'name')} from {folder}")
    if len(there) > len(removed):
        say(f"{count(len(there) - len(removed), 'file')} of such names stayed: not Ottla's")


def wrapper(python: str) -> bytes:
    """The script behind every name."""
    head = f"#!{python}\n"
    if " " in python or len(python) > _LONGEST_INTERPRETER:
        # Not a first line that the kernel understands. A shell reads the next two lines as
        # "become Python with this script", Python reads them as a string.
        head = f"#!/bin/sh\n'''exec' {shlex.quote(python)} \"$0\" \"$@\"\n' '''\n"
    body = f"import sys\n{_MARK.decode()}\nsys.exit(main())\n"
    return f"{head}# One of Kafka's commands, made by `ottla tools link`.\n{body}".encode()


def ours(path: Path) -> bool:
    """Whether a file is a script that starts one of our tools."""
    try:
        with path.open("rb") as file:
            return _MARK in file.read(_READ)
    except OSError:
        return False


def _put(path: Path, script: bytes) -> bool:
    """Write a script, at once and whole; False when it was there."""
    if not path.is_symlink() and path.is_file() and os.access(path, os.X_OK):
        with path.open("rb") as file:
            if file.read(_READ) == script:
                return False
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        made.write_bytes(script)
        made.chmod(0o755)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return True


class _Found(NamedTuple):
    name: str
    path: Path | None

    @property
    def shown(self) -> str | None:
        return None if self.path is None else str(self.path)

    @property
    def is_ours(self) -> bool:
        return self.path is not None and ours(self.path)


def _folders() -> Sequence[str]:
    return [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]


def _on_path(name: str) -> Path | None:
    """What a shell starts by this name."""
    candidates = (Path(folder, name) for folder in _folders())
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def _about_path(folder: Path) -> Iterator[str]:
    """Whether the names can be typed now."""
    if not any(_same(Path(each), folder) for each in _folders()):
        quoted = shlex.quote(str(folder.absolute()))
        yield f'{folder} is not on the PATH; for this shell: export PATH={quoted}:"$PATH"'
        return
    yield f"{folder} is on the PATH"
    first = _on_path(NAMES[0])
    if first is not None and not _same(first.parent, folder):
        yield f"but {first} comes before it there"


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
