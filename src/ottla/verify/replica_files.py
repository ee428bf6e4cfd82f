"""What the files of a replica hold, after its broker has stopped."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from ottla.records.batch import batches


class Content(NamedTuple):
    """Where a replica ends, and a digest of its batches."""

    end: int
    digest: str


def read_replica(folder: Path, end: int) -> Content:
    """The batches of a partition's folder that begin below `end`."""
    digest = hashlib.sha256()
    found = 0
    for segment in sorted(folder.glob("*.log")):
        content = segment.read_bytes()
        for position, header in batches(content):
            if header.base_offset >= end:
                break
            found = header.base_offset + header.last_offset_delta + 1
            digest.update(content[position : position + header.size])
    return Content(found, digest.hexdigest()[:16])
