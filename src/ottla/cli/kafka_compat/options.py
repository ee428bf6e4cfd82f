"""The conventions of Kafka's command lines, which are those of the Java library joptsimple.

    parser = Parser("kafka-topics", "Create and change topics.", [Option("topic", "…", "name")])
    options = parser.parse(arguments)

`--topic x`, `--topic=x` and `-topic x` are the same. Abbreviations are not understood, because
Kafka switches them off. An option that needs an argument takes the next word whatever it looks
like; `--topic=` takes the next word as well. Options may be repeated: `value` of a repeated one
is an error, `values` gives all. Words that belong to no option are kept in `rest`. A dash that a
word processor has made long counts as two: `—list`.

`--zookeeper HOST:PORT[/chroot]`, which Kafka's tools had until 2.8, finds the brokers by what they
have registered there. Every tool that takes --bootstrap-server takes it.

A mistake is one line on stderr, in Kafka's words and with a pointer to --help where Kafka prints
the whole help or a stack trace, and exit code 1. Kafka's tools print their help on stderr with
code 1 too when it is asked for, and so do these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from ottla.cli.streams import FULL, drop_output, not_written
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin

KAFKA_VERSION = "4.2.0"
"""The Kafka whose tools these follow."""


class Failure(Exception):
    """A tool cannot do what it was asked for: the line to print, and the exit code.

    `out` sends the line to stdout, where some of Kafka's tools write their complaints.
    """

    def __init__(self, message: str, code: int = 1, *, out: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.out = out


class UsageError(Failure):
    """A command line that makes no sense; --help would tell more."""


class HelpShown(Exception):
    """--help or --version was asked for and has been printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Option:
    """One option. Without `argument` it is a flag.

    `argument` names what is to be given; `kind` is str, int or float; `optional` lets it be left
    out. `hidden` ones are understood but not shown: flags of older Kafkas.
    """

    name: str
    help: str = ""
    argument: str | None = None
    kind: type[str] | type[int] | type[float] = str
    default: str | None = None
    optional: bool = False
    hidden: bool = False


BOOTSTRAP = Option("bootstrap-server", "The brokers to ask first (required).", "HOST:PORT,...")
COMMAND_CONFIG = Option(
    "command-config", "A properties file with settings for the connection.", "FILE"
)
BROKER_LIST = Option("broker-list", "", "HOST:PORT,...", hidden=True)
ZOOKEEPER = Option("zookeeper", "", "HOST:PORT,.../CHROOT", hidden=True)
HELP = Option("help", "Print this text.")
_DASHES = ("-", "\N{EM DASH}", "\N{EN DASH}")
VERSION = Option("version", "Print the version of Kafka that this tool follows.")


@dataclass(slots=True)
class Options:
    """What was given on a command line."""

    specs: Mapping[str, Option]
    found: dict[str, list[str]] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        return name in self.found

    def values(self, name: str) -> list[str]:
        """All arguments of an option, in order."""
        return self.found.get(name, [])

    def value(self, name: str) -> str | None:
        """The one argument of an option, else its default; a number is checked to be one.

        That happens here and not while parsing because Java's library does so too, and some
        tools have a different way of complaining by then.
        """
        given = self.found.get(name)
        spec = self.specs[name]
        if not given:
            return spec.default
        if len(given) > 1:
            raise UsageError(
                f"Found multiple arguments for option {name}, but you asked for only one"
            )
        try:
            spec.kind(given[0])
        except ValueError:
            raise UsageError(f"Cannot parse argument '{given[0]}' of option {name}") from None
        return given[0]

    def required(self, name: str) -> str:
        """The argument of an option that has been checked to be there, or has a default."""
        value = self.value(name)
        if value is None:
            raise UsageError(f'Missing required argument "[{name}]"')
        return value

    def integer(self, name: str) -> int | None:
        """The argument of an option of kind int."""
        value = self.value(name)
        return None if value is None else int(value)

    def first_of(self, *names: str) -> str | None:
        """The argument of the first of these options that was given; for options that were
        renamed."""
        for name in names:
            if self.has(name):
                return self.value(name)
        return None


