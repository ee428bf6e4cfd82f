"""The machine and the versions a table was measured with: no names, no paths."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka

from bench.maven import KAFKA_VERSION, java
from bench.processes import run


@dataclass(frozen=True, slots=True)
class Machine:
    """What a reader needs to judge the figures."""

    processor: str
    cores: int
    memory_gb: int
    kernel: str
    file_system: str
    python: str
    librdkafka: str
    client: str
    java: str
    kafka: str

    def sentence(self) -> str:
        return (
            f"{self.cores} cores ({self.processor}), {self.memory_gb} GB of memory, "
            f"Linux {self.kernel}, data on {self.file_system}; Python {self.python}, "
            f"confluent-kafka {self.client} (librdkafka {self.librdkafka}), Java {self.java}, "
            f"Apache Kafka {self.kafka} (KRaft, 1 GB heap, G1, its default settings)."
        )


def describe(folder: Path) -> Machine:
    """Look at this machine; `folder` is where the brokers keep their data."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
        kernel=re.match(r"[0-9.]+", platform.release())[0],
        file_system=_file_system(folder),
        python=platform.python_version(),
        librdkafka=str(confluent_kafka.libversion()[0]),
        client=str(confluent_kafka.__version__),
        java=_java_version(),
        kafka=KAFKA_VERSION,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _java_version() -> str:
    said = run("java -version", [java(), "-version"], timeout=60)
    quoted = re.search(r'"([^"]+)"', said.stderr + said.stdout)
    return quoted[1] if quoted else "unknown"


def _file_system(folder: Path) -> str:
    """The type of the file system that holds the folder, from the longest matching mount point."""
    best, kind = "", "unknown"
    where = str(folder.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _device, mount, fs_type, *_rest = line.split()
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fs_type
    return kind
