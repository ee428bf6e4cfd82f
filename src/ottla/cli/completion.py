"""`ottla completion SHELL`: what makes a shell complete commands, options and topic names."""

from __future__ import annotations

import click

from ottla.cli.command import Command

SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    \b
    bash   echo 'eval "$(ottla completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(ottla completion zsh)"' >> ~/.zshrc
    fish   ottla completion fish > ~/.config/fish/completions/ottla.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    # The variable is the one that click looks for when the script calls `ottla` back.
    script = kind(context.find_root().command, {}, "ottla", "_OTTLA_COMPLETE")
    click.echo(script.source_template % script.source_vars())
