"""The dashboards ask what Prometheus understands, of metrics that exist; Grafana finds them."""

import copy
import json
import shutil
import subprocess

import pytest
import yaml
from grafana_schemas import DASHBOARD, DATASOURCES, PROVIDERS, faults
from monitoring_files import (
    DASHBOARDS,
    FOLDER,
    dashboard,
    metrics_of,
    metrics_of_ray,
    metrics_of_runs,
    metrics_of_servers,
    panels,
    queries,
    variable_metrics,
)
from yaml_files import document, places

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


def test_no_file_is_left_out():
    assert {path for path in (FOLDER / "grafana").rglob("*") if path.is_file()} == FILES.keys()
    assert [path.stem for path in DASHBOARDS] == ["serving", "training"]


@each_file
def test_the_file_is_valid(path):
    assert faults(content(path), FILES[path]) == []


@each_file
def test_any_misspelt_key_is_found(path):
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
        assert all(each == {"type": "prometheus", "uid": "${datasource}"} for each in sources)
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
