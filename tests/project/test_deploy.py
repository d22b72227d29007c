"""What is deployed in containers: the image and the services around it have least rights, and fit this version."""

from __future__ import annotations

import importlib.util
import json
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from kits.basics.dockerfiles import read, wrong
from kits.basics.places import ROOT

import penstock
from penstock.common.config import load_config
from penstock.shell.terminal.script import SqlText, split_all
from penstock.sql.dialect.parser import parse_one

DEPLOY = ROOT / "deploy"
DOCKERFILE = read(DEPLOY / "Dockerfile")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def start() -> ModuleType:
    """The program of deploy/start.py as a module."""
    spec = importlib.util.spec_from_file_location("start", DEPLOY / "start.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_dockerfile_keeps_hadolints_rules() -> None:
    """Those that are left out are named above an instruction."""
    assert wrong(DOCKERFILE) == []


@pytest.mark.parametrize(("text", "rules"), [
    ("FROM debian\nUSER root", {"DL3006", "DL3002", "DL3057"}),
    ("FROM a:latest\nADD x /x\nMAINTAINER me\nUSER me\nCMD run it\nCMD [\"run\"]",
     {"DL3007", "DL3020", "DL4000", "DL3025", "DL4003", "DL3057"}),
    ("FROM a:1\nRUN apt-get install python3\nRUN cd /x && sudo make | tee log\nUSER me\nHEALTHCHECK NONE",
     {"DL3014", "DL3015", "DL3008", "DL3009", "DL3003", "DL3004", "DL4006"}),
    ("FROM a:1 AS one\nCOPY --from=two /x /x\nRUN pip install numpy\nWORKDIR x\nUSER me\nHEALTHCHECK NONE\n"
     "EXPOSE 70000",
     {"DL3022", "DL3042", "DL3013", "DL3000", "DL3011"}),
    ("FROM a:1 AS one\nFROM one\nCOPY --from=one /x /x\nUSER me\nHEALTHCHECK NONE", set()),
    ("FROM a:1\n# hadolint ignore=DL3027,DL3004\nRUN apt update && sudo it\nUSER me\nHEALTHCHECK NONE", set()),
])
def test_rules_are_told(text: str, rules: set[str], tmp_path: Path) -> None:
    """Each rule finds what breaks it."""
    (tmp_path / "Dockerfile").write_text(text)
    assert {re.split(r"[: ]+", found)[1] for found in wrong(read(tmp_path / "Dockerfile"))} == rules


def test_the_image_has_what_this_version_needs() -> None:
    """Debian's Java, Python's packages by hashes with all extras that a server has; it runs what `penstock` takes."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    setup = (ROOT / "scripts" / "setup").read_text("utf-8")
    assert re.findall(r"openjdk-\S+", text) == re.findall(r'java_package="(.*)"', setup)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    locked = re.findall(r"^([\w-]+)==(\S+)", (DEPLOY / "packages.lock").read_text("utf-8"), re.MULTILINE)
    extras = project["optional-dependencies"]
    needed = {re.match(r"[\w-]+", each)[0].lower().replace("_", "-")  # type: ignore[index]
              for each in (*project["dependencies"],
                           *(each for extra, each_of in extras.items() if extra not in ("dev", "demo")
                             for each in each_of))}
    assert needed <= {name for name, _ in locked}
    tested = set(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE))
    assert set(locked) <= tested
    exposed = {int(port) for each in DOCKERFILE if each.name == "EXPOSE" for port in each.words}
    config = load_config({}, environment={})
    assert exposed == {config.postgres_port, config.taos_adapter_port, config.flight_port}


def test_what_the_image_copies_is_let_through() -> None:
    """.dockerignore lets in what COPY takes from outside, and nothing else."""
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    copied = {word for each in DOCKERFILE if each.name == "COPY" and "from" not in each.options
              for word in each.words[:-1]}
    assert ignored[0] == "*"
    assert {line.removeprefix("!") for line in ignored[1:]} == copied


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_least_rights(name: str) -> None:
    """Pinned images, no root account, no capabilities, a read-only root, bounded memory, health, loopback alone."""
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+:v?\d[\w.-]*", service["image"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "devices"} & set(service)
    assert service.get("read_only", False) or name == "kafka"
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:")
    if name == "penstock":  # its image says so
        assert [each.rest for each in DOCKERFILE if each.name == "USER"] == ["penstock"]
    else:
        assert int(service["user"].partition(":")[0]) > 0
        assert service["healthcheck"]["test"][0] == "CMD"
    for secret in service.get("secrets", ()):
        assert secret in COMPOSE["secrets"]
    for volume in service.get("volumes", ()):
        source, _, rest = volume.partition(":")
        assert source in COMPOSE["volumes"] or ((DEPLOY / source).exists() and rest.endswith(":ro"))


def test_the_services_fit_this_version() -> None:
    """The image's tag is the version; keys in the environment are Penstock's; published ports are those it serves."""
    service = SERVICES["penstock"]
    assert service["image"] == f"penstock:{penstock.__version__}"
    load_config({}, environment=service["environment"])
    exposed = {port for each in DOCKERFILE if each.name == "EXPOSE" for port in each.words}
    assert {port.rpartition(":")[2] for port in service["ports"]} == exposed
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))["scrape_configs"][0]
    assert scraped["static_configs"] == [{"targets": [f"penstock:{service['environment']['PENSTOCK_METRICS_PORT']}"]}]
    for path in (DEPLOY / "grafana").rglob("*.yaml"):
        assert yaml.safe_load(path.read_text("utf-8"))["apiVersion"] == 1
    for piece in split_all((DEPLOY / "example.sql").read_text("utf-8")):
        if isinstance(piece, SqlText):
            parse_one(piece.text)


def test_secrets_are_drawn_once(tmp_path: Path) -> None:
    """Those that compose.yaml names, in a folder that nobody else can enter; a second run changes none."""
    script = tmp_path / "make_secrets"
    script.write_bytes((DEPLOY / "make_secrets").read_bytes())
    for _ in range(2):
        subprocess.run(["bash", str(script)], check=True)
        found = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
        assert set(found) == {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
        assert len(set(found.values())) == len(found)
        assert all(len(text.strip()) == 32 for text in found.values())
        kept = json.dumps(found)
        assert json.loads((tmp_path / "kept").read_text() if (tmp_path / "kept").exists() else kept) == found
        (tmp_path / "kept").write_text(kept)
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700


def test_a_container_makes_users_of_its_secrets(tmp_path: Path) -> None:
    """Those that aren't there; passwords may have quotes; without secrets nothing is opened."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    begin = start()
    begin.make_users(tmp_path / "data", secrets)
    assert not (tmp_path / "data").exists()
    (secrets / "penstock_admin").write_text("it's \\ a \"secret\"\n")
    (secrets / "penstock_read").write_text("reads-only\n")
    for _ in range(2):
        begin.make_users(tmp_path / "data", secrets)
    with penstock.connect(str(tmp_path / "data")) as owner:
        users = owner.execute("SELECT name, role FROM information_schema.ins_users ORDER BY 1").fetchall()
    assert users == [("admin", "admin"), ("read", "read")]
