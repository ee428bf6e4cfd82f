"""`ottla cluster add`: one more broker for a cluster that runs.

In a cluster on this machine the process that runs it starts the new broker. In one on ZooKeeper its
settings are written, for whoever starts brokers there. Either way everything that could be wrong is
looked at first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.cluster_moves import plan_of, run_moves, throttle_option
from ottla.cli.cluster_restart import CutShort
from ottla.cli.cluster_status import Looker
from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, json_option
from ottla.cli.output import broker_errors, show_json

if TYPE_CHECKING:
    from ottla.broker.control import Added
    from ottla.client.cluster_health import ClusterHealth
    from ottla.config.broker import BrokerConfig
    from ottla.config.load import Given
    from ottla.model.image import ClusterImage

_DATA_DIR = "cluster-data"
_PATIENCE = 60.0
_PAUSE = 0.1
_OWN = ("node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", "log.dir")
"""Settings that no two brokers share."""
_ALONE = {*_OWN, "port", "host.name", "advertised.host.name", "advertised.port", "metrics.listen"}


@click.command(cls=Command)
@click.option("--id", "broker", type=click.IntRange(0), metavar="ID",
              help="Its number.  [default: the next one]")  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65_535), metavar="PORT",
              help="On this machine: where it listens.  [default: the next one]")  # fmt: skip
@click.option("--rebalance", is_flag=True, help="Also move its share of the partitions to it.")
@throttle_option
@click.option("--data-dir", metavar="FOLDER",
              help="Of a cluster on this machine: its folder [default: cluster-data]. With "
              "--zookeeper or --like: where the new broker keeps its data.")  # fmt: skip
@click.option("--zookeeper", metavar="HOST:PORT",
              help="Of a cluster elsewhere: its ZooKeeper.")  # fmt: skip
@click.option("--like", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="FILE", help="The same, by the settings of a broker of it.")  # fmt: skip
@click.option("--listen", metavar="HOST:PORT",
              help="Of a cluster elsewhere: where the new broker listens.")  # fmt: skip
@bootstrap_option
@json_option
def add(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    broker: int | None,
    port: int | None,
    rebalance: bool,
    throttle: int | None,
    data_dir: str | None,
    zookeeper: str | None,
    like: Path | None,
    listen: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Add a broker to a cluster that runs.

    In a cluster on this machine (`ottla cluster up`, `ottla server start --processes`) the process
    that runs it starts the new broker, and shows what a rebalance would move to it; --rebalance
    does that at once. The next `ottla cluster up` starts it like the others.

    In a cluster whose metadata is in ZooKeeper, --zookeeper or --like names it, and --id, --listen
    and --data-dir what the new broker is. A file broker-ID.properties is written for it, with all
    other settings from the one that --like names. Start the broker where it is to run.

    An id or a port that is taken, and folders of others, are refused before anything is changed.
    After Ctrl-C the process that runs the cluster adds the broker all the same.

    \b
    JSON: {"broker", "address", "data": [folder], "config" (the file that was written, or null),
     "rebalance" (as of `ottla cluster rebalance`; null if it has failed, or there is none)}
    """
    if zookeeper is not None or like is not None:
        _write_settings(broker, listen, data_dir, zookeeper, like, as_json)
        return
    if listen is not None:
        raise click.UsageError("--listen goes with --zookeeper or --like; --port is for brokers "
                               "of this machine")  # fmt: skip
    added = _start(bootstrap, data_dir or _DATA_DIR, broker, port)
    if not as_json:
        click.echo(
            f"broker {added.broker} was added: it listens on {added.address}, "
            f"its data is in {', '.join(added.data)}"
        )
        hint = "`ottla cluster rebalance --yes` does it"
        run_moves(bootstrap, plan_of, throttle, rebalance, hint=hint)
        return
    moves = None
    try:
        moves = run_moves(bootstrap, plan_of, throttle, rebalance, as_json=True)
    finally:  # whatever became of that, there is one more broker
        show_json(_document(added.broker, added.address, added.data, None, moves))