class Parser:
    """The options of one tool."""

    def __init__(self, tool: str, purpose: str, options: Iterable[Option]) -> None:
        self.tool = tool
        self.purpose = purpose
        specs = [*options, HELP, VERSION, ZOOKEEPER]
        self.specs = {spec.name: spec for spec in specs}

    def parse(self, arguments: Sequence[str]) -> Options:
        """Read a command line; prints help or the version and ends when that is asked for."""
        options = Options(self.specs)
        words = list(arguments)
        position = 0
        while position < len(words):
            word = words[position]
            position += 1
            if word == "--":
                options.rest.extend(words[position:])
                break
            if not word.startswith(_DASHES) or word in _DASHES:
                options.rest.append(word)
                continue
            name, equals, inline = word.lstrip("".join(_DASHES)).partition("=")
            spec = self.specs.get(name)
            if spec is None:
                raise self._unknown(name)
            given = options.found.setdefault(name, [])
            if spec.argument is None:
                if equals and inline:
                    raise UsageError(f"Option {name} takes no argument")
                continue
            if inline:
                value = inline
            elif spec.optional and (position == len(words) or words[position].startswith("-")):
                continue
            elif position == len(words):
                raise UsageError(f"Option {name} requires an argument")
            else:
                value = words[position]
                position += 1
            given.append(value)
        self._answer_help(options)
        return options

    def _unknown(self, name: str) -> UsageError:
        from ottla.cli.names import nearest

        near = nearest(name, self.specs)
        hint = f"; did you mean --{near}?" if near else ""
        return UsageError(f"{name} is not a recognized option{hint}")

    def _answer_help(self, options: Options) -> None:
        if options.has("help"):
            sys.stderr.write(self.help())
            raise HelpShown(1)
        if options.has("version"):
            print(KAFKA_VERSION)
            raise HelpShown(0)
        if options.has("zookeeper"):
            self._find_brokers(options)

    def _find_brokers(self, options: Options) -> None:
        """What --zookeeper stands for."""
        if BOOTSTRAP.name not in self.specs:
            raise UsageError("zookeeper is not a recognized option")
        if options.has(BOOTSTRAP.name) or options.has(BROKER_LIST.name):
            raise UsageError("Only one of --bootstrap-server or --zookeeper must be specified")
        options.found[BOOTSTRAP.name] = [registered_brokers(options.required("zookeeper"))]

    def help(self) -> str:
        """What --help prints: every option with a few words about it."""
        return f"{self.purpose}\n" + "".join(help_lines(self.specs.values()))


def help_lines(specs: Iterable[Option]) -> Iterable[str]:
    """A list of options in two columns."""
    import textwrap

    column = 40
    yield f"{'Option':<{column}} Description\n{'------':<{column}} -----------\n"
    for spec in sorted(specs, key=lambda each: each.name):
        if spec.hidden:
            continue
        left = f"--{spec.name}"
        if spec.argument is not None:
            kind = {str: "String", int: "Integer", float: "Double"}[spec.kind]
            opening, closing = ("[", "]") if spec.optional else ("<", ">")
            left += f" {opening}{kind}: {spec.argument}{closing}"
        text = spec.help if spec.default is None else f"{spec.help} (default: {spec.default})"
        lines = textwrap.wrap(text, 78 - 2) or [""]
        if len(left) >= column:
            yield f"{left}\n"
            left = ""
        for line in lines:
            yield f"{left:<{column}} {line}".rstrip() + "\n"
            left = ""


# -- checks that Kafka's tools share


def check_required(options: Options, *names: str) -> None:
    """Fail unless all of these were given."""
    for name in names:
        if not options.has(name):
            raise UsageError(f'Missing required argument "[{name}]"')


def check_excluded(options: Options, used: str, *excluded: str) -> None:
    """Fail when `used` was given together with any of the others."""
    if not options.has(used):
        return
    for name in excluded:
        if options.has(name):
            raise UsageError(f'Option "[{used}]" can\'t be used with option "[{name}]"')


def deprecated(options: Options, old: str, new: str, word: str = "Option") -> None:
    """Both names of an option at once are a mistake; the old one alone is mentioned."""
    if not options.has(old):
        return
    if options.has(new):
        raise UsageError(f'Option "[{old}]" can\'t be used with option "[{new}]"')
    print(
        f"{word} --{old} is deprecated and will be removed in a future version. "
        f"Use --{new} instead."
    )


def read_properties(path: str) -> dict[str, str]:
    """A Java properties file."""
    from ottla.config.properties import MalformedProperties, decode, parse_properties

    try:
        with open(path, "rb") as file:
            found = parse_properties(decode(file.read()))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; check the path") from None
    except MalformedProperties as error:
        raise Failure(f"{path}: {error}; correct the file") from None
    return {each.key: each.value for each in found}


def key_values(pairs: Iterable[str], *, empty_allowed: bool = True) -> dict[str, str]:
    """`key=value` arguments as a mapping; what Kafka says about one that is not."""
    result: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or (not equals and not empty_allowed) or (not value and not empty_allowed):
            raise UsageError(f"Invalid command line properties: {pair}")
        result[name] = value
    return result


