"""Google's own description of its API, which comes with its client: what a machine may be given."""

import json
from functools import cache
from pathlib import Path

import googleapiclient.discovery_cache

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
