"""The folder of a pipeline: what survives a run, and what others may ask of it.

    <state folder>/<pipeline>/
        checkpoint/     Spark's, unless the pipeline's file names another place
        staging/        what sources keep that they could not read again
        lock            held by the driver, with its process number
        pipeline.json   the query that the checkpoint belongs to; the member id of its driver
        status.json     what the driver said last
        pipeline.log    what it logged, with pipeline.log.1 … before
        spark.log       what Spark and its workers logged

The state folder is `--state-dir`, else `OTTLA_PIPELINES`, else `ottla/pipelines` in
`XDG_STATE_HOME` (`~/.local/state`): it does not depend on where a command is typed, since a
pipeline that does not find its checkpoint would begin anew.

Files are replaced as a whole, and `pipeline.json` is durable before a query starts.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

VARIABLE: Final = "OTTLA_PIPELINES"
NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")


class Refused(Exception):
    """A pipeline that cannot be run, moved or reset as things are; the text says what to do."""

    def __init__(self, pipeline: str, sentence: str) -> None:
        super().__init__(f"pipeline {pipeline} {sentence}")
        self.pipeline = pipeline


def state_folder(given: str | None, environ: Mapping[str, str] | None = None) -> Path:
    """Where the folders of all pipelines are."""
    environ = os.environ if environ is None else environ
    named = given or environ.get(VARIABLE)
    if named:
        return Path(named).absolute()
    state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "ottla" / "pipelines"


class Home:
    """One pipeline's folder; making the value makes no folder."""

    def __init__(self, state: Path, name: str) -> None:
        if not NAME.fullmatch(name) or set(name) == {"."}:
            raise ValueError(
                f"{name!r} is no name of a pipeline: up to 100 of a-z, A-Z, 0-9, '.', '_' and '-'"
            )
        self.name = name
        self.folder = state / name

    @property
    def lock_file(self) -> Path:
        return self.folder / "lock"

    @property
    def log_file(self) -> Path:
        return self.folder / "pipeline.log"

    @property
    def spark_log(self) -> Path:
        return self.folder / "spark.log"

    @property
    def staging(self) -> Path:
        return self.folder / "staging"

    @property
    def archive(self) -> Path:
        """What workers of a cluster get: this environment."""
        return self.folder / "ottla.tar"

    def checkpoint(self, named: str | None) -> str:
        """The place of the checkpoint: what the pipeline's file names, else here."""
        return named or str(self.folder / "checkpoint")

    def make(self) -> None:
        """Make the folder; `Refused` if that cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(
                self.name,
                f"cannot make its folder, {self.folder}: {error.strerror}; name another one with "
                f"--state-dir or {VARIABLE}",
            ) from None

    # -- what is remembered

    def remembered(self) -> dict[str, Any]:
        """What `pipeline.json` holds; nothing before the first run."""
        return _read(self.folder / "pipeline.json")

    def remember(self, document: Mapping[str, Any]) -> None:
        """Replace it, durably; `Refused` if that cannot be."""
        path = self.folder / "pipeline.json"
        try:
            _write(path, document, durable=True)
        except OSError as error:
            raise Refused(
                self.name, f"cannot write {path}: {error.strerror}; nothing has been read yet"
            ) from None

    def status(self) -> dict[str, Any]:
        """What the driver said last."""
        return _read(self.folder / "status.json")

    def tell(self, document: Mapping[str, Any]) -> None:
        """Say how things are, for `ottla pipeline status`."""
        _write(self.folder / "status.json", document, durable=False)


def homes(state: Path) -> Iterator[Home]:
    """All pipelines that have been run, by name."""
    try:
        names = sorted(os.listdir(state))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if NAME.fullmatch(name) and (state / name / "pipeline.json").is_file():
            yield Home(state, name)


def local_path(place: str) -> Path | None:
    """The folder of this machine that is meant; None for a place that is elsewhere."""
    parts = urlsplit(place)
    if not parts.scheme:
        return Path(place)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return found


def _write(path: Path, document: Mapping[str, Any], *, durable: bool) -> None:
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}-", delete=False
    ) as file:
        try:
            json.dump(document, file, indent=2)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
