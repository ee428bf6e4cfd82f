"""`ottla metadata`: what a broker knows of its topics, backed up, brought back, rebuilt.

These commands work on the data folders themselves, or on a cluster's ZooKeeper
(`metadata_zookeeper`). `export` only reads, also beside a running
broker; the others hold the folders' locks for as long as they work, show what they would do, and do
it with --yes.
"""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.command import Noun
from ottla.cli.options import json_option

if TYPE_CHECKING:
    from ottla.broker.rescue import Plan, Scan
    from ottla.cluster.journal import Contents
    from ottla.config.broker import BrokerConfig
    from ottla.model.ids import TopicId
    from ottla.runtime.files import FileSystem

F = TypeVar("F", bound=Callable[..., Any])

_QUIET_SECONDS = 2.0


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, listed in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_folders = _options(
    click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The broker's server.properties, which names its data folders.",
    ),
    click.option(
        "--data-dir",
        multiple=True,
        metavar="DIR",
        help="A data folder; name every one of them.",
    ),
)


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """How metadata is to be rebuilt: the options that `import` and `rescue` share."""

    config_file: Path | None
    data_dir: tuple[str, ...]
    partitions: tuple[str, ...]
    accept: bool
    replace: bool
    as_json: bool


def _rebuilds(command: Callable[..., None]) -> Callable[..., None]:
    """A command with these options, which is called with a `Rebuilding`."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        chosen = Rebuilding(**{each.name: given.pop(each.name) for each in fields(Rebuilding)})
        command(chosen=chosen, **given)

    return _options(
        _folders,
        click.option(
            "--partitions",
            multiple=True,
            metavar="TOPIC=N",
            help="How many partitions a topic had, where the folders do not tell.",
        ),
        click.option("--yes", "accept", is_flag=True, help="Do it."),
        click.option(
            "--replace",
            is_flag=True,
            help="Also when there is metadata already; it is kept beside the new one.",
        ),
        json_option,
    )(run)


@click.group(cls=Noun)
def metadata() -> None:
    """Back up, bring back and rebuild a broker's metadata.

    The metadata is what a broker knows of its topics: ids, partitions, settings, and which producer
    ids were given out. It is in the folder metadata of one of the data folders.
    """


_zookeeper_option = click.option(
    "--zookeeper",
    metavar="HOST:PORT[/CHROOT]",
    help="The cluster's ZooKeeper, instead of data folders; a --config may name it, and how to be "
    "let in.",
)


@metadata.command("export")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@_folders
@_zookeeper_option
def export_command(
    file: str, config_file: Path | None, data_dir: tuple[str, ...], zookeeper: str | None
) -> None:
    """Write the metadata to FILE (- for standard output), for `ottla metadata import`.

    The broker may be running: what is written is one state that was committed. FILE is JSON with a
    version and a checksum.
    """
    shared = _shared(config_file, data_dir, zookeeper)
    if shared is not None:
        from ottla.cli.metadata_zookeeper import export

        export(shared, file)
        return
    from ottla.broker.metadata_home import find_stores, noted_homes, store_path
    from ottla.cluster import backup, journal, layout
    from ottla.storage.checkpoints import CheckpointError, read_meta_properties

    config = _config(config_file, data_dir)
    fs = _files()
    with _told():
        folders = [folder for folder in config.log_dirs if fs.is_dir(folder)]
        stores = find_stores(fs, folders)
        if not stores:
            raise click.ClickException(f"there is no metadata in {', '.join(config.log_dirs)}")
        noted = noted_homes(fs, folders)
        home = next((path for path in stores if os.path.abspath(path) in noted), stores[0])
        contents = journal.read(fs, store_path(home))
        if not contents.entries:
            raise click.ClickException(f"{store_path(home)} is empty: there is nothing to export")
        if (handed_over := contents.entries.get(layout.HANDED_OVER)) is not None:
            where = layout.decode_hand_over(layout.HANDED_OVER, handed_over.value)
            raise click.ClickException(
                f"the metadata in {store_path(home)} is an old copy, it was handed over to "
                f"ZooKeeper: export what is there now with --zookeeper {where}"
            )
        try:
            meta = read_meta_properties(fs, home)
        except CheckpointError as error:
            raise click.ClickException(str(error)) from None
    text = backup.dump(
        backup.Backup(
            None if meta is None else meta.cluster_id,
            None if meta is None else meta.node_id,
            contents,
        )
    )
    if file == "-":
        click.echo(text, nl=False)
        return
    with _told():
        fs.write_atomic(os.path.abspath(file), text.encode())
    click.echo(f"wrote {len(contents.entries):,} entries of {store_path(home)} to {file}")


@metadata.command("import")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@_rebuilds
@_zookeeper_option
def import_command(file: str, chosen: Rebuilding, zookeeper: str | None) -> None:
    """Bring back the metadata that `ottla metadata export` wrote to FILE.

    The data folders are looked through first: topics that are newer than the backup are added from
    their folders, and leader epochs and producer ids go on above everything found. Without --yes
    this only shows what would be done. The broker must be stopped.

    A cluster's ZooKeeper must be empty. Start the brokers afterwards: each partition waits for all
    of its replicas, and whoever has most of it leads. Topics newer than the backup are not known
    then; their records are kept, in folders whose names end in -stray.

    \b
    JSON: as of `ottla metadata rescue`
    """
    from ottla.cluster.backup import BadBackup, parse

    try:
        with click.open_file(file, encoding="utf-8") as source:
            backup = parse(source.read())
    except BadBackup as error:
        raise click.ClickException(f"{file} cannot be imported: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from None

    shared = _shared(chosen.config_file, chosen.data_dir, zookeeper)
    if shared is not None:
        from ottla.cli.metadata_zookeeper import bring_back

        if chosen.partitions or chosen.replace:
            raise click.UsageError("--partitions and --replace are for data folders only")
        bring_back(shared, file, backup, accept=chosen.accept, as_json=chosen.as_json)
        return

    def check(found: Scan) -> None:
        for name, theirs, ours in (
            ("cluster", backup.cluster_id, found.cluster_id),
            ("node", backup.node_id, found.node_id),
        ):
            if None not in (theirs, ours) and theirs != ours:
                raise click.ClickException(
                    f"{file} is of {name} {theirs}, and the data folders belong to {name} {ours}: "
                    "nothing was changed"
                )
        found.cluster_id = found.cluster_id or backup.cluster_id
        found.node_id = backup.node_id if found.node_id is None else found.node_id

    _rebuild(chosen, base=backup.contents, check=check)


@metadata.command()
@_rebuilds
def rescue(chosen: Rebuilding) -> None:
    """Rebuild lost metadata from the partitions' own folders.

    Topics get back their ids and partitions; leader epochs and producer ids go on above everything
    found. Settings of topics, groups and brokers are lost. Name every data folder. Without --yes
    this only shows what would be done. The broker must be stopped. If there is a backup, use
    `ottla metadata import`. Metadata in a ZooKeeper, which several brokers share, cannot be rebuilt
    from the folders of one of them.

    \b
    JSON: {"done", "metadata", "replaces" (null if nothing), "cluster_id", "node_id",
           "next_producer_id", "conflicts", "notes",
           "topics": [{"name", "id", "partitions", "empty_partitions", "leader_epoch",
                       "config", "origin"}]}
    """
    shared = _shared(chosen.config_file, chosen.data_dir, None)
    if shared is not None:
        where = shared.zookeeper_connect
        raise click.ClickException(
            f"{chosen.config_file} names a ZooKeeper: what its brokers share is brought back "
            f"there, with `ottla metadata import FILE --zookeeper {where}`. One broker's folders "
            "lack what others hold: with --data-dir they can be rebuilt as those of a broker by "
            "itself, in which such partitions are empty"
        )
    _rebuild(chosen)


def _rebuild(
    chosen: Rebuilding,
    *,
    base: Contents | None = None,
    check: Callable[[Scan], None] | None = None,
) -> None:
    from ottla.broker import rescue as work
    from ottla.cli.output import show_json

    config = _config(chosen.config_file, chosen.data_dir)
    counts = _counts(chosen.partitions)
    fs = _files()
    folders = list(config.log_dirs)
    with _told(), _claimed(fs, folders):
        try:
            found = work.scan(fs, folders, _say_now_and_then())
        except work.RescueRefused as error:
            raise click.ClickException(str(error)) from None
        if check is not None:
            check(found)
        plan = work.plan(fs, found, config, _new_topic_id, base=base, counts=counts)
        refusal = _refusal(plan, chosen.replace)
        done = chosen.accept and refusal is None
        kept = None
        if done:
            moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
            kept = work.carry_out(fs, plan, folders, f"{moment}-{uuid.uuid4().hex[:6]}")
    if chosen.as_json:
        show_json(plan.document(done))
    else:
        _show(plan, lost=base is None)
        if done:
            click.echo(f"done{f'; the old metadata is in {kept}' if kept else ''}")
        elif refusal is None:
            click.echo("nothing was changed; do it with --yes")
    if refusal is not None:
        raise click.ClickException(f"{refusal}; nothing was changed")


def _refusal(plan: Plan, replace: bool) -> str | None:
    """Why the plan must not be carried out."""
    if plan.conflicts:
        return f"{len(plan.conflicts)} conflict(s) must be settled first"
    if plan.replaces is not None and not replace:
        return f"there is metadata in {plan.replaces}: --replace makes it anew and keeps the old"
    if not plan.topics and not plan.replaces and plan.cluster_id is None:
        return "there is nothing to rebuild in these folders: are they the right ones?"
    return None


def _show(plan: Plan, *, lost: bool) -> None:
    from ottla.broker.metadata_home import store_path
    from ottla.broker.rescue import UNRECOVERABLE
    from ottla.cli.output import Column, show_table
    from ottla.model.ids import topic_id_text

    click.echo(f"metadata          {store_path(plan.home)}")
    click.echo(f"cluster           {plan.cluster_id or 'a new one, with the next start'}")
    click.echo(f"node              {plan.node_id}")
    click.echo(f"next producer id  {plan.next_producer_id}")
    show_table(
        [
            Column("TOPIC"),
            Column("ID"),
            Column("PARTITIONS", True),
            Column("EMPTY", True),
            Column("EPOCH", True, is_name=True),
            Column("FROM"),
        ],
        [
            (
                topic.name,
                topic_id_text(topic.id),
                len(topic.partitions),
                len(topic.made),
                max((state.leader_epoch for state in topic.partitions), default=0),
                topic.origin,
            )
            for topic in plan.topics
        ],
    )
    for note in plan.notes:
        click.echo(f"note: {note}")
    if lost:
        click.echo("cannot be recovered:")
        for what in UNRECOVERABLE:
            click.echo(f"  {what}")
    for conflict in plan.conflicts:
        click.echo(f"conflict: {conflict}")


def _say_now_and_then() -> Callable[[str], None]:
    """Tells where a long search is, at most once in two seconds."""
    from ottla.cli.output import say

    due = time.monotonic() + _QUIET_SECONDS

    def tell(folder: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _QUIET_SECONDS
            say(f"looking through {folder}")

    return tell


def _shared(
    config_file: Path | None, data_dir: Sequence[str], zookeeper: str | None
) -> BrokerConfig | None:
    """Settings that name a ZooKeeper, if that is where the metadata is."""
    if zookeeper is not None:
        if data_dir:
            raise click.UsageError("name data folders or a --zookeeper, not both")
        return _loaded(config_file, {"zookeeper.connect": zookeeper})
    if config_file is None or data_dir:
        return None
    config = _loaded(config_file, {})
    return None if config.zookeeper_connect is None else config


def _config(config_file: Path | None, data_dir: Sequence[str]) -> BrokerConfig:
    if config_file is None and not data_dir:
        raise click.UsageError("name the data folders with --data-dir, or a --config that does")
    config = _loaded(config_file, {"log.dirs": ",".join(data_dir)} if data_dir else {})
    _refuse_cluster_folders(config.log_dirs)
    return config


def _refuse_cluster_folders(folders: Sequence[str]) -> None:
    """Brokers that were started together have their metadata elsewhere, and all share it: it must
    not be rebuilt from what one of them has."""
    from ottla.broker.cluster_folder import ClusterFolder, belongs_to_cluster, cluster_home

    fs = _files()
    why = belongs_to_cluster(fs, folders)
    if why is None:
        return
    homes = (cluster_home(fs, each) for each in folders)
    cluster = ClusterFolder((next(home for home in homes if home is not None),))
    if fs.exists(cluster.zookeeper):
        raise click.ClickException(
            f"{why}; their metadata is in a ZooKeeper: `ottla metadata export` and "
            "`import` work on that, with --zookeeper"
        )
    raise click.ClickException(
        f"{why}; their metadata is in {cluster.store}: to back it up, stop the brokers and copy "
        f"the whole of {cluster.home}"
    )


def _loaded(config_file: Path | None, overrides: Mapping[str, str]) -> BrokerConfig:
    from ottla.config.load import InvalidConfig, load

    try:
        return load(config_file, overrides).config
    except InvalidConfig as error:
        raise click.ClickException("\n  ".join(error.problems)) from None


def _counts(pairs: Sequence[str]) -> Mapping[str, int]:
    counts = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        if not name or not number.isascii() or not number.isdecimal():
            raise click.UsageError(f"--partitions {pair!r}: expected TOPIC=N, as orders=12")
        counts[name] = int(number)
    return counts


def _new_topic_id() -> TopicId:
    from ottla.model.ids import TopicId

    return TopicId(uuid.uuid4().bytes)


def _files() -> FileSystem:
    from ottla.runtime.files import OsFileSystem

    return OsFileSystem()


@contextmanager
def _told() -> Iterator[None]:
    """What the disk or the store complains about becomes one line."""
    from ottla.cluster.journal import DamagedStore

    try:
        yield
    except DamagedStore as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror or error}") from None


@contextmanager
def _claimed(fs: FileSystem, folders: Sequence[str]) -> Iterator[None]:
    """Hold the locks of the data folders, so that no broker runs or starts meanwhile."""
    from ottla.storage import paths

    with ExitStack() as stack:
        for folder in folders:
            if not fs.is_dir(folder):
                continue
            try:
                lock = fs.lock(os.path.join(folder, paths.LOCK))
            except BlockingIOError:
                raise click.ClickException(
                    f"a broker is running on the data folder {folder}; stop it first"
                ) from None
            stack.callback(lock.release)
        yield