def bootstrap_of(options: Options, *names: str) -> str:
    """The brokers that a command line names, checked; the first of `names` that was given."""
    from ottla.client.settings import bootstrap_servers

    given = options.first_of(*(names or ("bootstrap-server",)))
    if given is None:
        raise UsageError(f'Missing required argument "[{(names or ("bootstrap-server",))[0]}]"')
    try:
        return bootstrap_servers(given)
    except ValueError as error:
        raise UsageError(str(error)) from None


def registered_brokers(address: str) -> str:
    """The brokers that are registered in a ZooKeeper, as --bootstrap-server would name them."""
    import asyncio

    from ottla.cluster.zookeeper.address import BadAddress, parse_address
    from ottla.cluster.zookeeper.endpoints import NoBrokers, live_brokers

    try:
        brokers = asyncio.run(live_brokers(parse_address(address)))
    except (BadAddress, NoBrokers) as error:
        raise Failure(str(error)) from None
    return ",".join(
        endpoint.address
        for broker in brokers
        for endpoint in broker.endpoints.values()
        if endpoint.security_protocol == "PLAINTEXT"
    )


def connect(options: Options, *names: str) -> DirectAdmin:
    """A connection to the brokers of a command line, with what --command-config says about it."""
    from ottla.client.direct import DirectAdmin

    servers = bootstrap_of(options, *names)
    path = options.first_of(*(n for n in ("command-config", "admin.config") if n in options.specs))
    return DirectAdmin(
        servers, **connection_settings({} if path is None else read_properties(path))
    )


def connection_settings(properties: Mapping[str, str]) -> Any:
    """Java's client properties as arguments of `DirectAdmin`."""
    protocol = properties.get("security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise Failure(
            f"security.protocol={protocol} is not supported by this tool; connect to a PLAINTEXT "
            f"listener instead"
        )
    settings: dict[str, Any] = {}
    for name in ("default.api.timeout.ms", "request.timeout.ms"):
        if name in properties:
            try:
                settings["timeout"] = int(properties[name]) / 1000
            except ValueError:
                raise Failure(
                    f"Invalid value {properties[name]} for configuration {name}: Not a "
                    "number of type INT"
                ) from None
    if "client.id" in properties:
        settings["client_id"] = properties["client.id"]
    return settings


# -- running


def explain(error: KafkaError) -> str:
    """What a broker or the client complains about, in one line and where possible Java's."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        return "; ".join(f"{name}: {explain(each)}" for name, each in failures.items())
    if error.code in _UNREACHABLE:
        return (
            f"no broker answers ({error.message or error.code.text}); start one with "
            f"kafka-server-start, or name another with --bootstrap-server"
        )
    return error.message or _JAVA_TEXTS.get(error.code, error.code.text)


_UNREACHABLE = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)

# What Java's client says when the broker sends a code and no words. Scripts look for these.
_JAVA_TEXTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "The requested offset is not within the range of offsets maintained by the server."
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: (
        "There is no leader for this topic-partition as we are in the middle of a leadership "
        "election."
    ),
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
    ErrorCode.KAFKA_STORAGE_ERROR: "Disk error when trying to access log file on the disk.",
}


def _harmless_output() -> AbstractContextManager[object]:
    """What records and names hold does not reach a terminal raw."""
    from ottla.cli.harmless import HarmlessOutput

    return redirect_stdout(HarmlessOutput(sys.stdout)) if sys.stdout.isatty() else nullcontext()


def guarded(name: str, tool: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:  # noqa: PLR0911 - one way out for each way to end
    """Run a tool; what it raises becomes a line and an exit code."""
    try:
        with _harmless_output():
            code = tool(arguments)
            sys.stdout.flush()
    except HelpShown as shown:
        return shown.code
    except UsageError as error:
        print(f"{error.message} (see {name} --help)", file=sys.stderr)
        return error.code
    except Failure as failure:
        print(failure.message, file=sys.stdout if failure.out else sys.stderr, flush=True)
        return failure.code
    except KafkaError as error:
        print(explain(error), file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain about it.
        drop_output()
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        drop_output()
        print(not_written(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def subcommand_parser(tool: str, purpose: str, *, help_code: int = 1) -> Any:
    """An argparse parser for the tools that have subcommands, with Kafka's exit codes."""
    import argparse

    class Strict(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{tool}: error: {message}")

        def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
            raise HelpShown(help_code)

    return Strict(prog=tool, description=purpose, allow_abbrev=False)
