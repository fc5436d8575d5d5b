"""What a manifest has to look like: Kubernetes' own schemas, KubeRay's definitions, kustomize's.

All are strict: a key that they do not know is a fault, as it is for `kubectl apply`.
"""

from functools import cache

import jsonschema
import kubernetes_validate
import pytest
from kubernetes_validate import utils
from manifests import CLUSTERS
from yaml_files import INFRA, document

KUBERNETES = "1.37"
_DEFINITIONS = INFRA.parents[1] / "shared" / "schemas" / "kuberay"
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_IMAGE = {
    "type": "object",
    "properties": {"name": _TEXT, "newName": _TEXT, "newTag": _TEXT},
    "required": ["name", "newName", "newTag"],
    "additionalProperties": False,
}
_KUSTOMIZATION = {
    "type": "object",
    "properties": {
        "apiVersion": {"pattern": r"^kustomize\.config\.k8s\.io/v1(alpha1|beta1)$"},
        "kind": {"enum": ["Kustomization", "Component"]},
        "components": _TEXTS,
        "resources": _TEXTS,
        "images": {"type": "array", "items": _IMAGE},
    },
    "required": ["apiVersion", "kind"],
    "additionalProperties": False,
}
"""The few of kustomize's keys that are used here; it publishes no schema."""


def faults(manifest):
    """What is wrong with a document of any kind, empty where nothing is.

    Skips the test where it is KubeRay's and the definitions are not beside the checkout.
    """
    kind = manifest["kind"]
    if kind in CLUSTERS:
        metadata = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifest.get("metadata")}
        found = _messages(_definition(kind), manifest)
        return found or _kubernetes_faults(metadata)
    if kind in ("Kustomization", "Component"):
        return _messages(jsonschema.Draft202012Validator(_KUSTOMIZATION), manifest)
    return _kubernetes_faults(manifest)


def _messages(validator, manifest):
    found = sorted(validator.iter_errors(manifest), key=lambda each: list(map(str, each.path)))
    return [f"{'.'.join(map(str, each.path))}: {each.message}" for each in found]


def _kubernetes_faults(manifest):
    if "apiVersion" not in manifest:
        return ["no apiVersion"]
    _read_schemas_once()
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except kubernetes_validate.SchemaNotFoundError as error:
        return [error.message]
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


@cache
def _read_schemas_once():
    """The package parses all its definitions again for each document."""
    utils.schema_contents = cache(utils.schema_contents)


@cache
def _definition(kind):
    """What KubeRay's definition of a kind says of its first version, which is stored."""
    path = _DEFINITIONS / f"ray.io_{kind.lower()}s.yaml"
    if not path.exists():
        pytest.skip("../shared/schemas is not beside this checkout")
    (version,) = [each for each in document(path)["spec"]["versions"] if each["storage"]]
    assert version["name"] == "v1"
    schema = _strict(version["schema"]["openAPIV3Schema"])
    # The definition knows it by where it stands.
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    schema["properties"]["apiVersion"] = {"const": "ray.io/v1"}
    return jsonschema.Draft202012Validator(schema)


def _strict(schema):
    """The same schema, with no keys but those it lists."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(each) for key, each in schema.items()}
    listed = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if listed and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict
