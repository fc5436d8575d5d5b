"""Reference pages of the HTTP routes, generated from the OpenAPI document."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from serving.app import create_app
from serving.engine import Engine
from serving.middleware.access import required_scope
from serving.rollout.admin import Rollout

Json = dict[str, Any]

TITLES = {
    "tasks": "Tasks",
    "pre-training": "Pre-training heads",
    "texts": "Texts",
    "explanation": "Explanations",
    "operation": "Operation",
    "admin": "Admin",
}
"""Titles of the groups (tags) that are not called by a name."""

_REFERENCE = re.compile(r"#/components/schemas/(\w+)")
_MAX_ON_A_LINE = 100


def pages() -> Iterator[tuple[str, str, str]]:
    """Title, file name and Markdown of the page of each group of routes."""
    engine = Engine({})
    # The rollout is needed for its routes alone, which nobody calls here.
    rollout = Rollout(engine, None, None)  # pyright: ignore[reportArgumentType] - never called
    document = create_app(engine, rollout=rollout, webhook_secret=b"-").openapi()
    groups: dict[str, list[tuple[str, str, Json]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append((path, method, operation))
    schemas = document["components"]["schemas"]
    for tag, routes in groups.items():
        title = TITLES.get(tag, tag)
        yield title, tag.lower().replace(" ", "_"), group_page(title, routes, schemas)


def group_page(title: str, routes: list[tuple[str, str, Json]], schemas: Mapping[str, Json]) -> str:
    """The routes of a group, then the types that they mention and the refusals."""
    parts = [
        f"# {title}\n\nGenerated from the OpenAPI document of the server. What all routes have in"
        " common, keys and limits: [overview](../api.md). Answers of a real server:"
        " [client examples](../clients.md)."
    ]
    for path, method, operation in routes:
        parts += route(path, method, operation, schemas)
    types = list(_mentioned(parts, schemas))
    if types:
        parts.append("## Types")
        parts += types
    refusals: dict[tuple[str, str], list[str]] = {}
    for path, _, operation in routes:
        for status, answer in operation["responses"].items():
            if status != "200":
                refusals.setdefault((status, answer["description"]), []).append(path)
    if refusals:
        rows = ["| status | when |", "|---|---|"]
        for (status, description), paths in sorted(refusals.items()):
            others = any(key[0] == status and key[1] != description for key in refusals)
            at = f" ({', '.join(f'`{each}`' for each in dict.fromkeys(paths))})" if others else ""
            rows.append(f"| {status} | {description}{at} |")
        about = "All families: [refusals](../api.md)."
        parts.append("## Refusals\n\n" + "\n".join(rows) + f"\n\n{about}")
    return "\n\n".join(parts) + "\n"


def route(path: str, method: str, operation: Json, schemas: Mapping[str, Json]) -> Iterator[str]:
    """The paragraphs of a route."""
    scope = required_scope(path)
    yield f"## {method.upper()} {path}\n\n{operation['description']}"
    yield "Key: " + ("none." if scope is None else f"scope [`{scope}`](../api.md#keys).")
    parameters = operation.get("parameters", [])
    if parameters:
        lines = ["| parameter | |", "|---|---|"]
        for each in parameters:
            kind = f"in the {each['in']}, {_kind(each['schema'], null=False)}"
            lines.append(_row(each["name"], kind, each.get("description", "")))
        yield "\n".join(lines)
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        schema = _resolved(body["schema"], schemas)
        yield f"**Request.** {_prose(schema.get('description', ''))}"
        yield fields(schema, is_request=True)
        if scope is not None:  # else it is signed
            yield from _example(path, method, schema)
    content = operation["responses"]["200"].get("content", {})
    if "application/json" in content:
        schema = _resolved(content["application/json"]["schema"], schemas)
        if "properties" in schema:
            yield f"**Answer.** {_prose(schema.get('description', ''))}\n\n{fields(schema)}"
        else:
            kind = _kind(schema)
            yield f"**Answer.** {kind[0].upper()}{kind[1:]}."


def fields(schema: Json, *, is_request: bool = False) -> str:
    """The fields of an object as a table; of a request the required ones first."""
    required = schema.get("required", [])
    properties = list(schema.get("properties", {}).items())
    if is_request:
        properties.sort(key=lambda field: field[0] not in required)
    lines = ["| field | |", "|---|---|"]
    for name, field in properties:
        kind = _kind(field, null=not is_request)
        if is_request and name in required:
            kind += ", required"
        elif field.get("default") not in (None, {}, []):
            kind += f", default `{json.dumps(field['default'])}`"
        lines.append(_row(name, kind, field.get("description", "")))
    return "\n".join(lines)


def _row(name: str, kind: str, description: str) -> str:
    about = f"<br>{_prose(description)}" if description else ""
    return f"| `{name}` | <small>{kind}</small>{about} |"


def _mentioned(parts: list[str], schemas: Mapping[str, Json]) -> Iterator[str]:
    """The types that the parts link to, and those that these link to."""
    waiting, done = "\n".join(parts), set[str]()
    while names := set(re.findall(r"\]\(#type-(\w+)\)", waiting)) - done:
        waiting = ""
        for name in sorted(names):
            done.add(name)
            known = next(each for each in schemas if each.lower() == name)
            schema = schemas[known]
            title = known.removeprefix("_")
            text = f"### {title} {{ #type-{name} }}\n\n{_prose(schema.get('description', ''))}"
            is_request = schema.get("additionalProperties") is False
            text += f"\n\n{fields(schema, is_request=is_request)}"
            waiting += text
            yield text


def _resolved(schema: Json, schemas: Mapping[str, Json]) -> Json:
    found = _REFERENCE.fullmatch(schema.get("$ref", ""))
    return schema if found is None else schemas[found[1]]


def _example(path: str, method: str, schema: Json) -> Iterator[str]:
    """The example of a request, for a shell."""
    for body in schema.get("examples", [])[:1]:
        text = json.dumps(body, ensure_ascii=False)
        if len(text) > _MAX_ON_A_LINE:
            text = json.dumps(body, ensure_ascii=False, indent=2)
        text = text.replace("'", "'\\''")
        verb = "" if method == "post" else f"-X {method.upper()} "
        address = path.replace("{name}", "mrpc").replace("{role}", "canary")
        yield (
            f"```sh\ncurl {verb}http://127.0.0.1:8000{address} \\\n"
            f"  -H 'Content-Type: application/json' -d '{text}'\n```"
        )


def _kind(schema: Json, *, null: bool = True) -> str:
    """What may stand there, in words; a link for an object. `null` tells of null too."""
    reference = _REFERENCE.fullmatch(schema.get("$ref", ""))
    if reference:
        return f"[{reference[1].removeprefix('_')}](#type-{reference[1].lower()})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            kinds = dict.fromkeys(_kind(each) for each in schema[union])
            return " or ".join(kind for kind in kinds if null or kind != "null")
    if "allOf" in schema:
        return _kind(schema["allOf"][0])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"object of {_kind(values)}" if isinstance(values, dict) and values else "object"
    signs = {
        "minimum": "≥",
        "exclusiveMinimum": ">",
        "maximum": "≤",
        "exclusiveMaximum": "<",
    }
    bounds = [
        f"{sign} {int(bound) if float(bound).is_integer() else bound}"
        for name, sign in signs.items()
        if (bound := schema.get(name)) is not None
    ]
    if "maxLength" in schema:
        bounds.append(f"at most {schema['maxLength']} characters")
    return " ".join([kind, ", ".join(bounds)]).strip()


def _prose(text: str) -> str:
    """A description as Markdown on one line of a table."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([\\*_<\[\]|])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts).replace("|", "\\|").replace("\\\\|", "\\|")
