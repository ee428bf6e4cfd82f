"""docs/reference/cli.md, made from the commands themselves.

`python -m ottla.cli.reference` prints it; a test compares the file with `render()`.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from ottla.cli.main import cli

_WIDTH = 96
_INTRODUCTION = """\
# Commands

<!-- Made by `python -m ottla.cli.reference > docs/reference/cli.md`; a test compares. -->

Every command explains itself with `--help`; this page is that, in one place.

| exit code | means |
|---|---|
| 0 | what was asked for is done |
| 1 | it is not; one line on stderr says why, and what to do |
| 2 | the command line is wrong |

A broker is found by `--bootstrap HOST:PORT` (several with commas), else by the environment
variable `OTTLA_BOOTSTRAP`, else at `127.0.0.1:9092`. Tables are for people; `--json` is for
programs, and its fields, listed with each command, only ever grow.
"""


def render() -> str:
    """The whole page."""
    root = click.Context(cli, info_name="ottla", terminal_width=_WIDTH, **cli.context_settings)
    sections = [_INTRODUCTION]
    for context in _walk(root):
        command = context.command
        sections.append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(sections)


def _walk(context: click.Context) -> Iterator[click.Context]:
    """A command and everything below it."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _walk(
                    click.Context(
                        child,
                        info_name=name,
                        parent=context,
                        terminal_width=_WIDTH,
                    )
                )


if __name__ == "__main__":
    click.echo(render(), nl=False)
