"""Dashboards and rules of infra/monitoring: what they ask Prometheus, and which metrics exist."""

import json
import re

from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES
from yaml_files import INFRA, document

from serving.telemetry.metrics import Metrics
from workflows.training.metrics import metric_names

FOLDER = INFRA / "monitoring"
DASHBOARDS = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))
VARIABLES = {"$__rate_interval": "1m", "$__range": "1h", "$run": ".*"}
VARIABLES |= {"$deployment": ".*", "$model": ".*"}
"""What Grafana puts in the place of its variables, all runs and models chosen."""


def dashboard(path):
    """A dashboard's JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def panels(path):
    """The panels of a dashboard that are no rows."""
    return [each for each in dashboard(path)["panels"] if each["type"] != "row"]


def queries(path):
    """What the panels of a dashboard ask, as Prometheus is asked: (title, expression)."""
    return [
        (each["title"], filled(target["expr"]))
        for each in panels(path)
        for target in each["targets"]
    ]


def filled(expression):
    """An expression with Grafana's variables filled in."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def rules():
    """Every rule: its alert's name -> the rule."""
    groups = document(FOLDER / "rules.yaml")["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def variable_metrics(path):
    """The metrics that a dashboard's variables take their values from."""
    asked = [each.get("definition", "") for each in dashboard(path)["templating"]["list"]]
    return {each.removeprefix("label_values(").split(",")[0] for each in asked if each}


def metrics_of(expression):
    """The names of metrics in an expression."""
    without_text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    return set(re.findall(r"\b(?:bertline|ray)_\w+|\bup\b", without_text))


def metrics_of_runs():
    """What drivers of trainings tell Ray, as Prometheus has it."""
    return set(metric_names())


def metrics_of_servers():
    """What a server counts, as Prometheus has it."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        family.name + ending
        for family in Metrics().registry.collect()
        for ending in endings.get(family.type, ("",))
    }


def metrics_of_ray():
    """What Ray says of each of its nodes."""
    return {f"ray_{name}" for name in METRICS_GAUGES} | {"up"}
