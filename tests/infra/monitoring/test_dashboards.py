"""Dashboards and rules: valid files, expressions that Prometheus reads, metrics that exist."""

import copy
import json
import re
import shutil
import subprocess

import jsonschema
import pytest
import yaml
from monitoring_files import (
    DASHBOARD,
    DASHBOARDS,
    DATASOURCES,
    FOLDER,
    PROVIDERS,
    TEXT,
    dashboard,
    faults,
    metrics_of,
    metrics_of_ray,
    metrics_of_runs,
    metrics_of_servers,
    only,
    panels,
    queries,
    rules,
    some,
    variable_metrics,
)
from yaml_files import INFRA, document, misspelt, places

PROVISIONING = FOLDER / "grafana" / "provisioning"
FILES = {
    PROVISIONING / "datasources" / "prometheus.yaml": DATASOURCES,
    PROVISIONING / "dashboards" / "bertline.yaml": PROVIDERS,
    **dict.fromkeys(DASHBOARDS, DASHBOARD),
}
each_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def content(path):
    return dashboard(path) if path.suffix == ".json" else document(path)


def test_no_grafana_file_is_left_out():
    assert {path for path in (FOLDER / "grafana").rglob("*") if path.is_file()} == FILES.keys()
    assert [path.stem for path in DASHBOARDS] == ["serving", "training"]


@each_file
def test_the_file_is_valid(path):
    assert faults(content(path), FILES[path]) == []


@pytest.mark.some(1)
@each_file
def test_any_misspelt_key_of_grafana_is_found(path):
    given, tried = content(path), {}
    for place in places(given):
        shape = tuple("[]" if isinstance(each, int) else each for each in place)
        tried.setdefault(shape, place)
    missed = []
    for place in tried.values():
        wrong = holder = copy.deepcopy(given)
        for key in place[:-1]:
            holder = holder[key]
        holder[f"{place[-1]}s"] = holder.pop(place[-1])
        if not faults(wrong, FILES[path]):
            missed.append(place)
    assert len(tried) > 5 and missed == []


@each_dashboard
def test_panels_lie_beside_each_other(path):
    taken = set()
    for panel in dashboard(path)["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    every_id = [panel["id"] for panel in dashboard(path)["panels"]]
    assert len(set(every_id)) == len(every_id)


@each_dashboard
def test_each_panel_has_a_title_a_source_and_thresholds_in_order(path):
    titles = [panel["title"] for panel in panels(path)]
    assert all(titles) and len(titles) >= 10
    for panel in panels(path):
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
        first, *others = [
            each["value"] for each in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        ]
        assert first is None and others == sorted(others)


@each_dashboard
def test_the_choices_are_used_and_there_are_no_others(path):
    choices = {each["name"] for each in dashboard(path)["templating"]["list"]}
    text = json.dumps(dashboard(path)["panels"])
    assert choices >= ({"run"} if path.stem == "training" else {"deployment", "model"})
    assert not [name for name in choices if f"${name}" not in text and f"${{{name}}}" not in text]
    assert not [title for title, expression in queries(path) if "$" in expression]


@each_dashboard
def test_the_metrics_exist_and_are_shown(path):
    own = metrics_of_runs() if path.stem == "training" else metrics_of_servers()
    asked = {name for _, expression in queries(path) for name in metrics_of(expression)}
    asked |= variable_metrics(path)
    assert asked <= own | metrics_of_ray()
    if path.stem == "training":
        assert metrics_of_runs() <= asked, "all that a run says is shown"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed here")
@each_dashboard
def test_prometheus_can_read_the_queries(path, tmp_path):
    def is_read(expressions):
        rules = [
            {"record": f"query_{number}", "expr": each} for number, each in enumerate(expressions)
        ]
        file = tmp_path / "rules.yaml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
        ran = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True)
        return ran.returncode == 0

    expressions = [expression for _, expression in queries(path)]
    assert is_read(expressions)
    assert not is_read([*expressions, f"{expressions[0]})"])


