"""kcat, librdkafka's command, against Ottla.

No package index of Python, Node or Java carries it, but Debian and its relatives do. It is taken
from the path; where it is not, `apt-get download` brings it with the libraries it needs into the
cache folder, with package lists of its own and without root, and nothing is installed. On a
machine without apt it has to be there already (`brew install kcat`), or these checks do not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import confluent_kafka as rd
from confluent_kafka.admin import AdminClient, NewTopic

from bench.checks import Line
from bench.maven import CACHE
from bench.processes import BenchError, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.systems import Node

FIRST_TIMESTAMP = 1_700_000_000_000
_TIMEOUT = 60.0
_FETCH_TIMEOUT = 300.0
# They belong to the loader of this machine and must not be taken from a package.
_OF_THE_MACHINE = re.compile(r"libc6|libgcc-s1|gcc-\d+-base|libc-")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class NotHere(Exception):
    """Why kcat cannot be had on this machine."""


class Mismatch(Exception):
    """What kcat did is not what was expected."""


@dataclass(frozen=True, slots=True)
class Kcat:
    """The program, and what its environment needs."""

    program: str
    libraries: str = ""

    def __call__(self, node: Node, *arguments: str, stdin: str = "", check: bool = True) -> str:
        return self.both(node, *arguments, stdin=stdin, check=check)[0]

    def both(
        self, node: Node, *arguments: str, stdin: str = "", check: bool = True
    ) -> tuple[str, str]:
        """Standard output, and what was said beside it."""
        environment = dict(os.environ)
        if self.libraries:
            environment["LD_LIBRARY_PATH"] = self.libraries
        command = [self.program, "-b", node.bootstrap, *arguments]
        done = run("kcat", command, timeout=_TIMEOUT, stdin=stdin, check=False, env=environment)
        if check and done.returncode:
            raise Mismatch(f"{' '.join(arguments)}: {done.stderr.strip()[-200:]}")
        if not check and not done.returncode:
            raise Mismatch(f"{' '.join(arguments)} was expected to fail")
        return done.stdout, done.stderr

    def version(self) -> str:
        environment = {**os.environ, "LD_LIBRARY_PATH": self.libraries}
        said = run("kcat", [self.program, "-V"], timeout=_TIMEOUT, env=environment).stdout
        found = re.search(r"Version ([\d.]+).*librdkafka ([\d.]+)", said)
        return f"{found[1]} (librdkafka {found[2]})" if found else "of an unknown version"


def obtain() -> Kcat:
    """kcat from the path, or out of Debian's package in the cache folder."""
    there = shutil.which("kcat") or shutil.which("kafkacat")
    if there:
        return Kcat(there)
    home = CACHE / "kcat"
    program = home / "root" / "usr" / "bin" / "kcat"
    if not program.exists():
        apt, unpack = shutil.which("apt-get"), shutil.which("dpkg-deb")
        if not apt or not unpack:
            raise NotHere("it is not on the path, and there is no apt-get to bring it")
        try:
            _fetch(home, apt, unpack)
        except BenchError as error:
            raise NotHere(f"apt-get could not bring it: {str(error).splitlines()[-1]}") from None
    libraries = {str(found.parent) for found in (home / "root").rglob("lib*.so.*")}
    return Kcat(str(program), ":".join(sorted(libraries)))


