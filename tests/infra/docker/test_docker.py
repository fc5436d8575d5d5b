"""The Dockerfile, compose.yaml and the secrets: valid, and consistent with Kubernetes."""

import configparser
import importlib.resources
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from containers import (
    COMPOSE,
    DOCKERFILE,
    FOLDER,
    compose,
    mounts,
    secret_file,
    services,
    variables,
)
from manifests import FOLDER as KUBERAY
from manifests import of_kind
from yaml_files import INFRA, document, misspelt, places

from serving.keys import read_keys

REPOSITORY = INFRA.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILDS = {"gcc", "g++", "make", "cmake", "build-essential", "git", "python3-pip", "python3-venv"}


def stages(text):
    """Each stage: its name -> what it is made from, and its instructions."""
    found = {}
    joined = re.sub(r"\\\n(?:\s*#.*\n)*", " ", text)
    for line in joined.splitlines():
        if match := re.match(r"FROM (\S+) AS (\S+)$", line):
            found[match[2]] = (match[1], instructions := [])
        elif line.strip() and not line.startswith("#"):
            instructions.append(line.strip())
    return found


STAGES = stages(DOCKERFILE.read_text(encoding="utf-8"))
TARGETS = ("cpu", "cuda", "tpu", "mlflow")


def whole(name):
    """All instructions that an image comes of, without the stages that it copies from."""
    base, own = STAGES[name]
    return [*(whole(base) if base in STAGES else []), *own]


def installed(name):
    """What apt-get installs in an image."""
    lines = [line for line in whole(name) if "apt-get install" in line]
    words = re.findall(r"--no-install-recommends ([^&]+)&&", " ".join(lines))
    return set(" ".join(words).split())


