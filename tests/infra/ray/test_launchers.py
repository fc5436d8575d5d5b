"""Ray's cluster launchers: their files, and nodes that drain when they are preempted."""

import copy
import json
import os
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import click
import googleapiclient.discovery_cache
import jsonschema
import pytest
from ray.autoscaler import _private
from ray.autoscaler._private.gcp.config import get_node_type
from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.dashboard.modules.job import job_supervisor
from ray.scripts import scripts
from yaml_files import document, misspelt, places

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "infra" / "ray"
FILES = ("gpu", "tpu")
RESOURCES = {"CPU", "GPU", "TPU"}
COMMANDS = re.compile(r".*_commands$")


def launcher(name):
    return document(FOLDER / f"{name}.yaml")


def problems(config):
    """What Ray says of a launcher file, and what it would let through and Google would not."""
    try:
        validate_config(prepare_config(copy.deepcopy(config)))
    except (jsonschema.ValidationError, ValueError, KeyError) as error:
        return [str(error)]
    schema = Path(_private.__file__).parents[1] / "ray-schema.json"
    provider = json.loads(schema.read_text())["properties"]["provider"]["properties"]
    found = [f"provider.{key}: unknown" for key in config["provider"] if key not in provider]
    for name, node in config["available_node_types"].items():
        found += [f"{name}: no resource {kind}" for kind in set(node["resources"]) - RESOURCES]
        found += node_problems(node["node_config"])
    return found


def node_problems(node):
    try:
        kind = get_node_type(node).value
    except ValueError as error:
        return [str(error)]
    document, shape = {"compute": ("compute.v1", "Instance"), "tpu": ("tpu.v2alpha1", "Node")}[kind]
    return faults(node, {"$ref": shape}, schemas(document))


def is_a_word_of_ours(place):
    """Names that nobody else knows: those of node types, and the places of files."""
    return len(place) == 2 and place[0] in ("available_node_types", "file_mounts")


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_as_ray_and_google_want_it(name):
    assert problems(launcher(name)) == []


@pytest.mark.some(1)
@pytest.mark.parametrize("name", FILES)
def test_any_misspelt_key_is_found(name):
    config = launcher(name)
    keys = [place for place in places(config) if not is_a_word_of_ours(place)]
    assert ("available_node_types", "head", "node_config", "disks", 0, "autoDelete") in keys
    assert not [place for place in keys if not problems(misspelt(config, place))]


def test_misspelt_values_are_found():
    config = launcher("gpu")
    assert config["available_node_types"]["gpu"]["node_config"]["scheduling"]
    config["available_node_types"]["gpu"]["node_config"]["scheduling"]["provisioningModel"] = "SPTO"
    assert "'SPTO' is none of" in problems(config)[0]
    config = launcher("tpu")
    config["available_node_types"]["v6e_16"]["node_config"]["acceleratorConfig"]["topology"] = "16"
    assert "topology should be of form" in problems(config)[0]


def test_machines_come_with_the_demand_and_are_spot():
    gpu = launcher("gpu")
    node = gpu["available_node_types"]["gpu"]
    assert node["min_workers"] == 0 < node["max_workers"] == gpu["max_workers"]
    assert node["node_config"]["scheduling"]["provisioningModel"] == "SPOT"
    # g2-standard-N has a GPU for each 12 of its N processors.
    processors = int(node["node_config"]["machineType"].removeprefix("g2-standard-"))
    assert node["resources"] == {"CPU": processors, "GPU": processors // 12}
    types = launcher("tpu")["available_node_types"]
    assert all(
        each["node_config"]["schedulingConfig"] == {"spot": True}
        for name, each in types.items()
        if name != "head"
    )
    for config in (gpu, launcher("tpu")):
        assert config["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}
        others = [each for each in config["available_node_types"].values() if "max_workers" in each]
        assert sum(other["max_workers"] for other in others) == config["max_workers"]


def test_the_slice_has_the_resource_that_reserves_it():
    filled = GCPNodeProvider.fillout_available_node_types_resources(launcher("tpu"))
    resources = filled["available_node_types"]["v6e_16"]["resources"]
    assert resources == {"CPU": 180, "TPU": 4, "TPU-v6e-16-head": 1}


def commands(config):
    return [line for key, lines in config.items() if COMMANDS.match(key) for line in lines]


@pytest.mark.parametrize("name", FILES)
def test_the_commands_are_shell_and_their_files_are_here(name):
    text = commands(launcher(name))
    assert len(text) > 8
    for command in text:
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)
        for path in re.findall(r"~/bertline/([\w./-]*\w)", command):
            assert (REPOSITORY / path).exists(), path
    assert os.access(FOLDER / "drain_when_preempted.sh", os.X_OK)


@pytest.mark.parametrize("name", FILES)
def test_the_project_is_installed_by_its_constraints(name):
    (install,) = [line for line in commands(launcher(name)) if "-e ~/bertline" in line]
    assert "-c ~/bertline/constraints.txt" in install
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert set(re.findall(r"\[(\w+)\]", install)) <= set(project["optional-dependencies"])
    constraints = (REPOSITORY / "constraints.txt").read_text()
    (autoscaler,) = launcher(name)["head_setup_commands"]
    for package in autoscaler.split("constraints.txt ")[1].split():
        assert re.search(rf"^{package}==", constraints, re.MULTILINE | re.IGNORECASE), package


def start_options(command):
    """What Ray's own parser reads in a `ray start`; raises what it finds wrong."""
    (start,) = [part for part in command.split(";") if "ray start" in part]
    words = shlex.split(start)[2:]
    return scripts.start.make_context("start", words).params


def test_the_start_commands_say_every_port_and_ray_knows_them():
    for name in FILES:
        config = launcher(name)
        head = start_options(config["head_start_ray_commands"][1])
        worker = start_options(config["worker_start_ray_commands"][1])
        assert head["head"] and not worker["head"]
        assert worker["address"] == f"$RAY_HEAD_IP:{head['port']}"
        only_head = {"port", "dashboard_port", "ray_client_server_port"}
        ports = {key: value for key, value in head.items() if key.endswith("_port")}
        assert {"port": head["port"]} | ports
        for key, port in ports.items():
            assert port is not None, key
            assert key in only_head or worker[key] == port
        single = [head["port"]] + [
            port for key, port in ports.items() if key not in ("min_worker_port", "max_worker_port")
        ]
        assert len(set(single)) == len(single)
        assert not [
            each for each in single if head["min_worker_port"] <= each <= head["max_worker_port"]
        ]
        # Seen from outside by an SSH tunnel alone.
        assert head["dashboard_host"] == "127.0.0.1"


def test_a_misspelt_option_of_ray_start_is_found():
    command = launcher("gpu")["worker_start_ray_commands"][1]
    with pytest.raises(click.UsageError, match="object-manger-port"):
        start_options(command.replace("object-manager", "object-manger"))


def test_nodes_authenticate_and_a_stopped_job_has_time_for_a_checkpoint():
    lines = (FOLDER / "node.env").read_text().splitlines()
    node = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert node["RAY_AUTH_MODE"] == "token"
    assert int(node["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60
    assert '"RAY_JOB_STOP_WAIT_TIME_S"' in Path(job_supervisor.__file__).read_text()
    for name in FILES:
        config = launcher(name)
        assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
        assert any(". ~/bertline/infra/ray/node.env" in line for line in config["setup_commands"])


SCRIPT = Path(__file__).parents[3] / "infra" / "ray" / "drain_when_preempted.sh"

# Google's answer, first that nothing has happened, then the notice.
CURL = """
[[ "$*" == *Metadata-Flavor*instance/preempted?wait_for_change=true ]] || exit 7
if [[ -e asked ]]; then printf TRUE; else touch asked; printf FALSE; fi"""


def test_the_notice_becomes_a_drain_of_this_node(tmp_path):
    node = "ab" * 28
    for name, body in (
        ("curl", CURL),
        ("python", f"echo {node}"),
        ("ray", '[[ -e asked ]] && printf "%s\\n" "$@" > called'),
    ):
        program = tmp_path / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/programs:/usr/bin:/bin"}
    subprocess.run([SCRIPT], cwd=tmp_path, env=environment, check=True, timeout=30)
    name, *words = (tmp_path / "called").read_text().splitlines()
    drain = scripts.cli.commands[name].make_context(name, words).params
    assert drain["node_id"] == node
    assert drain["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert 20 <= drain["deadline_remaining_seconds"] < 30


DOCUMENTS = Path(googleapiclient.discovery_cache.__file__).parent / "documents"
TYPES = {"boolean": bool, "integer": int, "number": (int, float), "string": str}


@cache
def schemas(document):
    """The shapes that one of Google's services knows, by name."""
    return json.loads((DOCUMENTS / f"{document}.json").read_text(encoding="utf-8"))["schemas"]


def faults(value, schema, known, where=""):
    """What is wrong with a value, each with its place; keys that are not known are wrong."""
    schema = known[schema["$ref"]] if "$ref" in schema else schema
    kind = schema["type"]
    if kind == "object":
        if not isinstance(value, dict):
            return [f"{where}: no mapping"]
        shapes = schema.get("properties", {})
        more = schema.get("additionalProperties")
        found = [f"{where}.{key}: unknown" for key in value if key not in shapes and not more]
        for key, each in value.items():
            if key in shapes or more:
                found += faults(each, shapes.get(key, more), known, f"{where}.{key}")
        return found
    if kind == "array":
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [fault for each in value for fault in faults(each, schema["items"], known, where)]
    # Numbers of 64 bits are texts in JSON, and Google takes them as numbers too.
    wanted = int if schema.get("format") in ("int64", "uint64") else TYPES[kind]
    if not isinstance(value, wanted):
        return [f"{where}: {value!r} is no {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    return []
