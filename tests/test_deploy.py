"""The files in deploy/ agree with the program: options, addresses, metrics and files exist."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.openapi import ENDPOINTS, KEYLESS_ADDRESSES
from metaprobe.production.http.settings import Settings
from metaprobe.production.serving_commands import serve

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
OPTIONS = {name for option in serve.params if isinstance(option, click.Option) for name in option.opts}
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
CLUSTER: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
POD: dict[str, Any] = CLUSTER["Deployment"]["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]


def words(key: str) -> list[str]:
    """The words of a line of the Dockerfile."""
    lines = re.findall(rf"^{key} (.+)$", (DEPLOY / "Dockerfile").read_text(), re.M)
    return list(json.loads(lines[-1])) if lines[-1].startswith("[") else lines[-1].split()


@pytest.mark.parametrize(
    "arguments", [words("ENTRYPOINT")[2:], COMPOSE["services"]["metaprobe"]["command"], CONTAINER["args"]]
)
def test_every_option_is_one_that_the_program_has(arguments: list[str]) -> None:
    given = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    assert given
    assert given <= OPTIONS


def test_the_image_holds_no_torch_and_its_process_is_not_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    [extras] = re.findall(r"^ARG EXTRAS=(.+)$", text, re.M)
    needed, wanted = set(), set(extras.split(","))
    while wanted:
        extra = wanted.pop()
        for requirement in EXTRAS[extra]:
            within = re.fullmatch(r"metaprobe\[(.+)\]", requirement)
            wanted |= set(within[1].split(",")) if within else set()
            needed.add(re.split(r"[\[<>=;!]", requirement)[0])
    assert {"uvicorn", "sqlalchemy", "psycopg", "opentelemetry-api"} <= needed
    assert not {"torch", "transformers", "scikit-learn"} & needed
    assert words("USER") == ["10001:10001"]
    assert POD["securityContext"]["runAsUser"] == 10001
    assert POD["securityContext"]["runAsNonRoot"] is True


def test_what_is_copied_into_the_image_is_all_that_the_package_is_built_from() -> None:
    left_out = {line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split() if "*" not in line}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    rooms = {folder.partition("/")[0] for folder in settings["package-dir"].values()}
    assert not left_out & (rooms | {"pyproject.toml", "README.md", "LICENSE", "src", "deploy"})


def test_probes_ask_addresses_that_need_no_key_and_are_there() -> None:
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    [asked] = re.findall(r"http://127.0.0.1:8080(/\w+)", (DEPLOY / "Dockerfile").read_text())
    assert {*probes, asked} <= set(KEYLESS_ADDRESSES) <= set(ENDPOINTS)


def test_a_shutdown_is_given_the_time_that_it_may_take() -> None:
    grace = Settings(checkpoint="c").grace_s
    assert f"--grace={grace}" in CONTAINER["args"]
    _, slept = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert POD["terminationGracePeriodSeconds"] > grace + int(slept)
    assert int(COMPOSE["services"]["metaprobe"]["stop_grace_period"].rstrip("s")) > grace


def test_every_metric_on_the_board_is_one_that_the_server_counts() -> None:
    board = json.loads((DEPLOY / "grafana" / "board.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"metaprobe_\w+", target["expr"])
    }
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", Metrics().exposition().decode(), re.M)
    parts = {"counter": ("",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    counted = {name + part for name, kind in kinds for part in parts[kind] if not name.endswith("_created")}
    assert len(asked) > 12
    assert asked <= counted
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    source = yaml.safe_load((DEPLOY / "grafana" / "source.yml").read_text())["datasources"][0]
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"]}


def test_every_file_that_is_mounted_is_there_but_for_secrets() -> None:
    mounted = {
        source
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", ())
        if (source := volume.partition(":")[0]).startswith("./")
    }
    missing = {source for source in mounted if not (DEPLOY / source).is_file()}
    assert missing == {"./metrics.key"}
    assert (DEPLOY / COMPOSE["services"]["metaprobe"]["build"]["context"]).resolve() == ROOT
    named = {volume["name"] for volume in POD["volumes"]}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == named


def test_no_secret_stands_in_what_is_deployed() -> None:
    environment = COMPOSE["services"]["metaprobe"]["environment"] | COMPOSE["services"]["postgres"]["environment"]
    for name in ("METAPROBE_API_KEY", "METAPROBE_UPSTREAM_KEY", "PGPASSWORD", "POSTGRES_PASSWORD"):
        assert re.fullmatch(r"\$\{\w+:[?-][^}]*\}", environment[name])
    logs = [word for word in (*CONTAINER["args"], *COMPOSE["services"]["metaprobe"]["command"]) if "--log=" in word]
    assert logs
    assert not any(re.search(r"//[^/@]+:[^/@]*@", log) for log in logs)
