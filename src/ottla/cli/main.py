"""`ottla`: the group that all commands hang from.

A command is a row in `COMMANDS`: its name, where its code is, and the line that `ottla --help`
shows. The row is all that is read until the command runs, so that asking for help or listing
topics does not load a broker. A test holds the lines equal to the commands' own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from ottla import __version__
from ottla.cli.command import Noun
from ottla.cli.short_options import shorten
from ottla.cli.streams import FULL, drop_output, not_written, open_missing

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """Where a command is, and what it does in one line."""

    target: str
    help: str


COMMANDS: Mapping[str, Entry] = {
    "server": Entry("ottla.cli.serve:server", "Run a broker."),
    "cluster": Entry(
        "ottla.cli.cluster:cluster",
        "Run brokers on this machine; show a cluster, move what it holds.",
    ),
    "topic": Entry("ottla.cli.topic:topic", "Create, list, describe, alter and delete topics."),
    "produce": Entry("ottla.cli.produce:produce", "Send lines of standard input to a topic."),
    "consume": Entry("ottla.cli.consume:consume", "Print the records of topics."),
    "group": Entry("ottla.cli.group:group", "List, describe, reset, delete and watch groups."),
    "txn": Entry(
        "ottla.cli.txn:txn", "List, describe and abort transactions; find those that hang."
    ),
    "offsets": Entry(
        "ottla.cli.offsets:offsets", "Show where the partitions of topics begin and end."
    ),
    "config": Entry(
        "ottla.cli.config:config", "Show and change settings of topics, brokers and groups."
    ),
    "pipeline": Entry(
        "ottla.cli.pipeline:pipeline",
        "Run pipelines between topics, files and databases, on Spark.",
    ),
    "perf": Entry(
        "ottla.cli.perf:perf",
        "Measure how fast records are sent and read.",
    ),
    "top": Entry(
        "ottla.cli.top:top",
        "Show live throughput, lag and partitions.",
    ),
    "verify": Entry(
        "ottla.cli.verify:verify",
        "Check what clients see of a cluster, in good times and bad.",
    ),
    "log": Entry("ottla.cli.log:log", "Look into and repair segment files, without a broker."),
    "metadata": Entry(
        "ottla.cli.metadata:metadata", "Back up, bring back and rebuild a broker's metadata."
    ),
    "zookeeper": Entry(
        "ottla.cli.zookeeper:zookeeper",
        "Run Apache ZooKeeper, which brokers on several machines share.",
    ),
    "tools": Entry(
        "ottla.cli.tools:tools", "Put Kafka's command names, kafka-topics and so on, into a folder."
    ),
    "completion": Entry("ottla.cli.completion:completion", "Print a shell's completion script."),
}


# What people type who do not know yet where it is.
_ELSEWHERE = {
    "start": "server start",
    "run": "server start",
    "broker": "server start",
    **{verb: f"topic {verb}" for verb in ("create", "list", "describe", "alter", "delete")},
    "reset": "group reset",
    "up": "cluster up",
    "status": "cluster status",
    "version": "--version",
}


class LazyGroup(Noun):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def how_to_end(self, arguments: Sequence[str]) -> str:
        return (
            "Ctrl-C in its terminal stops a broker, and the brokers of `ottla cluster up`; "
            "`ottla cluster stop` tells the process of these"
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else load(entry, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name == "help":
            ctx.fail(
                f"no command 'help'; did you mean `{' '.join(['ottla', *args[1:], '--help'])}`?"
            )
        if name in _ELSEWHERE:
            ctx.fail(f"no command {name!r}; did you mean `ottla {_ELSEWHERE[name]}`?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever read our output has seen enough. Left to click, this would be exit code 1.
            drop_output()
            ctx.exit(0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=entry.help)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


def load(entry: Entry, name: str) -> click.Command:
    """Import a command, and give its options their letters."""
    module, _, attribute = entry.target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    shorten(command, name)
    return command


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    __version__, "-V", "--version", prog_name="ottla", message="%(prog)s %(version)s"
)
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT",
    help="The broker to ask; may also be given after the command.",
)
def cli(bootstrap: str | None) -> None:
    """Event streaming: a Kafka-compatible broker, and the tools to work with any.

    Commands that talk to a broker find it by --bootstrap, else by the environment variable
    OTTLA_BOOTSTRAP, else at 127.0.0.1:9092. They exit with 0 when what was asked for is done, with
    1 when it is not, and with 2 when they were called wrongly.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    try:
        outcome: Any = cli.main(
            None if arguments is None else list(arguments),
            prog_name="ottla",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 1
    except BrokenPipeError:
        drop_output()
        return 0
    except PermissionError as error:
        if error.filename is None:
            raise
        click.echo(f"Error: {error.filename}: {error.strerror}", err=True)
        return 1
    except OSError as error:
        if error.errno not in FULL:
            raise
        drop_output()
        click.echo(f"Error: {not_written(error)}", err=True)
        return 1
    return outcome if isinstance(outcome, int) else 0


def main() -> NoReturn:
    """The `ottla` script."""
    open_missing()
    sys.exit(run())
