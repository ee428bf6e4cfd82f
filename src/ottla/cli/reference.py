"""The generated pages of docs/reference: all of them, and cli.md from the commands themselves.

`make docs` runs `python -m ottla.cli.reference docs/reference`, which writes every page; without a
folder the page about the commands is printed. Tests compare the files with what is rendered now.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ottla.cli.command import ALIASES
from ottla.cli.main import cli
from ottla.cli.short_options import LETTERS

_WIDTH = 96
_INTRODUCTION = """\
# Commands

<!-- Made by `make docs` from the commands' own help; a test compares. -->

Every command explains itself with `--help`; this page is that, in one place.

| exit code | means |
|---|---|
| 0 | what was asked for is done |
| 1 | it is not; one line on stderr says why, and what to do |
| 2 | the command line is wrong |

A broker is found by `--bootstrap HOST:PORT` (several with commas), else by the environment
variable `OTTLA_BOOTSTRAP`, else at `127.0.0.1:9092`. Tables are for people; `--json` is for
programs, and its fields, listed with each command, only ever grow.

Verbs have short names: {verbs}. Options that are typed often have a letter, the same
everywhere, and mostly the one that kcat and rpk use:

{letters}
"""


def render() -> str:
    """The whole page."""
    root = click.Context(cli, info_name="ottla", terminal_width=_WIDTH, **cli.context_settings)
    verbs = ", ".join(f"`{alias}` is `{name}`" for alias, name in ALIASES.items())
    sections = [_INTRODUCTION.format(verbs=verbs, letters=_letters())]
    for context in _walk(root):
        command = context.command
        sections.append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(sections)


def _letters() -> str:
    """The table of short options."""
    rows = ["| letter | stands for |", "|---|---|"]
    for letter, names in LETTERS.items():
        rows.append(f"| `{letter}` | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(rows)


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


def pages() -> dict[str, str]:
    """Every generated page by its file's name."""
    from ottla.broker.reference import render_metrics, render_protocol
    from ottla.client.reference import render as render_python
    from ottla.config.reference import render as render_config

    return {
        "cli.md": render(),
        "config.md": render_config(),
        "metrics.md": render_metrics(),
        "protocol-support.md": render_protocol(),
        "python.md": render_python(),
    }


@click.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
def main(folder: Path | None) -> None:
    """Write the generated pages into FOLDER; without one, print the page about the commands."""
    if folder is None:
        click.echo(render(), nl=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        click.echo(f"wrote {folder / name}")


if __name__ == "__main__":
    main()