def _document(
    broker: int, address: str, data: tuple[str, ...], config: str | None, moves: object
) -> dict[str, Any]:
    return {
        "broker": broker,
        "address": address,
        "data": list(data),
        "config": config,
        "rebalance": moves,
    }


# --- a cluster on this machine --------------------------------------------------------------------


def _start(bootstrap: str, data_dir: str, broker: int | None, port: int | None) -> Added:
    """Have it started, and wait until the cluster knows it."""
    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.broker.control import ask_to_add
    from ottla.broker.start_failed import StartFailed
    from ottla.runtime.pid_file import holder

    folder = ClusterFolder((data_dir,))
    if holder(folder.supervisor) is None:
        raise click.ClickException(
            f"nobody runs a cluster in {data_dir}: name its folder with --data-dir or, for one "
            "elsewhere, its ZooKeeper with --zookeeper"
        )
    looker = Looker(bootstrap)
    with broker_errors(bootstrap):
        try:
            health = looker.look()
            _check_same(folder.data, health, data_dir)
            there = {each.id for each in health.brokers if each.address or each.replicas}
            if broker in there:
                raise click.ClickException(f"broker {broker} is there already: choose another id")
            try:
                added = ask_to_add(folder.control, broker, port)
            except KeyboardInterrupt:
                raise CutShort(
                    "interrupted: the process that runs the cluster goes on and adds the broker; "
                    "`ottla cluster status` tells when it is there. Typed again, this command adds "
                    "another one"
                ) from None
            deadline = time.monotonic() + _PATIENCE
            while added.broker not in looker.look().live:
                if time.monotonic() > deadline:
                    raise click.ClickException(
                        f"broker {added.broker} runs, and is not in the cluster after "
                        f"{_PATIENCE:.0f} s: see its lines in the terminal of the cluster"
                    )
                time.sleep(_PAUSE)
        except StartFailed as error:
            raise click.ClickException(str(error)) from None
        finally:
            looker.close()
    return added


def _check_same(data: Callable[[int], Sequence[str]], health: ClusterHealth, data_dir: str) -> None:
    """Refuse when the broker that answers is of another cluster than the folder."""
    from ottla.runtime.files import OsFileSystem
    from ottla.storage.checkpoints import read_meta_properties

    files = OsFileSystem()
    for each in health.brokers:
        for folder in filter(files.is_dir, data(each.id)):
            properties = read_meta_properties(files, folder)
            if properties is not None and properties.cluster_id == health.cluster:
                return
    raise click.ClickException(
        f"the cluster that answers, {health.cluster}, is not the one in {data_dir}: name its "
        "folder with --data-dir, or a broker of the other one with --bootstrap"
    )


# --- a cluster on ZooKeeper -----------------------------------------------------------------------


