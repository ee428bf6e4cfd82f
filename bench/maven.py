"""Java libraries by Maven, into a cache folder that is never committed.

The pom is written here, so a version is one constant. A set of libraries that has been fetched
completely is marked by a stamp and never fetched again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.processes import BenchError, run

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
KAFKA_VERSION = "4.2.0"
OLD_CLIENTS_VERSION = "3.9.1"
# Kafka is built against the 1.7 line of slf4j; a 2.x binding would be ignored with a warning on
# the standard error of every tool.
_SLF4J_NOP = "org.slf4j:slf4j-nop:1.7.36"
_SLF4J_SIMPLE = "org.slf4j:slf4j-simple:1.7.36"
_FETCH_TIMEOUT = 900.0


@dataclass(frozen=True, slots=True)
class Libraries:
    """Some Maven artifacts, with all they need at run time unless they are said to be all."""

    name: str
    artifacts: tuple[str, ...]
    alone: bool = False

    @property
    def folder(self) -> Path:
        return CACHE / self.name / "libs"

    @property
    def classpath(self) -> str:
        return f"{self.folder}/*"


BROKER = Libraries(
    f"kafka-{KAFKA_VERSION}",
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        _SLF4J_NOP,
    ),
)
CLIENTS = Libraries(
    f"kafka-clients-{KAFKA_VERSION}",
    (f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}", _SLF4J_NOP),
)
OLD_CLIENTS = Libraries(
    f"kafka-clients-{OLD_CLIENTS_VERSION}",
    (f"org.apache.kafka:kafka-clients:{OLD_CLIENTS_VERSION}", _SLF4J_NOP),
)
# Their log lines go to a file beside the broker's: they say why something came to nothing.
STREAMS = Libraries(
    f"kafka-streams-{KAFKA_VERSION}",
    (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", _SLF4J_SIMPLE),
)
CONNECT = Libraries(
    f"kafka-connect-{KAFKA_VERSION}",
    (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
        _SLF4J_SIMPLE,
    ),
)
# The newest connector that Maven has runs on the newer Spark, too. What it names as its needs would
# bring a second Spark along, and a token provider of a version that is not there.
SPARK_CONNECTOR = Libraries(
    "spark-connector-4.2.0",
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        f"org.apache.kafka:kafka-clients:{OLD_CLIENTS_VERSION}",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    alone=True,
)


def program(name: str, why: str) -> str:
    """The path of a program of the machine, or one sentence that says what is missing and why."""
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"`{name}` is not on this machine; {why}.")
    return found


def java() -> str:
    return program("java", "Apache Kafka needs a Java runtime (17 or newer)")


def fetch(libraries: Libraries) -> Libraries:
    """Make the libraries present on this machine."""
    home = CACHE / libraries.name
    stamp = home / "complete"
    wanted = "\n".join(libraries.artifacts)
    if stamp.is_file() and stamp.read_text() == wanted:
        return libraries
    java()
    maven = program("mvn", "it brings Apache Kafka's libraries for the comparison")
    print(f"fetching {', '.join(libraries.artifacts)} by Maven", flush=True)
    shutil.rmtree(libraries.folder, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    pom = home / "pom.xml"
    pom.write_text(pom_text(libraries))
    command = [
        maven, "--batch-mode", "--quiet", "--file", str(pom),
        "dependency:copy-dependencies", f"-DoutputDirectory={libraries.folder}",
        "-DincludeScope=runtime",
    ]  # fmt: skip
    run("mvn dependency:copy-dependencies", command, timeout=_FETCH_TIMEOUT)
    stamp.write_text(wanted)
    return libraries


def pom_text(libraries: Libraries) -> str:
    """A pom that does nothing but name the artifacts."""
    any_other = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    without = f"<exclusions>{any_other}</exclusions>" if libraries.alone else ""
    lines = [
        '<project xmlns="http://maven.apache.org/POM/4.0.0">',
        "  <modelVersion>4.0.0</modelVersion>",
        f"  <groupId>bench</groupId><artifactId>{libraries.name}</artifactId><version>1</version>",
        "  <dependencies>",
    ]
    for artifact in libraries.artifacts:
        group, name, version = artifact.split(":")
        lines.append(
            f"    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>{without}</dependency>"
        )
    return "\n".join([*lines, "  </dependencies>", "</project>", ""])
