"""compose.yaml: held to Compose's schema key by key, and what it names is there."""

import importlib.resources
import json
import re

import jsonschema
import pytest
from compose_files import COMPOSE, FOLDER, compose, mounts, secret_file, services, variables
from containers import REPOSITORY
from manifests import of_kind
from yaml_files import INFRA, document, misspelt, places

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
    return [each.message for each in errors]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_file_is_valid(path):
    assert faults(document(path)) == []


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
    published = [port for each in services().values() for port in each.get("ports", [])]
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