def _write_settings(
    broker: int | None,
    listen: str | None,
    data_dir: str | None,
    zookeeper: str | None,
    like: Path | None,
    as_json: bool,
) -> None:
    """Make the file of a new broker, when nothing speaks against it."""
    from ottla.cli.serve import flag_settings
    from ottla.config.load import Given, InvalidConfig, load

    if listen is None or data_dir is None:
        raise click.UsageError("--listen and --data-dir say where the new broker listens and "
                               "keeps its data")  # fmt: skip
    given = list(_shared(zookeeper, like))
    try:
        config = load(None, given).config
    except InvalidConfig as error:
        raise click.ClickException("\n  ".join(error.problems)) from None
    if config.zookeeper_connect is None:
        raise click.UsageError(f"{like} names no zookeeper.connect: only brokers that share one "
                               "can be joined")  # fmt: skip
    image = _image_of(config)
    known = {*image.registrations, *image.broker_states, *image.brokers}
    known |= {each for topic in image.topics.values() for state in topic.partitions
              for each in state.replicas}  # fmt: skip
    chosen = max(known, default=0) + 1 if broker is None else broker
    try:
        flags = [
            *flag_settings((listen,), (), (data_dir,), ()),
            Given("node.id", str(chosen), "--id"),
        ]
        loaded = load(None, [*given, *flags])
    except InvalidConfig as error:
        raise click.ClickException("\n  ".join(error.problems)) from None
    place = loaded.config.listener_plan.advertised[0]
    address = f"[{place.host}]:{place.port}" if ":" in place.host else f"{place.host}:{place.port}"
    _refuse_taken(image, chosen, address, known)
    _refuse_folders(loaded.config.log_dirs)
    path = Path(f"broker-{chosen}.properties")
    if path.exists():
        raise click.ClickException(f"{path} is there already: move it away, or choose another --id")
    _write(path, [*given, *flags])
    if as_json:
        show_json(_document(chosen, address, tuple(loaded.config.log_dirs), str(path), None))
        return
    click.echo(f"wrote {path}: broker {chosen} of cluster {image.cluster_id}, on {address}")
    click.echo(f"start it:          ottla server start --config {path}")
    click.echo(f"give it its share: ottla cluster rebalance --bootstrap {address}")


def _shared(zookeeper: str | None, like: Path | None) -> Iterator[Given]:
    """The settings that the new broker has from the others."""
    from ottla.config.load import Given
    from ottla.config.properties import MalformedProperties, decode, parse_properties

    if like is not None:
        try:
            found = parse_properties(decode(like.read_bytes()))
        except (OSError, MalformedProperties) as error:
            raise click.ClickException(f"{like}: {error}") from None
        for each in found:
            if each.key not in _ALONE:
                yield Given(each.key, each.value, f"{like}:{each.line}")
    if zookeeper is not None:
        yield Given("zookeeper.connect", zookeeper, "--zookeeper")


def _image_of(config: BrokerConfig) -> ClusterImage:
    """The cluster in that ZooKeeper; refused when there is none."""
    from ottla.cli.metadata_zookeeper import with_store
    from ottla.cluster.registry import Registry
    from ottla.cluster.zookeeper.store import NoStore, ZooKeeperStore

    async def read(store: ZooKeeperStore) -> ClusterImage:
        return await Registry(store).load()

    try:
        image = with_store(config, read, create=False)
    except NoStore:
        image = None
    if image is None or not image.cluster_id:
        raise click.ClickException(
            f"{config.zookeeper_connect} holds no cluster: a first broker makes one, with "
            "`ottla server start`"
        )
    return image


def _refuse_taken(image: ClusterImage, broker: int, address: str, known: set[int]) -> None:
    if broker in known:
        raise click.ClickException(
            f"broker {broker} is there already, or was: there are "
            f"{', '.join(map(str, sorted(known)))}; choose another --id, or have the cluster "
            "forget one that is gone with `kafka-cluster unregister`"
        )
    for each in image.registrations.values():
        for endpoint in each.endpoints.values():
            if endpoint.address == address:
                raise click.ClickException(f"broker {each.id} listens on {address}: choose another "
                                           "--listen")  # fmt: skip


def _refuse_folders(folders: Sequence[str]) -> None:
    """A new broker begins with empty folders."""
    for folder in folders:
        try:
            left = os.listdir(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise click.ClickException(f"{folder}: {error.strerror}") from None
        if left:
            raise click.ClickException(
                f"{folder} is not empty, it holds {left[0]}: a new broker needs a folder of its own"
            )


def _write(path: Path, given: Sequence[Given]) -> None:
    """The file, for its owner only: it may hold what lets a broker into ZooKeeper."""
    lines = [f"{each.name}={_escaped(each.text)}\n" for each in given]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    with open(descriptor, "w", encoding="utf-8") as file:
        file.writelines(lines)


def _escaped(value: str) -> str:
    """A value as Java's format has it."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith(" ") else text
