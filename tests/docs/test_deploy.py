"""What is in deploy/, as far as it can be checked without root, containers or Prometheus."""

from __future__ import annotations

import asyncio
import configparser
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import promql_parser
import pytest
import yaml

from ottla.broker.reference import registered
from ottla.cli.main import cli
from ottla.cli.serve import flag_settings
from ottla.config.load import Loaded, load

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
RULES = yaml.safe_load((DEPLOY / "prometheus" / "ottla.rules.yml").read_text())["groups"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
BROKERS = [name for name in COMPOSE["services"] if name.startswith("broker-")]
KNOWN = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"}
KNOWN |= {"HEALTHCHECK", "ENTRYPOINT", "CMD"}


def parsed(words: list[str]) -> click.Context:
    """A command line of `ottla`, as its own parser reads it; UsageError if it does not."""
    context = click.Context(cli, info_name="ottla", **cli.context_settings)
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]}"
        context = click.Context(found, context, info_name=words[0])
        command, words = found, words[1:]
    assert context.parent is not None
    return command.make_context(str(context.info_name), list(words), context.parent)


def loaded(words: list[str]) -> Loaded:
    """The settings that a broker gets by a command line; every unknown one is an error."""
    given = parsed(words).params
    flags = (given[name] for name in ("listen", "advertise", "data_dirs", "settings"))
    return load(given["config_file"], [*flag_settings(*flags)], strict=True)


# -- metrics in queries ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples() -> set[str]:
    """Every name that a query may use."""
    names = {"up"}
    for metric in asyncio.run(registered()):
        parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {f"{metric.name}{part}" for part in parts}
    return names


def check_query(query: str, samples: set[str]) -> None:
    promql_parser.parse(re.sub(r"\$__rate_interval", "5m", query))
    bare = re.sub(r'"[^"]*"|by \([^)]*\)', "", query)
    named = set(re.findall(r"\b((?:kafka|ottla|process)_\w+|up)\b", bare))
    assert named, f"{query} names no metric"
    assert named <= samples, f"{query} names what no broker has: {named - samples}"


RULE = [pytest.param(rule, id=rule["alert"]) for group in RULES for rule in group["rules"]]


@pytest.mark.parametrize("rule", RULE)
def test_an_alert_asks_for_metrics_that_exist(rule: dict[str, Any], samples: set[str]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    check_query(rule["expr"], samples)
    promql_parser.parse_duration(rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "action"}


def joined(query: Any) -> Iterator[Any]:
    """Both sides of every `and` and `unless` in a query."""
    if str(getattr(query, "op", "")) in ("and", "unless"):
        yield from (query.lhs, query.rhs)
    for side in ("lhs", "rhs", "expr"):
        if hasattr(query, side):
            yield from joined(getattr(query, side))


@pytest.mark.parametrize("rule", RULE)
def test_conditions_that_are_joined_are_about_the_same_series(rule: dict[str, Any]) -> None:
    """A follower is behind one leader and catches up, while another has nothing new for it: the
    largest lag and the largest change, each of all leaders, are numbers of two leaders."""
    for side in joined(promql_parser.parse(rule["expr"])):
        assert "by (" not in side.prettify()


def test_an_unclean_election_before_the_first_scrape_is_not_missed() -> None:
    """There is no increase of what had no value before."""
    rules = {rule["alert"]: rule["expr"] for group in RULES for rule in group["rules"]}
    query = rules["OttlaUncleanElection"]
    assert re.search(r"(\w+_total) > 0\s+unless\s+\1 offset 10m", query)


def test_there_are_alerts_for_what_can_go_wrong() -> None:
    names = {rule["alert"] for group in RULES for rule in group["rules"]}
    assert names >= {
        "OttlaPartitionsOffline",
        "OttlaPartitionsUnderReplicated",
        "OttlaReplicaLag",
        "OttlaGroupLag",
        "OttlaDiskFull",
    }
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert scraped["rule_files"] == ["ottla.rules.yml"]
    [job] = scraped["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"{name}:9308" for name in BROKERS]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboard", DEPLOY / "grafana" / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_dashboard_is_what_its_program_makes() -> None:
    made: str = generator().made()
    written = (DEPLOY / "grafana" / "ottla.json").read_text()
    assert written == made, "run python deploy/grafana/dashboard.py"


def test_the_dashboard_asks_for_metrics_that_exist(samples: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "ottla.json").read_text())
    graphs = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(graphs) > 20
    for panel in graphs:
        assert panel["targets"]
        for target in panel["targets"]:
            check_query(target["expr"], samples)
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places), "two panels lie on one another"
    [_, broker] = dashboard["templating"]["list"]
    assert "ottla_build_info" in samples
    assert broker["query"] == "label_values(ottla_build_info, instance)"


