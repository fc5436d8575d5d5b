"""Dashboards and rules of infra/monitoring: their keys, queries and metrics."""

import json
import re

import jsonschema
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
        (panel["title"], filled(target["expr"]))
        for panel in panels(path)
        for target in panel["targets"]
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


TEXT, NUMBER, YES = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
WHOLE = {"type": "integer", "minimum": 0}


def only(required=(), **properties):
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def some(schema):
    """A list of at least one."""
    return {"type": "array", "items": schema, "minItems": 1}


DATASOURCES = only(
    ("apiVersion", "datasources"),
    apiVersion={"const": 1},
    prune=YES,
    datasources=some(
        only(
            ("name", "uid", "type", "access", "url"),
            name=TEXT,
            uid={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
            type={"const": "prometheus"},
            access={"enum": ["proxy", "direct"]},
            url={"type": "string", "pattern": "^https?://"},
            isDefault=YES,
            editable=YES,
            jsonData=only(
                httpMethod={"enum": ["GET", "POST"]},
                timeInterval={"type": "string", "pattern": r"^\d+(ms|s|m|h)$"},
            ),
        )
    ),
)
"""grafana.com/docs/grafana/latest/administration/provisioning/#data-sources"""

PROVIDERS = only(
    ("apiVersion", "providers"),
    apiVersion={"const": 1},
    providers=some(
        only(
            ("name", "type", "options"),
            name=TEXT,
            orgId={"type": "integer", "minimum": 1},
            folder=TEXT,
            type={"const": "file"},
            disableDeletion=YES,
            allowUiUpdates=YES,
            updateIntervalSeconds={"type": "integer", "minimum": 1},
            options=only(("path",), path={"type": "string", "pattern": "^/"}),
        )
    ),
)
"""grafana.com/docs/grafana/latest/administration/provisioning/#dashboards"""

_SOURCE = only(("type", "uid"), type=TEXT, uid=TEXT)
_STEP = only(("color", "value"), color=TEXT, value={"type": ["number", "null"]})
_MAPPING = only(
    ("type", "options"),
    type={"const": "value"},
    options={
        "type": "object",
        "patternProperties": {r"^\d+$": only(("text",), index=WHOLE, text=TEXT)},
        "additionalProperties": False,
    },
)
_CURVES = only(
    lineWidth=WHOLE,
    fillOpacity=WHOLE,
    showPoints={"enum": ["auto", "always", "never"]},
    spanNulls={"type": ["boolean", "integer"]},
    lineInterpolation={"enum": ["linear", "smooth", "stepBefore", "stepAfter"]},
    drawStyle={"enum": ["line", "bars", "points"]},
    thresholdsStyle=only(("mode",), mode={"enum": ["off", "line", "dashed", "area"]}),
)
_DEFAULTS = only(
    ("unit", "thresholds"),
    unit={"enum": ["none", "short", "percent", "percentunit", "s", "bytes", "reqps", "sci"]},
    decimals=WHOLE,
    min=NUMBER,
    max=NUMBER,
    mappings={"type": "array", "items": _MAPPING},
    thresholds=only(("mode", "steps"), mode={"enum": ["absolute"]}, steps=some(_STEP)),
    color=only(("mode",), mode={"enum": ["thresholds", "palette-classic"]}),
    custom=_CURVES,
)
_TARGET = only(
    ("refId", "datasource", "expr", "legendFormat"),
    refId={"type": "string", "pattern": "^[A-Z]$"},
    datasource=_SOURCE,
    editorMode={"enum": ["code", "builder"]},
    expr={"type": "string", "minLength": 1},
    legendFormat=TEXT,
    instant=YES,
    range=YES,
)
_PLACE = only(("h", "w", "x", "y"), h=WHOLE, w=WHOLE, x=WHOLE, y=WHOLE)
_STAT = only(
    ("reduceOptions",),
    colorMode={"enum": ["none", "value", "background"]},
    graphMode={"enum": ["none", "area"]},
    justifyMode={"enum": ["auto", "center"]},
    orientation={"enum": ["auto", "horizontal", "vertical"]},
    textMode={"enum": ["auto", "value", "name", "value_and_name", "none"]},
    reduceOptions=only(("calcs",), calcs=some(TEXT), fields=TEXT, values=YES),
)
_SERIES = only(
    ("legend", "tooltip"),
    legend=only(
        displayMode={"enum": ["list", "table"]},
        placement={"enum": ["bottom", "right"]},
        showLegend=YES,
    ),
    tooltip=only(mode={"enum": ["single", "multi", "none"]}, sort={"enum": ["none", "desc"]}),
)


def _panel(kind, options):
    return only(
        ("id", "type", "title", "gridPos", "datasource", "fieldConfig", "targets"),
        id=WHOLE,
        type={"const": kind},
        title=TEXT,
        description=TEXT,
        datasource=_SOURCE,
        gridPos=_PLACE,
        fieldConfig=only(("defaults", "overrides"), defaults=_DEFAULTS, overrides={"maxItems": 0}),
        options=options,
        targets=some(_TARGET),
    )


_ROW = only(
    ("id", "type", "title", "gridPos", "collapsed", "panels"),
    id=WHOLE,
    type={"const": "row"},
    title=TEXT,
    gridPos=_PLACE,
    collapsed={"const": False},
    panels={"type": "array", "maxItems": 0},
)
_CHOICE = {
    "name": {"type": "string", "pattern": r"^\w+$"},
    "label": TEXT,
    "hide": {"enum": [0, 1, 2]},
    "refresh": {"enum": [1, 2]},
    "options": {"type": "array", "maxItems": 0},
}
_SOURCE_CHOICE = only(
    ("name", "type", "query"),
    **_CHOICE,
    type={"const": "datasource"},
    query={"const": "prometheus"},
    current=only(),
)
_QUERY_CHOICE = only(
    ("name", "type", "datasource", "query", "multi", "includeAll", "allValue"),
    **_CHOICE,
    type={"const": "query"},
    datasource=_SOURCE,
    definition=TEXT,
    query=only(("qryType", "query", "refId"), qryType={"const": 1}, query=TEXT, refId=TEXT),
    sort=WHOLE,
    multi=YES,
    includeAll=YES,
    allValue=TEXT,
    regex=TEXT,
    current=only(selected=YES, text=some(TEXT), value=some(TEXT)),
)
_ALERTS = only(
    ("builtIn", "datasource", "enable", "name", "type"),
    builtIn={"const": 1},
    datasource=_SOURCE,
    enable=YES,
    hide=YES,
    iconColor=TEXT,
    name=TEXT,
    type={"const": "dashboard"},
)
DASHBOARD = only(
    ("uid", "title", "schemaVersion", "panels", "templating", "time"),
    uid={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
    title=TEXT,
    description=TEXT,
    tags=some(TEXT),
    schemaVersion={"const": 41},
    version={"const": 1},
    editable=YES,
    graphTooltip={"enum": [0, 1, 2]},
    refresh={"type": "string", "pattern": r"^\d+[smh]$"},
    time=only(("from", "to"), **{"from": TEXT, "to": TEXT}),
    timezone={"enum": ["browser", "utc"]},
    fiscalYearStartMonth={"const": 0},
    links={"type": "array", "maxItems": 0},
    annotations=only(("list",), list=some(_ALERTS)),
    templating=only(("list",), list=some({"anyOf": [_SOURCE_CHOICE, _QUERY_CHOICE]})),
    panels=some({"anyOf": [_panel("stat", _STAT), _panel("timeseries", _SERIES), _ROW]}),
)
"""Of Grafana 12, whose documentation has it as the dashboard JSON model (Dashboards > Build)."""


def faults(value, schema):
    """What is wrong with a file's content, empty where nothing is."""
    found = jsonschema.Draft202012Validator(schema).iter_errors(value)
    return [f"{'.'.join(map(str, each.path))}: {each.message}" for each in found]