def test_grafana_finds_dashboards_and_prometheus():
    (provider,) = document(PROVISIONING / "dashboards" / "bertline.yaml")["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    (source,) = document(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    assert source["isDefault"]
    scraped = document(FOLDER / "prometheus.yaml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed here"
)
CHECKS = {
    "prometheus.yaml": ["check", "config"],
    "servers.yaml": ["check", "config"],
    "prometheus-kubernetes.yaml": ["check", "config"],
    "rules.yaml": ["test", "rules"],
    "rules_test.yaml": ["test", "rules"],
}
READ_BY = {"servers.yaml": "prometheus.yaml", "rules.yaml": "rules_test.yaml"}
ALERTS = {
    "TrainingStalled",
    "LossNotFinite",
    "QueueGrowing",
    "ErrorRate",
    "AliasBehind",
    "NoServer",
}
POD_DISCOVERY = some(
    only(("role",), role={"enum": ["pod"]}, namespaces=only(("names",), names=some(TEXT)))
)
"""Debian's Prometheus is built without Kubernetes: prometheus.io, <kubernetes_sd_config>."""


def complaint(name, content, folder):
    """What promtool says of a file with other content, empty where it is content."""
    for path in FOLDER.glob("*.yaml"):
        shutil.copy(path, folder)
    if name == "prometheus-kubernetes.yaml":
        content, found = without_pod_discovery(content)
        if found:
            return found
    (folder / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    command = ["promtool", *CHECKS[name], *(["--lint-fatal"] if "check" in CHECKS[name] else [])]
    command.append(str(folder / READ_BY.get(name, name)))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


def without_pod_discovery(content):
    """The same with a list of no targets instead of the pods; what is wrong with that of pods."""
    content = copy.deepcopy(content)
    for job in content.get("scrape_configs", []):
        pods = job.pop("kubernetes_sd_configs", None)
        if pods is None:
            return content, "no pods are looked for"
        errors = jsonschema.Draft202012Validator(POD_DISCOVERY).iter_errors(pods)
        if found := [error.message for error in errors]:
            return content, found[0]
        job["static_configs"] = [{"targets": []}]
    return content, ""


@needs_promtool
@pytest.mark.parametrize("name", CHECKS)
def test_promtool_takes_the_file(name, tmp_path):
    assert complaint(name, document(FOLDER / name), tmp_path) == ""


def test_the_tests_of_alerts_expect_their_remedies():
    """As promtool compares them, which is not everywhere."""
    tested = set()
    for test in document(FOLDER / "rules_test.yaml")["tests"]:
        for case in test["alert_rule_test"]:
            for alert in case["exp_alerts"]:
                words = rules()[case["alertname"]]["annotations"]["remedy"].split("{{ $value }}")
                pattern = r"\S+".join(map(re.escape, words))
                assert re.fullmatch(pattern, alert["exp_annotations"]["remedy"]), case
                tested.add(case["alertname"])
    assert tested == rules().keys()


def test_no_prometheus_file_is_left_out():
    grafana = FOLDER / "grafana"
    assert {path.name for path in FOLDER.glob("*.yaml")} == CHECKS.keys()
    assert {path for path in FOLDER.iterdir() if path.name not in CHECKS} == {grafana}


@needs_promtool
@pytest.mark.parametrize("name", CHECKS)
def test_any_misspelt_key_of_prometheus_is_found(name, tmp_path):
    content = document(FOLDER / name)
    tried = {}
    for place in places(content):
        shape = tuple("[]" if isinstance(each, int) else each for each in place)
        tried.setdefault(shape, place)
    missed = [
        ".".join(map(str, place))
        for place in tried.values()
        if not complaint(name, with_a_fault(content, place), tmp_path)
    ]
    assert len(tried) >= 1 and missed == []


def with_a_fault(content, place):
    """The content with a misspelt key, and of the tests of alerts only the one that has it."""
    content = misspelt(yaml.safe_load(yaml.safe_dump(content)), place)  # no node twice
    if place[0] == "tests" and len(place) > 1:  # the others take their time
        content["tests"] = [content["tests"][place[1]]]
    return content


def test_each_alert_says_how_bad_what_and_what_to_do():
    assert rules().keys() >= ALERTS
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), name
        summary, remedy = (rule["annotations"][each] for each in ("summary", "remedy"))
        assert summary and "\n" not in summary + remedy and len(remedy) > 20, name


def test_each_alert_is_fired_once_and_is_silent_once():
    said = {name: set() for name in rules()}
    for test in document(FOLDER / "rules_test.yaml")["tests"]:
        for each in test["alert_rule_test"]:
            said[each["alertname"]].add(bool(each["exp_alerts"]))
            # Whoever fires it is not alone: there are series of something that is well.
            assert len(test["input_series"]) > len(each["exp_alerts"])
    quiet_by_others = {name for name, kinds in said.items() if kinds == {True}}
    assert not quiet_by_others, "a moment at which it is silent"
    assert all(True in kinds for kinds in said.values())


def test_the_metrics_of_rules_exist():
    known = metrics_of_runs() | metrics_of_servers() | metrics_of_ray()
    asked = {name: metrics_of(rule["expr"]) for name, rule in rules().items()}
    assert {
        name: found - known for name, found in asked.items() if found - known or not found
    } == {}
    assert metrics_of('a{b="bertline_x"} / bertline_y') == {"bertline_y"}


def test_names_are_as_prometheus_wants_them():
    for name in metrics_of_runs():
        assert re.fullmatch(r"bertline_training_[a-z_]+", name)
        assert not name.endswith(("_ms", "_percent", "_minutes"))


def test_both_ways_to_scrape_give_the_same_names():
    one, other = (
        {job["job_name"]: job for job in document(FOLDER / name)["scrape_configs"]}
        for name in ("prometheus.yaml", "prometheus-kubernetes.yaml")
    )
    relabelled = [each["metric_relabel_configs"] for each in (one["ray"], other["ray"])]
    assert relabelled[0] == relabelled[1] == one["serving"]["metric_relabel_configs"]
    first, second = relabelled[0]
    assert re.fullmatch(first["regex"], "ray_bertline_training_step")
    assert not re.fullmatch(first["regex"], "ray_node_cpu_utilization")
    # Without the worker two drivers of one run would be one series.
    assert not re.fullmatch(second["regex"], "WorkerId")


def test_pods_are_found_by_what_their_manifests_say():
    (job,) = document(FOLDER / "prometheus-kubernetes.yaml")["scrape_configs"]
    text = (INFRA / "kuberay" / "serve" / "service.yaml").read_text(encoding="utf-8")
    sources = [each["source_labels"][0] for each in job["relabel_configs"]]
    assert "__meta_kubernetes_pod_annotation_prometheus_io_scrape" in sources
    assert 'prometheus.io/scrape: "true"' in text
    (port,) = [each for each in job["relabel_configs"] if each.get("regex") == "metrics"]
    assert port["source_labels"] == ["__meta_kubernetes_pod_container_port_name"]
    assert "name: metrics, containerPort: 8080" in text
    (namespace,) = job["kubernetes_sd_configs"][0]["namespaces"]["names"]
    assert namespace == document(INFRA / "kuberay" / "base" / "namespace.yaml")["metadata"]["name"]
