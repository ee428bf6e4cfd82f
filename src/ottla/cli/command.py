"""What every command has: examples below its options, short options, short names for verbs.

`Command` and `Noun` are click's command and group with these additions; the texts are tables of
their own (`examples.py`, `short_options.py`), so that all commands can be compared at a glance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from ottla.cli.names import nearest

ALIASES: Mapping[str, str] = {"ls": "list", "desc": "describe", "rm": "delete"}
"""Other names of verbs, in every noun that has them."""

MEANT: Mapping[str, str] = {"start": "up", "run": "up"}
"""What is meant by words that look like another verb: `cluster start` is not `cluster status`."""

ENDING = frozenset({"stop", "down", "shutdown", "kill"})
"""Words for what no command does: whatever runs in a terminal is ended there."""


def path_of(context: click.Context) -> str:
    """The words after `ottla` that lead to a command, by their full names."""
    words: list[str] = []
    while context.parent is not None:
        words.append(context.command.name or "")
        context = context.parent
    return " ".join(reversed(words))


def write_examples(context: click.Context, formatter: click.HelpFormatter) -> None:
    """The section that ends every help."""
    from ottla.cli.examples import EXAMPLES

    lines = EXAMPLES.get(path_of(context), ())
    if lines:
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """What was given for an option; NAME when that cannot be told."""
    for word, following in zip(arguments, [*arguments[1:], "NAME"], strict=True):
        if word == option:
            return following
        if word.startswith(option):
            return word.removeprefix(option).removeprefix("=")
    return "NAME"


_NAMED_PLAINLY = {"-t": "topic", "--topic": "topic", "-g": "group", "--group": "group"}


class Command(click.Command):
    """A command with examples in its help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Hands that know kcat or Kafka's tools type --topic where the name alone is enough.
            noun = _NAMED_PLAINLY.get(error.option_name)
            if noun is None or not self._takes(noun, ctx):
                raise
            name = _value_of(error.option_name, given)
            raise click.UsageError(
                f"a {noun} is named without {error.option_name}: {ctx.command_path} {name}", ctx
            ) from None

    def _takes(self, noun: str, ctx: click.Context) -> bool:
        """Whether such names are arguments of this command."""
        arguments = [each.name or "" for each in self.params if isinstance(each, click.Argument)]
        about = path_of(ctx).split()[0] == noun
        return bool(arguments) and (about or bool({noun, f"{noun}s"} & set(arguments)))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(ctx, formatter)


class Noun(click.Group):
    """Commands about one thing; verbs have short names too."""

    command_class = Command

    def how_to_end(self, arguments: Sequence[str]) -> str | None:
        """What to do instead of a command that would end something; None where nothing runs."""
        return None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or super().get_command(
            ctx, ALIASES.get(cmd_name, cmd_name)
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            there = self.list_commands(ctx)
            near = MEANT[name] if MEANT.get(name) in there else nearest(name, there)
            meant = f"did you mean `{ctx.command_path} {near}`?" if near else None
            ending = self.how_to_end(args[1:]) if name in ENDING else None
            hint = ending or meant or f"there are {', '.join(there)}"
            ctx.fail(f"no command {name!r}; {hint}")
        _, command, rest = super().resolve_command(ctx, args)
        return command.name if command else None, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        short = {name: alias for alias, name in ALIASES.items()}
        found = {
            f"{name}, {short[name]}" if name in short else name: self.get_command(ctx, name)
            for name in self.list_commands(ctx)
        }
        rows = [
            (names, command.get_short_help_str(limit=200))
            for names, command in found.items()
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(ctx, formatter)