def _fetch(home: Path, apt: str, unpack: str) -> None:
    print("fetching kcat by apt-get", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    packages = home / "packages"
    for folder in (packages, home / "lists" / "partial", home / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True)
    own = [
        "-qq", "-o", f"Dir::State::Lists={home / 'lists'}", "-o", f"Dir::Cache={home / 'cache'}",
        "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=",
    ]  # fmt: skip
    run("apt-get update", [apt, *own, "update"], timeout=_FETCH_TIMEOUT)
    cache = [apt.replace("apt-get", "apt-cache"), *own[1:], "depends", "kcat", "--recurse"]
    cache += [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks")]
    cache += [f"--no-{kind}" for kind in ("replaces", "enhances")]
    needed = run("apt-cache depends", cache, timeout=_FETCH_TIMEOUT).stdout
    run(
        "apt-get download", [apt, *own, "download", *wanted(needed)],
        timeout=_FETCH_TIMEOUT, cwd=packages,
    )  # fmt: skip
    for package in packages.glob("*.deb"):
        run("dpkg-deb", [unpack, "-x", str(package), str(home / "root")], timeout=_FETCH_TIMEOUT)
    for folder in ("lists", "cache", "packages"):
        shutil.rmtree(home / folder)


def wanted(depends: str) -> list[str]:
    """The packages of `apt-cache depends --recurse` that are to be unpacked."""
    names = {line for line in depends.splitlines() if re.match(r"[a-z0-9]", line)}
    return sorted(name for name in names if not _OF_THE_MACHINE.match(name))


def checks(node: Node, kcat: Kcat) -> list[Line]:
    """Every scenario, one after another, each on topics of its own."""
    lines = []
    for scenario in SCENARIOS:
        name = (scenario.__doc__ or scenario.__name__).rstrip(".")
        started = time.monotonic()
        try:
            detail, verdict = scenario(node, kcat), "passed"
        except (Mismatch, BenchError) as error:
            detail, verdict = " ".join(str(error).split()), "failed"
        line = Line("kcat", name, verdict, round(1000 * (time.monotonic() - started)), detail)
        print(line, flush=True)
        lines.append(line)
    return lines


def same(found: object, expected: object) -> None:
    if found != expected:
        raise Mismatch(f"{expected!r} expected, found {found!r}"[:600])


def _topic(node: Node, name: str, partitions: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(30)
    return name


def _dated(node: Node, name: str, count: int = 10) -> str:
    """A topic with records a second apart."""
    _topic(node, name)
    producer = rd.Producer({"bootstrap.servers": node.bootstrap})
    for number in range(count):
        at = FIRST_TIMESTAMP + 1000 * number
        producer.produce(name, b"value %d" % number, b"key", partition=0, timestamp=at)
    if producer.flush(30):
        raise Mismatch("the records were not taken")
    return name


def metadata(node: Node, kcat: Kcat) -> str:
    """metadata, as text and as JSON (-L, -L -J)."""
    _topic(node, "listed", 3)
    text = kcat(node, "-L", "-t", "listed")
    same(f"broker 1 at {node.bootstrap}" in text, True)
    same('topic "listed" with 3 partitions:' in text, True)
    same(text.count("leader 1, replicas: 1, isrs: 1"), 3)
    found: Any = json.loads(kcat(node, "-L", "-J"))
    same([broker["name"] for broker in found["brokers"]], [node.bootstrap])
    (topic,) = (each for each in found["topics"] if each["topic"] == "listed")
    same([each["partition"] for each in topic["partitions"]], [0, 1, 2])
    return "3 partitions"


def codecs(node: Node, kcat: Kcat) -> str:
    """keys and values in every codec (-K, -z)."""
    pairs = [(f"k{number}", f"value {number} " + "x" * number) for number in range(200)]
    for codec in _CODECS:
        topic = _topic(node, f"codec-{codec}", 3)
        given = "".join(f"{key}={value}\n" for key, value in pairs)
        kcat(node, "-P", "-t", topic, "-K=", "-z", codec, stdin=given)
        read = kcat(node, "-C", "-t", topic, "-e", "-q", "-K=")
        same(Counter(read.splitlines()), Counter(given.splitlines()))
    return f"{len(pairs)} records, {len(_CODECS)} codecs"


def headers(node: Node, kcat: Kcat) -> str:
    """headers and format strings (-H, -f)."""
    topic = _topic(node, "headed")
    for number in range(3):
        extra = ["-H", "a=1", "-H", f"n={number}", "-k", "key", "-p", "0"]
        kcat(node, "-P", "-t", topic, *extra, stdin=f"value {number}\n")
    read = kcat(node, "-C", "-t", topic, "-e", "-q", "-f", "%t|%p|%o|%k|%s|%S|%h\\n")
    same(read.splitlines(), [f"headed|0|{n}|key|value {n}|7|a=1,n={n}" for n in range(3)])
    return ""


def as_json(node: Node, kcat: Kcat) -> str:
    """records as JSON (-J)."""
    topic = _dated(node, "json", 3)
    records: list[Any] = [
        json.loads(line) for line in kcat(node, "-C", "-t", topic, "-e", "-q", "-J").splitlines()
    ]
    same([each["offset"] for each in records], [0, 1, 2])
    same([each["ts"] for each in records], [FIRST_TIMESTAMP + 1000 * n for n in range(3)])
    same({each["tstype"] for each in records}, {"create"})
    same([each["payload"] for each in records], [f"value {n}" for n in range(3)])
    return ""


def tombstones(node: Node, kcat: Kcat) -> str:
    """tombstones (-Z)."""
    topic = _topic(node, "buried")
    kcat(node, "-P", "-t", topic, "-K:", "-Z", stdin="a:1\na:\nb:2\n")
    read = kcat(node, "-C", "-t", topic, "-e", "-q", "-f", "%k %S\\n")
    same(read.splitlines(), ["a 1", "a -1", "b 1"])
    return "a value that is null, not empty"


def places(node: Node, kcat: Kcat) -> str:
    """where to begin and to end (-o, -c, -e)."""
    topic = _dated(node, "places")

    def read(*arguments: str) -> list[int]:
        line = ["-C", "-t", topic, "-p", "0", "-q", "-f", "%o ", *arguments]
        return [int(each) for each in kcat(node, *line).split()]

    same(read("-o", "beginning", "-e"), list(range(10)))
    same(read("-o", "7", "-e"), [7, 8, 9])
    same(read("-o", "-3", "-e"), [7, 8, 9])
    same(read("-o", "beginning", "-c", "4"), [0, 1, 2, 3])
    same(read("-o", "end", "-e"), [])
    since, until = FIRST_TIMESTAMP + 2500, FIRST_TIMESTAMP + 6000
    same(read("-o", f"s@{since}", "-e"), list(range(3, 10)))
    same(read("-o", f"s@{since}", "-o", f"e@{until}"), [3, 4, 5])
    return "by offset, from the end, by time"


def timestamps(node: Node, kcat: Kcat) -> str:
    """times of records (%T)."""
    topic = _dated(node, "times", 4)
    read = kcat(node, "-C", "-t", topic, "-e", "-q", "-f", "%T ").split()
    same([int(each) for each in read], [FIRST_TIMESTAMP + 1000 * number for number in range(4)])
    return ""


def queries(node: Node, kcat: Kcat) -> str:
    """offsets by time (-Q)."""
    topic = _dated(node, "asked")
    for at, offset in (
        (FIRST_TIMESTAMP + 2500, 3), (FIRST_TIMESTAMP, 0), (-1, 10), (-2, 0),
        (FIRST_TIMESTAMP + 999_999, -1),
    ):  # fmt: skip
        said = kcat(node, "-Q", "-t", f"{topic}:0:{at}")
        same(said.split(), [topic, "[0]", "offset", str(offset)])
    return "a time, the first, the next, none"


def partitions(node: Node, kcat: Kcat) -> str:
    """a partition of one's own choice, and delimiters (-p, -D)."""
    topic = _topic(node, "chosen", 3)
    kcat(node, "-P", "-t", topic, "-p", "2", "-D;", stdin="one;two;three")
    read = kcat(node, "-C", "-t", topic, "-e", "-q", "-f", "%p:%s ")
    same(read.split(), ["2:one", "2:two", "2:three"])
    return ""


def safely(node: Node, kcat: Kcat) -> str:
    """acks and idempotence (-X)."""
    topic = _topic(node, "safe")
    given = "".join(f"{number}\n" for number in range(1000))
    for settings in (("acks=0",), ("acks=1",), ("acks=all", "enable.idempotence=true")):
        extra = [word for setting in settings for word in ("-X", setting)]
        kcat(node, "-P", "-t", topic, *extra, stdin=given)
    read = kcat(node, "-C", "-t", topic, "-c", "3000", "-q", "-o", "beginning")
    same(read, given * 3)
    return "3,000 records in order"


def large(node: Node, kcat: Kcat) -> str:
    """a value of 900 kB, and one that is too large."""
    topic = _topic(node, "large")
    kcat(node, "-P", "-t", topic, "-D;", stdin="x" * 900_000)
    same(len(kcat(node, "-C", "-t", topic, "-e", "-q", "-f", "%s")), 900_000)
    extra = ["-X", "message.max.bytes=3000000", "-D;"]
    kcat(node, "-P", "-t", topic, *extra, stdin="x" * 2_000_000, check=False)
    return "the second one is refused"


def made_on_demand(node: Node, kcat: Kcat) -> str:
    """a topic made by the first record, and one that is not there."""
    kcat(node, "-P", "-t", "on-demand", stdin="first\n")
    same(kcat(node, "-C", "-t", "on-demand", "-e", "-q"), "first\n")
    _, said = kcat.both(node, "-C", "-t", "nowhere", "-e", check=False)
    same("nknown topic" in said or "not exist" in said, True)
    return ""


def group(node: Node, kcat: Kcat) -> str:
    """a balanced group that commits and goes on (-G)."""
    topic = _topic(node, "balanced", 3)
    given = [str(number) for number in range(300)]
    kcat(node, "-P", "-t", topic, "-K:", stdin="".join(f"{each}:{each}\n" for each in given))
    line = ["-G", "balancers", topic, "-q", "-X", "auto.offset.reset=earliest"]
    first = kcat(node, *line, "-c", "100").split()
    rest = kcat(node, *line, "-c", "200").split()
    same(len(first), 100)
    same(sorted(first + rest), sorted(given))
    return "100 records, then the other 200"


def regular_expression(node: Node, kcat: Kcat) -> str:
    """a group that subscribes to a pattern (-G, ^)."""
    for name in ("pattern-a", "pattern-b"):
        kcat(node, "-P", "-t", _topic(node, name), stdin=f"{name}\n")
    line = ["-G", "matchers", "^pattern-.*", "-q", "-X", "auto.offset.reset=earliest"]
    same(sorted(kcat(node, *line, "-c", "2").split()), ["pattern-a", "pattern-b"])
    return "two topics"


SCENARIOS: Sequence[Callable[[Node, Kcat], str]] = (
    metadata, codecs, headers, as_json, tombstones, places, timestamps, queries, partitions, safely,
    large, made_on_demand, group, regular_expression,
)  # fmt: skip