# -- systemd -----------------------------------------------------------------------------------


class UnitFile(configparser.ConfigParser):
    """Keys as they are written."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_one_and_runs_a_command_that_exists(unit: Path, tmp_path: Path) -> None:
    parser = UnitFile(interpolation=None)
    parser.read(unit)
    assert parser.sections() == ["Unit", "Service", "Install"]
    program, *words = shlex.split(parser["Service"]["ExecStart"])
    assert program == "/opt/ottla/bin/ottla"
    parsed(words)
    if shutil.which("systemd-analyze"):
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace(program, sys.executable))
        told = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", copy],
            capture_output=True,
            text=True,
            check=False,
        )
        assert unit.name not in told.stderr, told.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_keeps_its_data_and_shows_it_to_nobody(unit: Path) -> None:
    parser = UnitFile(interpolation=None)
    parser.read(unit)
    service = parser["Service"]
    assert "PrivateTmp" not in service, "what is in a private /tmp is gone with the next stop"
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectoryMode"] == "0750"
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"


def test_the_settings_of_a_broker_are_good_ones() -> None:
    config = load(DEPLOY / "systemd" / "broker-1.properties", [], strict=True).config
    assert config.node_id == 1
    assert config.zookeeper_connect is not None
    assert config.metrics_address == ("127.0.0.1", 9308)


# -- containers --------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    lines = (DEPLOY / "container" / "Containerfile").read_text().splitlines()
    found = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(word, rest.strip()) for word, _, rest in found]


def test_the_image_is_made_of_what_is_there() -> None:
    root = DEPLOY.parent
    found = instructions()
    assert {word for word, _ in found} <= KNOWN
    assert found[0][0] == "FROM"
    copied = [rest.split()[:-1] for word, rest in found if word == "COPY" and "--from" not in rest]
    for path in (path for paths in copied for path in paths):
        assert (root / path).exists(), f"{path} is copied and not there"
    needed = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src"}
    assert {path for paths in copied for path in paths} == needed


def test_the_image_runs_a_broker() -> None:
    found = dict(instructions())
    assert json.loads(found["ENTRYPOINT"]) == ["ottla"]
    config = loaded(json.loads(found["CMD"])).config
    assert config.metrics_address == ("0.0.0.0", 9308)
    ports = {str(config.listeners[0].port), "9308"}
    assert set(found["EXPOSE"].split()) == ports


def test_the_brokers_of_the_compose_file_form_a_cluster() -> None:
    configs = [loaded(COMPOSE["services"][name]["command"]).config for name in BROKERS]
    assert [config.node_id for config in configs] == [1, 2, 3]
    assert {config.zookeeper_connect for config in configs} == {"zookeeper:2181/ottla"}
    for name, config in zip(BROKERS, configs, strict=True):
        plan = config.listener_plan
        assert plan.inter_broker == "INSIDE"
        inside, outside = plan.advertised
        assert (inside.host, inside.port) == (name, 19092)
        assert COMPOSE["services"][name]["ports"] == [f"127.0.0.1:{outside.port}:{outside.port}"]
        assert config.min_insync_replicas == 2
        assert config.metrics_address == ("0.0.0.0", 9308)


def test_nobody_is_let_in_to_change_something_and_no_disk_fills_up() -> None:
    services = COMPOSE["services"]
    grafana = services["grafana"]["environment"]
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert int(services["zookeeper"]["environment"]["ZOO_AUTOPURGE_PURGEINTERVAL"]) > 0
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_the_compose_file_names_only_what_it_has() -> None:
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    for service in services.values():
        assert service.get("image"), "every service has an image"
        assert set(service.get("depends_on", {})) <= set(services)
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            known = (DEPLOY / source).exists() if source.startswith("./") else source in volumes
            assert known, f"{mount} is nowhere"
        build = service.get("build")
        if build is not None:
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_the_readme_names_every_file() -> None:
    named = set(re.findall(r"`([\w./@-]+)`", (DEPLOY / "README.md").read_text()))
    beside = {"grafana/datasources.yaml", "grafana/provider.yaml", "systemd/broker-1.properties"}
    there = {
        str(path.relative_to(DEPLOY))
        for path in DEPLOY.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md"
    }
    assert there - beside <= named