def hadolint(text):
    done = subprocess.run(["hadolint", "-"], input=text, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode else ""


def test_hadolint_has_nothing_to_say():
    assert hadolint(DOCKERFILE.read_text(encoding="utf-8")) == ""


@pytest.mark.parametrize(
    ("there", "instead", "rule"),
    [
        ("WORKDIR /build", "WORKDIRS /build", "missing whitespace"),
        ("debian:12.12-slim", "debian:latest", "DL3007"),
        ("debian:12.12-slim", "debian", "DL3006"),
        ("USER 1000:1000", "USER root", "DL3002"),
        ("--no-install-recommends ca", "ca", "DL3015"),
        ("WORKDIR /build", "WORKDIR build", "DL3000"),
    ],
)
def test_a_fault_is_found(there, instead, rule):
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert there in text
    assert rule in hadolint(text.replace(there, instead))


def test_one_release_of_one_system_is_under_all():
    outside = {base for base, _ in STAGES.values() if base not in STAGES}
    assert outside == {"debian:12.12-slim"}


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_nobody_special_and_builds_nothing(target):
    users = [line for line in whole(target) if line.startswith("USER ")]
    assert users[-1] == "USER 1000:1000"
    # Triton compiles while it runs: the Dockerfile says so.
    allowed = {"gcc"} if target == "cuda" else set()
    assert installed(target) & BUILDS == allowed
    assert {"ca-certificates", "python3"} <= installed(target)
    assert "python3-pip" in installed("builder")


@pytest.mark.parametrize("target", TARGETS)
def test_packages_have_the_versions_that_are_tested(target):
    (line,) = [line for line in whole(target) if line.startswith("COPY --from=")]
    made = whole(re.search(r"--from=(\S+)", line)[1])
    assert any("PIP_CONSTRAINT=/build/constraints.txt" in each for each in made)
    assert any(each.startswith("COPY") and "constraints.txt" in each for each in made)
    for each in made:
        assert not re.search(r"pip install .*(==|--upgrade)", each)
    takes_torch_first = any('--index-url "$TORCH_INDEX"' in each for each in made)
    assert takes_torch_first == (target in ("cpu", "tpu"))


def test_kubernetes_and_compose_name_no_other_image_of_ours():
    made = {f"bertline-{target}" for target in TARGETS}
    listed = document(KUBERAY / "images" / "kustomization.yaml")["images"]
    assert {each["name"] for each in listed} == made
    gpu = document(FOLDER / "compose.gpu.yaml")["services"]
    for service in [*services().values(), *gpu.values()]:
        name, version = service["image"].split(":")
        if name.startswith("bertline"):
            assert name in made and version == PROJECT["version"]
            target = service.get("build", {}).get("target")
            assert target is None or name == f"bertline-{target}"


def requirements(*extras):
    done = subprocess.run(
        [sys.executable, FOLDER / "requirements.py", *extras],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_requirements_are_the_project_s():
    assert requirements() == PROJECT["dependencies"]
    tpu = PROJECT["optional-dependencies"]["tpu"]
    assert requirements("tpu") == [*PROJECT["dependencies"], *tpu]


def test_what_is_copied_is_let_in_and_nothing_else_is():
    lines = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*" and rules[-2:] == ["**/*.json", "**/__pycache__"]
    let_in = {rule.removeprefix("!") for rule in rules[1:-2]}
    copied = {
        source
        for _, instructions in STAGES.values()
        for line in instructions
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == let_in
    assert all((REPOSITORY / each).exists() for each in copied)
    # What `pip install .` would bring, at least.
    packages = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {package.rstrip("*") for package in packages["packages"]["find"]["include"]} <= copied


SCHEMA = json.loads(
    (
        importlib.resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    ).read_text(encoding="utf-8")
)
FILES = [COMPOSE, FOLDER / "compose.gpu.yaml"]
FREE = {"environment", "services", "secrets", "volumes", "depends_on"}
"""Maps whose keys are names of our own."""


def faults(content):
    """What Compose's schema has against a file."""
    errors = jsonschema.Draft202012Validator(SCHEMA).iter_errors(content)
    return [error.message for error in errors]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_file_is_valid(path):
    assert faults(document(path)) == []


@pytest.mark.some(1)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_any_misspelt_key_is_found(path):
    content = document(path)
    tried, missed = 0, []
    for place in places(content):
        is_a_name = place[-2:-1] and place[-2] in FREE and place[-3:-2] != ("build",)
        if isinstance(place[-1], int) or is_a_name or str(place[0]).startswith("x-"):
            continue
        tried += 1
        if not faults(misspelt(content, place)):
            missed.append(place)
    assert tried > 3 and missed == []


def test_own_names_are_names_of_something():
    for name, service in services().items():
        waits = service.get("depends_on", {})
        assert set(waits) <= services().keys(), name
        for other, condition in waits.items() if isinstance(waits, dict) else ():
            healthy = condition["condition"] == "service_healthy"
            assert not healthy or "healthcheck" in services()[other], (name, other)
        for path in service.get("env_file", []):
            assert (FOLDER / path).is_file()
        for source, _, is_ours in mounts(service):
            there = (FOLDER / source).exists() if is_ours else source in compose()["volumes"]
            assert there, (name, source)
    used = {each for service in services().values() for each in service.get("secrets", [])}
    assert used == compose()["secrets"].keys()
    kept = {source for each in services().values() for source, _, ours in mounts(each) if not ours}
    assert kept == compose()["volumes"].keys()


def test_variables_and_words_name_secrets_and_services_that_the_service_knows():
    found = 0
    for name, service in services().items():
        words = [*map(str, service.get("command", [])), *map(str, variables(service).values())]
        for secret in re.findall(r"/run/secrets/(\w+)", " ".join(words)):
            assert secret in service["secrets"], (name, secret)
            found += 1
        for host in re.findall(r"(?:https?://|@|override=)([a-z][\w-]*):\d", " ".join(words)):
            assert host in services() or host == "localhost", (name, host)
            found += 1
    assert found > 12


def test_nothing_is_published_beyond_this_machine():
    published = [port for service in services().values() for port in service.get("ports", [])]
    assert len(published) == 5
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in published)


def test_no_secret_stands_in_the_file_and_git_does_not_see_those_that_are_made():
    for name, service in services().items():
        for variable, value in service.get("environment", {}).items():
            hidden = re.search("PASSWORD|SECRET|TOKEN|KEY|CREDENTIAL", variable)
            assert not hidden or value.startswith("/run/secrets/"), (name, variable)
    ignored = (REPOSITORY / ".gitignore").read_text(encoding="utf-8").splitlines()
    folders = {secret_file(name).split("/")[0] for name in compose()["secrets"]}
    assert folders == {"secrets"} and "infra/docker/secrets/" in ignored


def test_images_are_pinned_and_ours_may_do_little():
    for name, service in services().items():
        _, tag = service["image"].split(":")
        assert re.match(r"v?\d", tag), name
        if service["image"].startswith("bertline-"):
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert not service.get("privileged")


def test_mlflow_and_its_database_are_those_of_kubernetes():
    (pod,) = of_kind("Deployment")["mlflow"]["spec"]["template"]["spec"]["containers"]
    here = " ".join(services()["mlflow"]["command"])
    options = [each.partition("=")[0] for each in pod["args"]]
    assert re.findall(r"--[a-z-]+", here) == options
    (database,) = of_kind("StatefulSet")["postgres"]["spec"]["template"]["spec"]["containers"]
    assert services()["database"]["image"] == database["image"]
    there = {each["name"]: each.get("value") for each in pod["env"]}
    for name in ("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "MLFLOW_DISABLE_TELEMETRY"):
        assert services()["mlflow"]["environment"][name] == there[name]


def test_prometheus_reads_what_it_reads_elsewhere_with_a_key():
    here, elsewhere = (
        document(FOLDER / "prometheus.yaml"),
        document(INFRA / "monitoring/prometheus.yaml"),
    )
    (serving,) = [job for job in here["scrape_configs"] if job["job_name"] == "serving"]
    assert serving.pop("authorization") == {"credentials_file": "/run/secrets/prometheus_key"}
    assert here == elsewhere
    (targets,) = document(INFRA / "monitoring" / "servers.yaml")
    for target in targets["targets"]:
        host, port = target.split(":")
        assert f"--port={port}" in services()[host]["command"]


def test_grafana_finds_its_dashboards_and_its_data():
    places = {target: source for source, target, _ in mounts(services()["grafana"])}
    provisioning = INFRA / "monitoring" / "grafana" / "provisioning"
    assert (FOLDER / places["/etc/grafana/provisioning"]).resolve() == provisioning
    (provider,) = document(provisioning / "dashboards" / "bertline.yaml")["providers"]
    dashboards = FOLDER / places[provider["options"]["path"]]
    assert list(dashboards.glob("*.json"))
    (source,) = document(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()
    assert f"127.0.0.1:{port}:{port}" in services()[host]["ports"]


def test_the_text_that_stops_jobs_is_the_same_on_kubernetes():
    ours = (INFRA / "ray" / "stop_jobs.py").read_text(encoding="utf-8")
    assert of_kind("ConfigMap")["ray-node"]["data"]["stop.py"] == ours
    mounted = {target: source for source, target, _ in mounts(services()["ray-head"])}
    (hook,) = services()["ray-head"]["pre_stop"]
    assert (FOLDER / mounted[hook["command"][-1]]).resolve() == INFRA / "ray" / "stop_jobs.py"


SCRIPT = FOLDER / "secrets.sh"


@pytest.fixture
def secrets(tmp_path):
    """Makes the secrets in a folder: what the script said, and the folder."""
    folder = tmp_path / "secrets"

    def make(*arguments):
        return subprocess.run(
            [SCRIPT, *arguments],
            env=os.environ | {"BERTLINE_SECRETS": str(folder)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return make, folder


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_they_are_made_once_for_their_owner_alone_and_not_shown(secrets):
    make, folder = secrets
    first = make()
    assert first.returncode == 0, first.stderr
    made = contents(folder)
    assert {Path(secret_file(name)).name for name in compose()["secrets"]} <= made.keys()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [text for text in made.values() if text in first.stdout + first.stderr]
    random = [made[name] for name in ("database_password", "ray_token", "grafana_password")]
    assert len(set(random)) == 3
    assert all(len(each) == 64 and set(each) <= set("0123456789abcdef") for each in random)
    assert make().returncode == 0
    assert contents(folder) == made
    (folder / "ray_token").unlink()
    assert make().returncode == 0
    again = contents(folder)
    assert again.pop("ray_token") != made.pop("ray_token")
    assert again == made


def test_keys_open_what_they_are_for(secrets):
    make, folder = secrets
    assert make().returncode == 0
    keys = read_keys(folder / "api_keys.json")
    client = keys.find((folder / "client_key").read_text())
    prometheus = keys.find((folder / "prometheus_key").read_text())
    assert (client.record.scopes, prometheus.record.scopes) == (("predict",), ("admin",))
    credentials = configparser.ConfigParser()
    credentials.read(folder / "object_store_credentials")
    (identity,) = json.loads((folder / "object_store_keys.json").read_text())["identities"]
    (key,) = identity["credentials"]
    assert key["accessKey"] == credentials["default"]["aws_access_key_id"]
    assert key["secretKey"] == credentials["default"]["aws_secret_access_key"]


def test_help_and_what_it_does_not_take(secrets):
    make, folder = secrets
    assert "database_password" in make("--help").stdout
    refused = make("now")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "error: 'now' is no option; see --help\n"
    assert not folder.exists()


def test_shellcheck_knows_no_fault_of_it():
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)
